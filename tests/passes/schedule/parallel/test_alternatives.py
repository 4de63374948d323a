"""Packed kernels, kernels side by side, and tiles for fewer multiprocessors, by one makespan."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.passes.schedule.parallel.test_arrange import A100, random_graph
from tests.passes.simulate import simulate
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.laws.makespan import makespan_us
from tilestitch.passes import PassContext, StitchPlan, make_plan, planner
from tilestitch.passes.fusion.rules.combining import Packing
from tilestitch.passes.plan_check import check_plan
from tilestitch.passes.schedule.makespan import spans_of
from tilestitch.passes.schedule.parallel.alternatives import Alternatives
from tilestitch.passes.schedule.parallel.arrange import works_of_plan


def chain_beside_a_long_kernel() -> Graph:
    """A short kernel that a chain of matmuls begins with, and a long one that nothing waits for."""
    graph = Graph("uneven")
    x = graph.add_input("x", TensorType("float32", (64, 64)))
    long = graph.add_input("long", TensorType("float32", (256, 32768)))
    y = graph.emit("reduce_max", x, axes=(1,), keepdims=True)
    y = graph.emit("mul", graph.emit("reshape", y, shape=(1, 64)), x)
    for number in range(6):
        y = matmul(graph, y, 64, number)
    graph.outputs = [y, graph.emit("reduce_max", long, axes=(1,), keepdims=True)]
    return graph


def matmul(graph: Graph, x: Value, columns: int, seed: int) -> Value:
    weights = np.random.default_rng(seed).normal(0, 0.1, (x.shape[-1], columns)).astype(np.float32)
    return graph.emit("matmul", x, graph.constant(weights))


def experts(count: int, tokens: int = 48, width: int = 256, hidden: int = 512) -> Graph:
    graph = Graph("experts")
    x = graph.add_input("x", TensorType("float32", (tokens, width)))
    ends = []
    for number in range(count):
        mine = graph.emit("tanh", matmul(graph, x, hidden, 2 * number))
        ends.append(matmul(graph, mine, width, 2 * number + 1))
    total = ends[0]
    for other in ends[1:]:
        total = graph.emit("add", total, other)
    graph.outputs = [total]
    return graph


def planned(graph: Graph, *, packs: bool = False) -> StitchPlan:
    rules = (Packing(forced=True),) if packs else ()
    plan = make_plan(graph, PassContext(A100, {"planner": "none" if packs else "stitch"}, rules=rules))
    check_plan(plan, graph)
    return plan


def as_fused(monkeypatch: pytest.MonkeyPatch, graph: Graph, *, packs: bool = False) -> StitchPlan:
    """The plan with all packs, and with tiles for the whole GPU."""
    with monkeypatch.context() as patch:
        patch.setattr(Alternatives, "best", lambda self, groups: groups)
        return planned(graph, packs=packs)


def predicted_us(plan: StitchPlan, graph: Graph) -> float:
    return makespan_us(spans_of(plan, works_of_plan(plan, graph, AnalyticalModel())))


def test_a_pack_that_keeps_a_chain_waiting_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain_beside_a_long_kernel()
    packed, apart = as_fused(monkeypatch, graph, packs=True), planned(graph, packs=True)
    packs = [group.name for group in packed.groups if group.stages]
    assert packs and not any(group.stages for group in apart.groups)
    assert predicted_us(apart, graph) < 0.95 * predicted_us(packed, graph)
    said = [refusal for refusal in apart.refusals if refusal.rule == "schedule.beside"]
    assert [refusal.subject for refusal in said] == packs
    assert said[0].numbers["apart_us"] < said[0].numbers["packed_us"]


def test_tiles_for_fewer_multiprocessors_are_taken_where_branches_end_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = experts(6, tokens=64, width=256, hidden=2048)
    before, after = as_fused(monkeypatch, graph), planned(graph)
    assert predicted_us(after, graph) < 0.99 * predicted_us(before, graph)
    schedule = {group.name: group.schedule for group in before.groups}
    assert any(schedule[group.name] != group.schedule for group in after.groups)


@pytest.mark.parametrize(
    "make", [chain_beside_a_long_kernel, partial(experts, 4), *(partial(random_graph, n) for n in range(4))]
)
def test_no_plan_is_predicted_to_be_slower_and_all_compute_the_same(
    monkeypatch: pytest.MonkeyPatch, make: partial[Graph]
) -> None:
    graph = make()
    for packs in (False, True):
        before, after = as_fused(monkeypatch, graph, packs=packs), planned(graph, packs=packs)
        assert predicted_us(after, graph) <= predicted_us(before, graph)
        assert planned(graph, packs=packs) == after
        if graph.name == "uneven":
            continue  # larger than is quickly evaluated
        rng = np.random.default_rng(0)
        feeds = {value.name: rng.normal(0, 1, value.shape).astype(np.float32) for value in graph.inputs}
        for found, want in zip(simulate(after, graph, dict(feeds)), evaluate(graph, feeds), strict=True):
            np.testing.assert_array_equal(found, want)


def test_without_time_the_given_kernels_stay() -> None:
    graph = experts(4)
    plan = planned(graph)
    none = Alternatives(graph, plan.target, AnalyticalModel(), plan.buffers.aliases, {}, effort=0)
    assert none.best(plan.groups) == plan.groups
    assert replace(none, effort=1000).best(()) == ()
    assert planner.Alternatives is Alternatives
