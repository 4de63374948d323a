"""The default planner: rules make a first plan, a search with a budget of work looks for a better one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import pytest
from hypothesis import given, settings

from benchmarks.replay.catalogue import group_norm
from tests.networks import residual_block
from tests.open_graphs import open_models
from tests.open_models.fixture import OpenFixture
from tests.passes.helpers import assert_close
from tests.passes.simulate import simulate
from tests.strategies import feeds, graphs
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.models import RandomModel
from tilestitch.cost_model.protocol import AnyDevice, Prediction
from tilestitch.passes import (
    PassContext,
    StitchPlan,
    TargetInfo,
    check_plan,
    explain_plan,
    make_plan,
    planner,
    run_pipeline,
)
from tilestitch.passes.fusion.rules import explore
from tilestitch.passes.open import plan as open_plan
from tilestitch.passes.planner import is_better

TARGETS = {
    "cpu": TargetInfo("cpu", 2, isa="avx512"),
    "A100": TargetInfo("cuda", 1, "A100", ("sm_80",)),
    "H200": TargetInfo("cuda", 1, "H200", ("sm_90a",)),
}


def planned(graph: Graph, target: str, **options: Any) -> StitchPlan:
    plan = make_plan(graph, PassContext(TARGETS[target], options))
    check_plan(plan, graph)
    return plan


def predicted_us(graph: Graph, plan: StitchPlan, target: str) -> float:
    found: float = explain_plan(graph, plan, target=TARGETS[target])["prediction"]["total_us"]
    return found


def block() -> Graph:
    graph = import_model(residual_block()).graph
    return run_pipeline(graph, PassContext(TARGETS["H200"]))


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=15)
@given(graph=graphs())
def test_the_plan_is_never_predicted_to_be_slower_than_that_of_the_rules(target: str, graph: Graph) -> None:
    rules, plan = planned(graph, target), planned(graph, target, search=True)
    assert predicted_us(graph, plan, target) <= predicted_us(graph, rules, target)
    assert plan == planned(graph, target, search=True)
    inputs = feeds(graph)
    assert_close(evaluate(graph, inputs), simulate(plan, graph, inputs))


@pytest.mark.parametrize(("module", "symbols", "rows"), [(planner, "", "4"), (open_plan, "[n=1..64]", "n")])
def test_what_a_search_joins_as_the_rules_do_is_planned_once(
    module: Any, symbols: str, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(module, "stitch", lambda *a, stitch=module.stitch, **k: seen.append(a) or stitch(*a, **k))
    graph = parse_graph(f"""graph @g{symbols}(%x: float32[{rows},8], %v: float32[8,8], %w: float32[8,8]) -> (%y) {{
  %h = matmul(%x, %v) : float32[{rows},8]
  %y = matmul(%h, %w) : float32[{rows},8]
}}""")
    plan = planned(graph, "cpu", search=True)
    assert len(plan.groups) == 2 and len(seen) == 1


def test_it_finds_what_no_rule_looks_for() -> None:
    graph = block()
    rules, plan = planned(graph, "H200"), planned(graph, "H200", search=True)
    assert predicted_us(graph, plan, "H200") < 0.9 * predicted_us(graph, rules, "H200")
    assert plan.planner == rules.planner == "stitch"
    assert planned(graph, "H200", plan_budget_s=60.0).groups == plan.groups


@pytest.mark.parametrize("target", TARGETS)
def test_a_search_that_can_find_nothing_is_left_out(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = planner._is_one_kernel
    left_out: list[bool] = []

    @settings(max_examples=20, derandomize=True, database=None)
    @given(graph=graphs(max_nodes=4))
    def compare(graph: Graph) -> None:
        plan = planned(graph, target, search=True)
        monkeypatch.setattr(planner, "_is_one_kernel", lambda *given: left_out.append(judged(*given)))
        assert planned(graph, target, search=True) == plan
        monkeypatch.setattr(planner, "_is_one_kernel", judged)

    compare()
    assert {True, False} == {*left_out}


@pytest.mark.parametrize("options", [{"search": True}, {"planner": "explore"}])
def test_a_slow_clock_gives_the_same_plan(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    graph, slow = block(), itertools.count(step=3600)
    plan = planned(graph, "H200", **options)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(slow)))
    assert planned(graph, "H200", **options) == plan


@dataclass(frozen=True)
class Unsure:
    """What the laws say, by a model that knows how much a plan must promise to be no slower."""

    least_gain: float | None
    name: str = "unsure"

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> Sequence[Prediction]:
        return AnalyticalModel().predict(batch, device)


@dataclass(frozen=True)
class Guesses(RandomModel):
    least_gain: float = 0.0


def test_a_plan_must_promise_as_much_as_the_model_says() -> None:
    graph = run_pipeline(import_model(group_norm()).graph, PassContext(TARGETS["cpu"]))
    rules, plan = planned(graph, "cpu"), planned(graph, "cpu", search=True)
    gain = 1 - predicted_us(graph, plan, "cpu") / predicted_us(graph, rules, "cpu")
    assert gain > 0.05
    context = PassContext(TARGETS["cpu"], cost_model=Unsure(0.0))
    for least in (0.0, gain - 0.01, gain + 0.01):
        assert is_better(plan, rules, graph, PassContext(TARGETS["cpu"]), context, least) == (least < gain)
    unsure = PassContext(TARGETS["cpu"], {"search": True}, cost_model=Unsure(gain + 0.01))
    assert make_plan(graph, unsure) == plan  # by the laws' own search


def test_what_a_model_promises_must_convince_the_laws_too() -> None:
    """Random predictions alone lead to slower plans than the rules' for some seeds; with the laws, for none."""
    graph = run_pipeline(import_model(group_norm()).graph, PassContext(TARGETS["cpu"]))
    rules_us = predicted_us(graph, planned(graph, "cpu"), "cpu")
    misled = 0
    for seed in range(1, 5):
        agreed, alone = (
            make_plan(graph, PassContext(TARGETS["cpu"], {"search": True}, cost_model=model))
            for model in (Guesses(seed), RandomModel(seed))
        )
        assert predicted_us(graph, agreed, "cpu") <= rules_us
        misled += predicted_us(graph, alone, "cpu") > rules_us
    assert misled


def test_without_a_budget_the_plan_is_that_of_the_rules() -> None:
    graph = block()
    rules = planned(graph, "H200")
    assert planned(graph, "H200", plan_budget_s=0.0) == planned(graph, "H200", search=True, plan_budget_s=0.0) == rules


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_an_interrupt_keeps_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    graph, climb, left = block(), explore.climb, [calls]

    def interrupted(*args: Any, **others: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return climb(*args, **others)

    rules = planned(graph, "H200")
    monkeypatch.setattr(explore, "climb", interrupted)
    plan = planned(graph, "H200", search=True)
    if calls:
        assert predicted_us(graph, plan, "H200") < predicted_us(graph, rules, "H200")
        assert any(r.rule == "explore" and "ended" in r.reason for r in plan.refusals)
    else:
        assert plan == rules


def test_an_interrupt_after_the_search_keeps_the_plan_of_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "  %a = exp(%x) : float32[8,9]\n  %y = neg(%a) : float32[8,9]\n"
    graph = parse_graph(f"graph @g(%x: float32[8,9]) -> (%y) {{\n{lines}}}")

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explore.Explore, "search", interrupted)
    plan = planned(graph, "H200", search=True)
    assert [r.rule for r in plan.refusals] == ["search"] and "another run may find one" in plan.refusals[0].reason


# -- open graphs -----------------------------------------------------------------------------------------------------


def opened(model: onnx.ModelProto, target: str) -> Graph:
    """With as many images as one likes."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    graph = import_model(model, ranges={"n": (1, 64)}).graph
    return run_pipeline(graph, PassContext(TARGETS[target]))


def test_open_graphs_are_searched_at_typical_sizes() -> None:
    graph = opened(residual_block(), "H200")
    rules, plan = planned(graph, "H200"), planned(graph, "H200", search=True)
    assert graph.symbols and predicted_us(graph, plan, "H200") < 0.9 * predicted_us(graph, rules, "H200")
    assert planned(graph, "H200", plan_budget_s=0.0, search=True) == rules


@pytest.mark.parametrize("target", ["cpu", "H200"])
@settings(max_examples=8)
@given(fixture=open_models())
def test_the_search_neither_slows_open_graphs_down_nor_leaves_more_to_the_host(
    target: str, fixture: OpenFixture
) -> None:
    graph = run_pipeline(import_model(fixture.model, ranges=fixture.ranges).graph, PassContext(TARGETS[target]))
    rules, plan = planned(graph, target), planned(graph, target, search=True)
    assert predicted_us(graph, plan, target) <= predicted_us(graph, rules, target)
    assert {g.name for g in plan.host_groups} <= {g.name for g in rules.host_groups}
