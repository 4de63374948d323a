"""Plans for GPUs whose launches run side by side."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.passes.simulate import simulate
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.protocol import AnyDevice, KernelFacts, Prediction
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.errors import PassError, PlanError
from tilestitch.passes.plan import Segment, StitchPlan
from tilestitch.passes.plan.launches.launch import Lane
from tilestitch.passes.plan_check import check_plan
from tilestitch.passes.schedule.makespan import spans_of
from tilestitch.passes.schedule.parallel.arrange import (
    Arrangement,
    arranged,
    one_at_a_time_bytes,
    placed,
    works_of_plan,
)

A100 = TargetInfo("cuda", 1, "A100", ("sm_80",), 108)


def random_graph(seed: int, count: int = 24) -> Graph:
    """Element-wise operators and reductions, each of one or two values made before, of two sizes."""
    rng = random.Random(seed)
    graph = Graph(f"random{seed}")
    made = [graph.add_input(name, TensorType("float32", (rows, 64))) for name, rows in (("x", 64), ("y", 512))]
    read = set()
    for _ in range(count):
        first = rng.choice(made[-6:])
        others = [value for value in made if value.shape == first.shape]
        if rng.random() < 0.5:
            made.append(graph.emit("add", first, rng.choice(others)))
            read.update(made[-1].producer.inputs)
        else:
            made.append(graph.emit(rng.choice(("tanh", "sin", "exp")), first))
            read.add(first)
    graph.outputs = [value for value in made if value not in read and value.producer is not None]
    return graph


def planned(graph: Graph, branch_bytes: int | None = None) -> StitchPlan:
    options = {"planner": "none", "branch_bytes": branch_bytes}
    return make_plan(graph, PassContext(A100, options=options))


def shuffled(plan: StitchPlan, seed: int) -> StitchPlan:
    """The plan with its groups in a random order that its edges allow, and memory as it was."""
    rng = random.Random(seed)
    launches, edges = plan.launches or (), plan.edges or ()
    waiting = {group.name: {launches[e.before].group for e in edges if launches[e.after].group == group.name}
               for group in plan.groups}  # fmt: skip
    order: list[str] = []
    while waiting:
        ready = sorted(name for name, before in waiting.items() if before <= {*order, name})
        order.append(rng.choice(ready))
        del waiting[order[-1]]
    return replace(plan, segments=(Segment(True, tuple(order)),))


@pytest.mark.parametrize("branch_bytes", [None, 0, 200_000])
@pytest.mark.parametrize("seed", range(6))
def test_any_order_that_the_edges_allow_computes_the_same(seed: int, branch_bytes: int | None) -> None:
    graph = random_graph(seed)
    plan = planned(graph, branch_bytes)
    check_plan(plan, graph)
    rng = np.random.default_rng(seed)
    feeds = {value.name: rng.normal(0, 1, value.shape).astype(np.float32) for value in graph.inputs}
    expected = evaluate(graph, feeds)
    for other in range(4):
        for found, want in zip(simulate(shuffled(plan, other), graph, dict(feeds)), expected, strict=True):
            np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("seed", range(6))
def test_memory_for_branches_is_bounded(seed: int) -> None:
    graph = random_graph(seed)
    free, least = planned(graph), one_at_a_time_bytes(planned(graph, 0), graph)
    assert planned(graph, 0).buffers.arena_bytes <= least
    most = 150_000
    assert planned(graph, most).buffers.arena_bytes <= one_at_a_time_bytes(free, graph) + most
    assert planned(graph, 1 << 40) == free


@pytest.mark.parametrize("seed", range(6))
def test_the_order_is_no_worse_than_the_one_before(seed: int) -> None:
    graph = random_graph(seed)
    plan = planned(graph)
    works = works_of_plan(plan, graph, AnalyticalModel())
    ends = [max(span.end_us for span in spans_of(one, works)) for one in (plan, without_order(plan, graph))]
    assert ends[0] <= ends[1]
    assert arranged(plan, graph, AnalyticalModel()).launches == plan.launches


def without_order(plan: StitchPlan, graph: Graph) -> StitchPlan:
    """The same kernels in the order of the model."""
    position = {node.name: number for number, node in enumerate(graph.nodes)}
    names = sorted((group.name for group in plan.groups), key=lambda name: position[plan.group(name).nodes[-1]])
    return placed(plan, graph, Arrangement((Segment(True, tuple(names)),)))


def test_fewer_bytes_than_none_are_refused() -> None:
    with pytest.raises(PassError, match="branch_bytes is -1; give a number of bytes"):
        planned(random_graph(0), -1)


def test_on_a_cpu_launches_have_no_branches() -> None:
    graph = random_graph(0)
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2)))
    assert plan.lanes == ()
    with pytest.raises(PlanError, match="on a CPU launches have none"):
        check_plan(replace(plan, lanes=(Lane(0),)), graph)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda lanes: lanes[:-1], "put null in their place"),
        (lambda lanes: tuple(Lane(0) for _ in lanes), "are both in branch 0, but the later one does not wait"),
        (lambda lanes: tuple(Lane(3) for _ in lanes), "are both in branch 3, but the later one does not wait"),
        (lambda lanes: (*lanes, Lane(7)), "put null in their place"),
        (lambda lanes: (Lane(len(lanes)), *lanes[1:]), "is in branch 24, of 24 launches"),
    ],
)
def test_branches_that_do_not_fit_the_edges_are_refused(edit: object, said: str) -> None:
    graph = random_graph(1)
    plan = planned(graph)
    assert len({lane.branch for lane in plan.lanes or ()}) > 1
    with pytest.raises(PlanError, match=said):
        check_plan(replace(plan, lanes=edit(plan.lanes)), graph)  # type: ignore[operator]


@pytest.mark.parametrize("data", [[0], [0, 6], [-1, 0], [0, True], "a"])
def test_odd_branches_and_priorities_are_refused(data: object) -> None:
    with pytest.raises(PlanError, match="put null in the place of lanes"):
        Lane.from_json(data)


def test_a_plan_with_branches_reads_back() -> None:
    plan = planned(random_graph(2))
    assert StitchPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("nodes", [0, 1])
def test_graphs_of_no_launch_and_of_one(nodes: int) -> None:
    graph = Graph("few")
    x = graph.add_input("x", TensorType("float32", (4, 5)))
    graph.outputs = [graph.emit("tanh", x) if nodes else x]
    for branch_bytes in (None, 0):
        plan = planned(graph, branch_bytes)
        check_plan(plan, graph)
        assert len(plan.launches or ()) == len(plan.lanes or ()) == nodes


@pytest.mark.parametrize("us", [float("nan"), float("inf"), -1.0])
def test_predictions_that_are_no_times_are_refused(us: float) -> None:
    class Wrong(AnalyticalModel):
        def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> Sequence[Prediction]:
            return [replace(one, latency_us=us) for one in super().predict(batch, device)]

    graph = random_graph(0)
    with pytest.raises(ValueError, match=r"is predicted to take (nan|inf|-1.0) us; repair the cost model"):
        works_of_plan(planned(graph), graph, Wrong())


def test_launches_that_take_no_time_have_an_order() -> None:
    class Nothing(AnalyticalModel):
        def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> Sequence[Prediction]:
            return [replace(one, latency_us=0.0) for one in super().predict(batch, device)]

    graph = random_graph(0)
    plan = arranged(planned(graph), graph, Nothing())
    check_plan(plan, graph)
    assert {span.end_us for span in spans_of(plan, works_of_plan(plan, graph, Nothing()))} == {0.0}


@pytest.mark.parametrize("seed", range(3))
def test_an_order_in_which_a_launch_waits_for_a_later_one_is_refused(seed: int) -> None:
    graph = random_graph(seed)
    plan = planned(graph)
    (segment,) = plan.segments
    turned = replace(plan, segments=(replace(segment, groups=segment.groups[::-1]),))
    with pytest.raises(PlanError):
        check_plan(turned, graph)
    with pytest.raises(PlanError):
        check_plan(replace(turned, launches=(plan.launches or ())[::-1]), graph)
    edge = next(edge for edge in plan.edges or ())
    with pytest.raises(PlanError, match=r"earlier|later|before"):
        check_plan(
            replace(plan, edges=(*(plan.edges or ()), replace(edge, before=edge.after, after=edge.before))), graph
        )
    with pytest.raises(PlanError):
        check_plan(replace(plan, edges=(plan.edges or ())[1:]), graph)
