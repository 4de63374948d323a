"""A plan that is given shows further values: its kernels, launches and what was edited by hand stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.networks import bert
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, PlanError, StitchPlan, TargetInfo, make_plan, run_pipeline
from tilestitch.passes.plan.launches.launch import Edge
from tilestitch.passes.planner import storing

H200 = TargetInfo("cuda", 1, "H200", ("sm_90a",), 132)


@pytest.fixture
def planned() -> tuple[Graph, StitchPlan]:
    context = PassContext(H200)
    graph = run_pipeline(import_model(bert()).graph, context)
    return graph, make_plan(graph, context)


def inner(plan: StitchPlan, graph: Graph) -> str:
    """A value that a kernel stores in the arena."""
    shown = {value.name for value in graph.outputs}
    return next(b.value for b in plan.buffers.buffers if b.value not in shown)


def pairs(plan: StitchPlan) -> set[tuple[int, int]]:
    return {(edge.before, edge.after) for edge in plan.edges or ()}


def test_edges_that_were_added_by_hand_stay(planned: tuple[Graph, StitchPlan]) -> None:
    graph, plan = planned
    last = len(plan.launches or ()) - 1
    assert (0, last) not in pairs(plan)
    edited = replace(plan, edges=(*(plan.edges or ()), Edge(0, last, reason="by hand")))
    found = storing(edited, graph, [inner(plan, graph)])
    assert Edge(0, last, reason="by hand") in (found.edges or ())
    assert found.groups == plan.groups and found.launches == plan.launches


def test_edges_that_only_shared_memory_asked_for_go_with_it(planned: tuple[Graph, StitchPlan]) -> None:
    """A value that is shown has memory of its own: a launch no longer waits until its bytes are free."""
    graph, plan = planned
    shared = [b.value for b in plan.buffers.buffers]
    found = storing(plan, graph, shared)
    assert not any(e.reason.startswith("memory of %") and e.reason[11:] in shared for e in found.edges or ())


def test_what_no_kernel_stores_is_refused(planned: tuple[Graph, StitchPlan]) -> None:
    graph, plan = planned
    with pytest.raises(PlanError, match="no kernel stores nothing_of_that_name"):
        storing(plan, graph, ["nothing_of_that_name"])
