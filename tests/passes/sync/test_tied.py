"""Launches that overlap, in plans: which edges tie them, what is refused, and what a prediction says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.passes.sync.graphs import mlp, operand
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, check_plan, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.explain import explain_plan
from tilestitch.passes.plan.launches.dependences import Accesses, Region, dependences, shared_memory, unordered
from tilestitch.passes.plan.launches.launch import Edge
from tilestitch.passes.plan.schedules import LaunchesSchedule
from tilestitch.passes.plan.sync.edges import Bound

H100 = TargetInfo("cuda", device="H100", architectures=("sm_90",))
GPT3 = 12288, 4 * 12288 // 8


def planned(graph: Graph, sync: str = "tile/launches") -> StitchPlan:
    plan = make_plan(graph, PassContext(H100, {"sync": sync, "planner": "xla"}, cost_model=AnalyticalModel()))
    check_plan(plan, graph)
    return plan


def surrounded() -> Graph:
    """A kernel before two GEMMs and one after them, which all read and write values of one size."""
    graph = Graph("surrounded")
    x = graph.emit("exp", operand(graph, "x", 40, 40))
    y = graph.emit("matmul", graph.emit("matmul", x, operand(graph, "w", 40, 40)), operand(graph, "v", 40, 40))
    table = operand(graph, "table", 4, dtype="int64")
    graph.outputs = [graph.emit("gather", y, table, axis=0)]
    return graph


def test_a_plan_prints_and_parses_back() -> None:
    graph = mlp(70, 40, 130)
    plan = planned(graph)
    assert StitchPlan.from_json(plan.to_json()) == plan
    (launch,) = (launch for launch in plan.launches or () if launch.overlaps)
    assert launch.overlaps == (1,)


def test_what_lies_before_and_after_waits_for_whole_launches() -> None:
    graph = surrounded()
    plan = planned(graph)
    kinds = {edge.kind for edge in plan.edges or ()}
    assert kinds == {"full", "programmatic"}
    tied = [edge for edge in plan.edges or () if edge.kind == "programmatic"]
    launches = plan.launches or ()
    assert all(launches[edge.before].group == launches[edge.after].group for edge in tied)


def spoilt(graph: Graph, change: Callable[[StitchPlan], StitchPlan], said: str) -> None:
    plan = planned(graph)
    with pytest.raises(PlanError, match=said):
        check_plan(change(plan), graph)


def narrower(plan: StitchPlan) -> StitchPlan:
    (group,) = plan.groups
    assert isinstance(group.schedule, LaunchesSchedule)
    (edge,) = group.schedule.edges
    narrow = replace(edge, last=(*edge.last[:-1], Bound((0, 0, 0, 0), 0, 0, 1)))
    return replace(plan, groups=(replace(group, schedule=LaunchesSchedule((narrow,))),))


def test_tiles_that_wait_for_too_little_are_refused() -> None:
    spoilt(mlp(40, 40, 200), narrower, r"tile \(0, 0, 0, 0\) of matmul\w* reads what tile")


def test_launches_that_nothing_orders_are_refused() -> None:
    spoilt(mlp(40, 40, 70), lambda plan: replace(plan, edges=(), lanes=None), "no edges lead from launch 0")


def test_a_group_without_edges_of_tiles_is_refused() -> None:
    def without(plan: StitchPlan) -> StitchPlan:
        return replace(plan, groups=(replace(plan.groups[0], schedule=LaunchesSchedule(())),))

    spoilt(mlp(40, 40, 70), without, "does not wait for it")


def test_an_early_start_of_a_kernel_whose_blocks_do_not_wait_is_refused() -> None:
    def early(plan: StitchPlan) -> StitchPlan:
        return replace(plan, edges=tuple(replace(edge, kind="programmatic") for edge in plan.edges or ()))

    spoilt(surrounded(), early, "is programmatic, but no block of the second waits for tiles of the first")


def test_memory_of_both_is_refused() -> None:
    """What the first GEMM stores for the second over what it reads."""

    def over(plan: StitchPlan) -> StitchPlan:
        offset = plan.buffers.temporaries[0].offset_bytes
        temporaries = tuple(replace(t, offset_bytes=offset) for t in plan.buffers.temporaries)
        return replace(plan, buffers=replace(plan.buffers, temporaries=temporaries), edges=None, lanes=None)

    spoilt(surrounded(), over, r"overlap|side by side|share")


def test_a_wider_wait_is_no_fault() -> None:
    graph = mlp(40, 40, 70)
    plan = planned(graph)
    full = tuple(Edge(edge.before, edge.after, "full", edge.reason) for edge in plan.edges or ())
    check_plan(replace(plan, edges=full), graph)


# -- edges of launches -------------------------------------------------------------------------------------------------


def touching(reads: str, writes: str, *overlaps: int) -> Accesses:
    """Each letter is a value in memory of its own."""
    return Accesses(*(tuple((v, Region(v, 0, 1)) for v in text) for text in (reads, writes)), overlaps)


def found(launches: list[Accesses]) -> list[tuple[int, int, str]]:
    return [(edge.before, edge.after, edge.kind) for edge in dependences(launches)]


def test_what_comes_after_an_overlapping_launch_comes_after_both() -> None:
    launches = [touching("x", "a"), touching("a", "b", 1), touching("b", "x")]
    assert found(launches) == [(0, 1, "programmatic"), (1, 2, "full")]


def test_an_overlapping_launch_waits_itself_for_what_came_before_both() -> None:
    """That the first launch has waited for %z says nothing of what the second sees."""
    launches = [touching("", "z"), touching("z", "a"), touching("az", "b", 1)]
    assert found(launches) == [(0, 1, "full"), (0, 2, "full"), (1, 2, "programmatic")]
    assert unordered(launches, [Edge(0, 1), Edge(1, 2, "programmatic")]) is not None


def test_a_launch_two_places_on_waits_for_all_of_what_it_is_not_tied_to() -> None:
    launches = [touching("x", "a"), touching("a", "b", 1), touching("b", "x", 1)]
    assert found(launches) == [(0, 1, "programmatic"), (0, 2, "full"), (1, 2, "programmatic")]


def test_memory_under_two_names_is_found() -> None:
    same = Region("arena", 0, 8)
    first = Accesses((("x", same),), (("a", Region("a", 0, 1)),))
    second = Accesses((("a", Region("a", 0, 1)),), (("b", same),), (1,))
    assert shared_memory([first, second]) == (0, 1, "b")
    assert shared_memory([first, replace(second, overlaps=())]) is None


# -- the choice --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [64, 1280, 1536])
def test_auto_takes_the_form_that_is_predicted_to_be_faster(rows: int) -> None:
    graph = mlp(rows, *GPT3)
    total = {}
    for sync in ("off", "auto", "auto/launches", "auto/tickets"):
        total[sync] = explain_plan(graph, planned(graph, sync))["prediction"]["total_us"]
    assert total["auto"] == min(total.values())


def test_explain_shows_what_overlapping_launches_gain() -> None:
    graph = mlp(1280, *GPT3)
    plan = planned(graph, "row/launches")
    (kernel,) = explain_plan(graph, plan)["kernels"]
    assert kernel["tiles"][0]["policy"] == "row" and kernel["tie"] == "launches"
    assert kernel["apart"]["waves"] >= kernel["apart"]["waves_together"]
    assert kernel["apart"]["predicted_us"] > 0
    first, second = kernel["timeline"]
    assert first["tied_us"][0] < second["tied_us"][0] < second["tied_us"][1] <= second["apart_us"][1]
    assert first["apart_us"][1] < second["apart_us"][0]
