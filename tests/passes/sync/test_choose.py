"""When chains of kernels become one launch: where it is asked for, or predicted to pay; else nothing changes."""

from __future__ import annotations

import pytest

from tests.passes.sync.graphs import mlp, operand
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, check_plan, make_plan
from tilestitch.passes.explain import explain_plan

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
