"""Which groups are so alike that they share a kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tilestitch.codegen.signature import signature
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.compiler.ir.types import TensorType
from tilestitch.passes.contract import PassContext
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan

TEXT = """graph @main[SYMBOLS](%x: float32[n,4], %u: float32[m,4]) -> (%y) {
  %y = exp(%x) : float32[n,4]
}"""


def key(symbols: str) -> tuple[object, ...]:
    graph = parse_graph(TEXT.replace("SYMBOLS", symbols))
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2, isa="avx512")))
    (group,) = plan.groups
    return signature(graph, group).key


@pytest.mark.parametrize("other", ["m=1..9, n=1..9", "n=1..9, m=2..9", "n=0.or.1..9, m=1..9"])
def test_kernels_find_symbols_by_their_place_so_graphs_with_others_share_none(other: str) -> None:
    assert key("n=1..9, m=1..9") == key("n=1..9, m=1..9")
    assert key("n=1..9, m=1..9") != key(other)


def keys(op: str, constants: list[np.ndarray], **attrs: object) -> set[object]:
    """Those of kernels that differ in a constant operand."""
    graph = Graph("main")
    x = graph.add_input("x", TensorType("uint8", (2, 4)))
    graph.outputs = [graph.emit(op, x, graph.constant(data), **attrs) for data in constants]
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 1, isa="avx512", dot="vpdpbusd"), {"planner": "none"}))
    assert len(plan.groups) == len(constants)
    return {signature(graph, group).key for group in plan.groups}


def test_layers_of_integers_share_a_kernel_whatever_their_weights_are() -> None:
    weights = [np.full((4, 8), number, np.int8) for number in range(2)]
    assert len(keys("matmul", weights, out_dtype="int32")) == 1


def test_indices_that_are_constants_are_part_of_a_kernel() -> None:
    """It may leave out the check that they are in range."""
    assert len(keys("gather", [np.array([0, number]) for number in (1, 7)], axis=0)) == 2


def test_kernels_that_know_indices_to_be_places_are_shared_with_none_that_do_not() -> None:
    def gathered(least: int) -> object:
        graph = Graph("main")
        x, i = graph.add_input("x", TensorType("uint8", (8, 4))), graph.add_input("i", TensorType("int64", (3,)))
        above = graph.emit("maximum", i, graph.constant(np.int64(least)))
        graph.outputs = [graph.emit("gather", x, graph.emit("minimum", above, graph.constant(np.int64(7))), axis=0)]
        plan = make_plan(graph, PassContext(TargetInfo("cpu", 1), {"planner": "none"}))
        return signature(graph, next(group for group in plan.groups if "gather" in group.name)).key

    assert gathered(0) != gathered(-1)
