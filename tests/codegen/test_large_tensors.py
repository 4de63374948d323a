"""Tensors of 2**31 elements and more: positions in them are 64-bit integers, on both targets.

Kernels read few elements of large tensors that are never stored, so that no memory is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import emulated
from tests.compiled import compile_graph
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.runtime import load

ROWS, COLUMNS = 1 << 16, (1 << 15) + 8
TARGETS: dict[str, tuple[Callable[[Graph], bytes], str]] = {
    "cpu": (compile_graph, "cpu"),
    "cuda": (emulated, "emulator"),
}

OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "copy": ("neg", {}),
    "transpose": ("transpose", {"perm": (1, 0)}),
    "pad": ("pad", {"before": (1, 1), "after": (1, 1), "mode": "constant"}),
    "reflect": ("pad", {"before": (1, 1), "after": (1, 1), "mode": "reflect"}),
    "reverse": ("slice", {"starts": (ROWS - 1, COLUMNS - 1), "steps": (-1, -1), "sizes": (ROWS, COLUMNS)}),
    "maximum": ("reduce_max", {"axes": (0,), "keepdims": False}),
    "position of the maximum": ("arg_max", {"axis": 0, "keepdims": False, "select_last": False}),
    "sum": ("reduce_sum", {"axes": (0, 1), "keepdims": False}),
    "running sum": ("cumulative", {"axis": 0, "reducer": "sum", "exclusive": False, "reverse": False}),
}


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (1, ROWS * COLUMNS)], ids=["rows", "line"])
def test_operators_compile(name: str, target: str, shape: tuple[int, int]) -> None:
    op, attrs = OPERATORS[name]
    if shape[0] == 1 and (op in ("slice", "pad")):
        attrs = {**attrs, **({"starts": (0, shape[1] - 1), "sizes": shape} if op == "slice" else {})}
        attrs = {**attrs, **({"before": (0, 1), "after": (0, 1)} if op == "pad" else {})}
    graph = Graph("large")
    graph.outputs = [graph.emit(op, graph.add_input("x", TensorType("int32", shape)), origins=["Op"], **attrs)]
    assert TARGETS[target][0](graph)


@pytest.mark.parametrize("target", list(TARGETS))
def test_softmax_along_either_axis_compiles(target: str) -> None:
    for axis in (0, 1):
        graph = Graph("large")
        x = graph.add_input("x", TensorType("float32", (ROWS, COLUMNS)))
        largest = graph.emit("reduce_max", x, axes=(axis,), keepdims=True, origins=["Softmax"])
        shifted = graph.emit("exp", graph.emit("sub", x, largest, origins=["Softmax"]), origins=["Softmax"])
        total = graph.emit("reduce_sum", shifted, axes=(axis,), keepdims=True, origins=["Softmax"])
        graph.outputs = [graph.emit("div", shifted, total, origins=["Softmax"])]
        assert TARGETS[target][0](graph)


def _picked(graph: Graph, value: Value) -> None:
    """Two rows of a large value by run-time indices, which no rewrite moves before what makes it."""
    rows = graph.add_input("rows", TensorType("int32", (2,)))
    graph.outputs = [graph.emit("gather", value, rows, axis=0, origins=["Gather"])]


@pytest.mark.parametrize("target", list(TARGETS))
def test_elements_after_the_first_two_thousand_million_are_found(target: str) -> None:
    """A flat position of more than 2**31 in a reshaped tensor leads back to the right row and column."""
    graph = Graph("large")
    column = graph.add_input("column", TensorType("int32", (ROWS, 1)))
    row = graph.add_input("row", TensorType("int32", (1, COLUMNS)))
    table = graph.emit("add", column, row, origins=["Add"])
    _picked(graph, graph.emit("reshape", table, shape=(ROWS * COLUMNS // 16, 16), origins=["Reshape"]))
    places = np.array([5, ROWS * COLUMNS // 16 - 1], np.int32)
    columns = np.arange(ROWS, dtype=np.int32)[:, None] * 3
    line = np.arange(COLUMNS, dtype=np.int32)[None, :]
    flat = places[:, None].astype(np.int64) * 16 + np.arange(16)
    expected = (flat // COLUMNS * 3 + flat % COLUMNS).astype(np.int32)
    compiler, device = TARGETS[target]
    with load(compiler(graph), device=device) as module:
        (result,) = module.run({"column": columns, "row": line, "rows": places}).values()
    np.testing.assert_array_equal(result, expected)
