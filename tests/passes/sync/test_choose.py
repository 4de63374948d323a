"""When chains of kernels become one launch: where it is asked for, or predicted to pay; else nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.passes.sync.graphs import mlp, operand
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import Device
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, check_plan, make_plan
from tilestitch.passes.explain import explain_plan
from tilestitch.passes.plan import WhyNot
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.sync.choose import Chooser, TiedGroup, rows_sooner

GPT3 = 12288, 4 * 12288 // 8
"""Width, and hidden width split over eight GPUs."""
GPU = TargetInfo("cuda", device="A100", architectures=("sm_80",))


def planned(graph: Graph, sync: str | None = None, target: TargetInfo = GPU) -> StitchPlan:
    options = {} if sync is None else {"sync": sync}
    plan = make_plan(graph, PassContext(target, options, cost_model=AnalyticalModel()))
    check_plan(plan, graph)
    return plan


def total_us(graph: Graph, plan: StitchPlan) -> float:
    found: float = explain_plan(graph, plan)["prediction"]["total_us"]
    return found


def rules(plan: StitchPlan) -> set[str]:
    return {refusal.rule for refusal in plan.refusals}


def test_off_changes_nothing() -> None:
    graph = mlp(70, 40, 130)
    assert planned(graph, "off") == planned(graph)


def test_on_a_cpu_kernels_follow_each_other() -> None:
    graph = mlp(70, 40, 130)
    assert planned(graph, "auto", TargetInfo("cpu")) == planned(graph, None, TargetInfo("cpu"))


@pytest.mark.parametrize("rows", [64, 512, 1024, 1280])
def test_auto_is_never_predicted_to_be_slower(rows: int) -> None:
    graph = mlp(rows, *GPT3, "float16")
    apart, together = planned(graph), planned(graph, "auto")
    assert total_us(graph, together) <= total_us(graph, apart)


def branches() -> Graph:
    """Three branches of one input: a GEMM, two in a row, and one of elements that are computed before it."""
    graph = Graph("branches")
    x, *weights = (
        operand(graph, name, *shape, dtype="float16")
        for name, shape in (
            ("x", (2048, 256)),
            ("a", (256, 3072)),
            ("b", (256, 512)),
            ("c", (512, 768)),
            ("d", (256, 2048)),
        )
    )
    wide, up, down, late = weights
    results = [
        graph.emit("matmul", x, wide),
        graph.emit("matmul", graph.emit("matmul", x, up), down),
        graph.emit("matmul", graph.emit("tanh", x), late),
    ]
    graph.outputs = [graph.emit("tanh", result) for result in results]
    return graph


def test_auto_keeps_branches_side_by_side_where_chains_would_end_later() -> None:
    graph = branches()
    options = {"planner": "xla"}
    apart, together = (
        make_plan(graph, PassContext(GPU, {**options, "sync": sync}, cost_model=AnalyticalModel()))
        for sync in ("off", "auto")
    )
    check_plan(together, graph)
    assert total_us(graph, together) <= total_us(graph, apart)
    (refusal,) = (why for why in together.refusals if why.subject == graph.name)
    assert refusal.rule == "sync.gain" and refusal.numbers["together_us"] > refusal.numbers["apart_us"]


def test_auto_leaves_chains_of_single_waves_alone() -> None:
    graph = mlp(64, 256, 256, "float16")
    plan = planned(graph, "auto")
    assert plan.groups == planned(graph).groups
    assert "sync.waves" in rules(plan)


def test_auto_ties_kernels_whose_last_waves_are_hardly_filled() -> None:
    graph = mlp(1280, *GPT3, "float16")
    plan = planned(graph, "auto")
    assert [group.tie for group in plan.groups] == ["tickets"]
    (kernel,) = explain_plan(graph, plan)["kernels"]
    assert kernel["tiles"][0]["values"] == ["tanh"] and "tile" in kernel["composition"]
    assert kernel["apart"]["waves"] > kernel["apart"]["waves_together"]
    assert kernel["apart"]["predicted_us"] > kernel["predicted_us"]


def test_kernels_without_elements_or_without_a_schedule_are_left_alone() -> None:
    for graph in (mlp(0, 40, 70), mlp(4, 40, 0)):
        assert all(group.tie == "barrier" for group in planned(graph, "tile").groups)


def test_values_that_are_too_long_for_the_analysis_are_left_alone() -> None:
    graph = Graph("long")
    graph.outputs = [graph.emit("tanh", graph.emit("exp", operand(graph, "x", 1 << 24)))]
    plan = make_plan(graph, PassContext(GPU, {"planner": "none", "sync": "tile"}))
    assert len(plan.groups) == 2
    reason = next(refusal.reason for refusal in plan.refusals if refusal.rule == "sync.part")
    assert reason.startswith("%exp is too long for an analysis of")


def test_a_plan_survives_its_json() -> None:
    plan = planned(mlp(70, 40, 130), "row")
    assert StitchPlan.from_json(plan.to_json()) == plan


# -- chains that have kernels in common, and the order of tiles --------------------------------------------------------


def mlps(rows: int, *widths: int) -> Graph:
    """GEMMs one after the other, with so many columns."""
    graph = Graph("mlps")
    x = operand(graph, "x", rows, widths[0], dtype="float16")
    for number, (before, after) in enumerate(pairwise(widths)):
        x = graph.emit("matmul", x, operand(graph, f"w{number}", before, after, dtype="float16"))
    graph.outputs = [x]
    return graph


def test_of_chains_with_a_kernel_in_common_the_one_that_saves_most_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first edge of three saves 2 %, the second one much more, all of them together less."""
    graph = mlps(1280, 4096, 6144, 6144, 6144)
    names = [group.name for group in planned(graph).groups]
    saved = {(0, 1): 0.97, (1, 2): 0.8, (2, 3): 0.9, (0, 1, 2): 0.99, (1, 2, 3): 0.99}
    graph_names = {name: number for number, name in enumerate(names)}
    real = Chooser.tied

    def tied(self: Chooser, chain: Sequence[str], form: str = "tickets") -> TiedGroup | WhyNot:
        found = real(self, chain, form)
        assert isinstance(found, TiedGroup), found
        share = saved.get(tuple(graph_names.get(name, -1) for name in chain), 1.0)
        return TiedGroup(found.group, share * sum(self._alone_us(name) for name in chain))

    monkeypatch.setattr(Chooser, "tied", tied)
    plan = planned(graph, "auto/tickets")
    chains = [[part.name for part in group.parts] for group in plan.groups if group.stages]
    assert chains == [names[1:3]]


@pytest.mark.parametrize("rows", [768, 1536])
def test_rows_of_tiles_that_others_wait_for_are_complete_sooner(rows: int) -> None:
    """Eight rows together, column after column, are complete at the end only."""
    hopper = TargetInfo("cuda", device="H100", architectures=("sm_90a",))
    graph = mlp(rows, *GPT3, "float16")
    plan = planned(graph, "auto", hopper)
    (group,) = plan.groups
    first, last = (part.schedule for part in group.parts)
    assert isinstance(first, GemmSchedule) and isinstance(last, GemmSchedule)
    assert first.tile_rows < last.tile_rows
    assert total_us(graph, plan) < 0.95 * total_us(graph, planned(graph, target=hopper))


def test_rows_stay_together_where_memory_would_take_longer() -> None:
    """Weights of 2 GB, which each group of rows reads anew."""
    graph = mlp(1024, 32768, 32768, "float16")
    group = planned(graph).groups[0]
    assert isinstance(group.schedule, GemmSchedule) and group.schedule.tile_rows == 8
    nodes = {node.name: node for node in graph.nodes}
    (device,) = (device_of(GPU),)
    assert isinstance(device, Device)
    assert rows_sooner(nodes, group, device, 500.0) == group
    sooner = rows_sooner(nodes, group, device, 1e6).schedule
    assert isinstance(sooner, GemmSchedule) and sooner.tile_rows == 1


def test_explain_says_what_each_edge_brings() -> None:
    graph = mlp(1280, *GPT3, "float16")
    (kernel,) = explain_plan(graph, planned(graph, "auto"))["kernels"]
    (edge,) = kernel["tiles"]
    assert edge["waves"] > edge["waves_together"] and edge["saved_us"] > 0
    plan = planned(mlp(2304, *GPT3, "float16"), "auto")
    refusal = next(refusal for refusal in plan.refusals if refusal.rule == "sync.gain")
    assert refusal.numbers["waves"] >= refusal.numbers["waves_together"]
