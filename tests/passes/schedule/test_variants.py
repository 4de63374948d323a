"""Schedules one step from a given one: legal, and each computes the same."""

from __future__ import annotations

import pytest

from tests.codegen.test_obeyed_on_cpus import joined, softmax, turned
from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, make_plan
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedule_check import why_not
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.schedule.variants import variants


@pytest.mark.parametrize("make", [softmax, turned, joined])
def test_variants_differ_in_one_choice_and_are_legal(make: type) -> None:
    graph: Graph = make()
    (group,) = make_plan(graph, PassContext()).groups
    view = look_up({node.name: node for node in graph.nodes}, group)
    roles = roles_of(view.nodes, view.outputs, view.name)
    assert isinstance(roles, Roles) and group.schedule is not None
    found = variants(view, group.kind, roles, group.schedule)
    assert found and group.schedule not in found and len(set(found)) == len(found)
    for other in found:
        assert why_not(view, group.kind, roles, other) is None
        names = [f for f in vars(other) if getattr(other, f) != getattr(group.schedule, f)]
        assert len(names) == 1
