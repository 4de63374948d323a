"""Which values that are quantised and dequantised in one kernel stay floats: a decision of the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes import PassContext, PlanError, StitchPlan, check_plan, explain_plan, make_plan
from tilestitch.passes.plan.difference import differences
from tilestitch.passes.plan.kept_floats import with_floats
from tilestitch.passes.plan.target import TargetInfo

CONTEXT = PassContext(TargetInfo("cpu", 1))


def requantised(low: int = 0, less: int = 100, bounded: bool = True) -> Graph:
    """Integers that are scaled, quantised with the zero point 100, stored, and dequantised for a root."""
    graph = Graph("g")
    x = graph.add_input("x", TensorType("int32" if bounded else "float32", (64,)))
    counted = graph.emit("cast", x, to="float32") if bounded else x
    whole = graph.emit("round", graph.emit("mul", counted, graph.constant(np.float32(0.25))))
    moved = graph.emit("add", graph.emit("cast", whole, to="int32"), graph.constant(np.int32(100)))
    raised = graph.emit("maximum", moved, graph.constant(np.int32(low)))
    q = graph.emit("cast", graph.emit("minimum", raised, graph.constant(np.int32(255))), to="uint8")
    steps = graph.emit("sub", graph.emit("cast", q, to="int32"), graph.constant(np.int32(less)))
    graph.outputs = [q, graph.emit("sqrt", graph.emit("abs", graph.emit("cast", steps, to="float32")))]
    return graph


def kept(graph: Graph) -> str:
    (less,) = (node.output for node in graph.nodes if node.op == "sub")
    return next(node.output.name for node in less.users)


def test_a_kernel_that_rounds_and_dequantises_keeps_the_float() -> None:
    graph = requantised()
    plan = make_plan(graph, CONTEXT)
    (group,) = plan.groups
    assert group.floats == (kept(graph),)
    assert StitchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    (kernel,) = explain_plan(graph, plan)["kernels"]
    assert kernel["floats"] == [kept(graph)]


def test_bytes_that_another_kernel_stores_are_read() -> None:
    graph = requantised()
    assert not any(group.floats for group in make_plan(graph, replace(CONTEXT, options={"planner": "none"})).groups)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (requantised(low=-1), "not known to be kept in the range of uint8"),
        (requantised(less=99), "another zero point"),
        (requantised(bounded=False), "may be NaN, or beyond"),
    ],
)
def test_what_integers_would_make_of_it_differently_is_no_float(graph: Graph, reason: str) -> None:
    plan = make_plan(graph, CONTEXT)
    assert not any(group.floats for group in plan.groups)
    with pytest.raises(PlanError, match=reason):
        check_plan(with_group(plan, floats=[kept(graph)]), graph)


def with_group(plan: StitchPlan, **changes: Any) -> StitchPlan:
    data = plan.to_json()
    data["groups"][0].update(changes)
    return StitchPlan.from_json(data)


def test_a_plan_may_be_edited_not_to_keep_it() -> None:
    graph = requantised()
    plan = make_plan(graph, CONTEXT)
    edited = with_group(plan, floats=[])
    check_plan(edited, graph)
    assert [path for path, *_ in differences(plan, edited)] == [f"groups[{plan.groups[0].name}].floats"]


@pytest.mark.parametrize("name", ["nothing", "x"])
def test_a_plan_that_keeps_what_a_kernel_does_not_make_is_refused(name: str) -> None:
    graph = requantised()
    with pytest.raises(PlanError, match=f"it cannot keep %{name} as a float: none of its nodes makes it"):
        check_plan(with_group(make_plan(graph, CONTEXT), floats=[name]), graph)


def test_a_group_keeps_all_that_it_may() -> None:
    graph = requantised()
    (group,) = make_plan(graph, CONTEXT).groups
    nodes = {node.name: node for node in graph.nodes}
    assert with_floats(nodes, replace(group, floats=())) == group
