"""The search for schedules: what the model predicts gets no longer, and time and interrupts end it with what it has."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from tests.models import transformer
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel, Prediction
from tilestitch.passes import PassContext, StitchPlan, check_plan, make_plan, run_pipeline
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule import search

TARGET = TargetInfo("cpu", 1, isa="avx512")


@dataclass
class Flat:
    """A model to which every row of a tile, or of a task, costs a twentieth, up to twenty."""

    interrupts_after: int = 10**9
    asked: list[int] = field(default_factory=list)
    judges_schedules: Mapping[str, float] = field(
        default_factory=lambda: dict.fromkeys(("cpu_gemm", "cpu_rows", "cpu_loops", "cpu_attention"), 0.1)
    )
    name: ClassVar[str] = "flat"

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        self.asked.append(len(batch))
        if len(self.asked) > self.interrupts_after:
            raise KeyboardInterrupt
        return [Prediction(us := self.us(kernel), us, us) for kernel in batch]

    def us(self, kernel: KernelFacts) -> float:
        choices = dict(zip(*kernel.parts[0].choices, strict=True))
        return 100.0 * (1 + min(20, choices.get("schedule.rows", 0)) / 20)


def graph() -> Graph:
    return run_pipeline(import_model(transformer(hidden=64, sequence=33)).graph, PassContext(TARGET))


def planned(graph: Graph, model: LatencyModel, budget_s: float | None = None) -> StitchPlan:
    plan = make_plan(graph, PassContext(TARGET, {"plan_budget_s": budget_s}, cost_model=model))
    check_plan(plan, graph)
    return plan


def schedules(plan: StitchPlan, template: str) -> list[object]:
    return [g.schedule for g in plan.groups if g.schedule is not None and g.schedule.template == template]


def total_us(graph: Graph, plan: StitchPlan) -> float:
    from tilestitch.passes.fusion.cost.profit import group_facts

    nodes = {node.name: node for node in graph.nodes}
    return sum(Flat().us(group_facts(nodes, group, TARGET)) for group in plan.groups)


def remarks(plan: StitchPlan) -> list[str]:
    return [str(refusal) for refusal in plan.refusals if refusal.rule == "schedule.search"]


def test_schedules_that_are_predicted_to_be_faster_are_chosen() -> None:
    made = graph()
    plan, rules = planned(made, Flat()), planned(made, AnalyticalModel())
    assert total_us(made, plan) < total_us(made, rules)
    assert not remarks(plan)


def test_schedules_of_templates_that_the_model_does_not_judge_stay() -> None:
    made = graph()
    plan, rules = planned(made, Flat(judges_schedules={"cpu_gemm": 0.1})), planned(made, AnalyticalModel())
    changed = {a.schedule.template for a, b in zip(plan.groups, rules.groups, strict=True) if a.schedule != b.schedule}
    assert changed == {"cpu_gemm"}


def test_a_schedule_must_promise_as_much_as_makes_it_seldom_slower() -> None:
    made = graph()
    rules, bold, shy = (
        schedules(planned(made, model), "cpu_gemm")
        for model in (AnalyticalModel(), Flat(), Flat(judges_schedules={"cpu_gemm": 0.9}))
    )
    assert shy == rules != bold


def test_without_time_the_rules_schedules_stay_and_it_is_said() -> None:
    made = graph()
    plan, rules = planned(made, Flat(), budget_s=0.0), planned(made, AnalyticalModel())
    assert [group.schedule for group in plan.groups] == [group.schedule for group in rules.groups]
    assert any("the budget ended the search" in said for said in remarks(plan))


def test_a_slow_clock_gives_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    made = graph()
    plan, slow = planned(made, Flat()), itertools.count(step=3600)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(slow)))
    assert planned(made, Flat()) == plan
    assert planned(made, Flat(), budget_s=60.0) != plan


def test_so_many_schedules_are_looked_at_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    made = graph()
    whole = planned(made, Flat())
    monkeypatch.setattr(search, "WORK", 40)
    plan = planned(made, Flat())
    assert plan == planned(made, Flat()) and total_us(made, plan) > total_us(made, whole)
    assert ["--plan-budget" in said for said in remarks(plan)] == [True]


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_an_interrupt_keeps_what_was_found(part: float) -> None:
    """Whatever part of the search was done."""
    made, rules, whole = graph(), Flat(), Flat()
    planned(made, rules, budget_s=0.0)
    planned(made, whole)
    asked = len(rules.asked) + part * (len(whole.asked) - len(rules.asked))
    plan = planned(made, Flat(interrupts_after=int(asked)))
    assert any("an interrupt ended the search" in said for said in remarks(plan))


def test_a_model_that_knows_nothing_of_schedules_is_not_asked() -> None:
    made = graph()
    assert planned(made, AnalyticalModel(), 0.0).groups == planned(made, AnalyticalModel(), 10.0).groups
