"""How often a kernel computes each of its values."""

from __future__ import annotations

import numpy as np
import pytest

from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.schedule.evaluations import evaluations


def moved(graph: Graph, value: Value, how: str) -> Value:
    indices = graph.constant(np.arange(7)[::-1])
    match how:
        case "gather":
            return graph.emit("gather", value, indices, axis=0)
        case "gather_elements":
            return graph.emit("gather_elements", value, indices, axis=0)
        case "pad":
            part = graph.emit("slice", value, starts=(0,), steps=(1,), sizes=(6,))
            return graph.emit("pad", part, before=(1,), after=(0,), mode="edge")
    return graph.emit("tanh", value)


@pytest.mark.parametrize(("how", "times"), [("gather", 2), ("gather_elements", 2), ("pad", 2), ("tanh", 1)])
def test_what_is_read_in_place_and_moved_is_computed_for_both_though_shapes_are_equal(how: str, times: int) -> None:
    graph = Graph("moved")
    value = graph.emit("exp", graph.add_input("x", TensorType("float32", (7,))))
    result = graph.emit("add", value, moved(graph, value, how))
    roles = roles_of(list(graph.nodes), [result])
    assert isinstance(roles, Roles)
    assert evaluations(list(graph.nodes), [result], roles)[value] == 7 * times
