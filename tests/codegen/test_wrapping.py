"""Integer arithmetic is modulo 2**bits, whatever LLVM could conclude if it were not."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.compiled import run_graph
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.evaluate import evaluate

STEPS = [("add", 7), ("add", -3), ("mul", -3), ("mul", 5), ("sub", 4), ("sub", -4)]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint32", "uint64"])
def test_extreme_numbers(dtype: str) -> None:
    limits = np.iinfo(dtype)
    middle = 1 << (limits.bits // 2)
    numbers = np.array([0, 1, 3, 7, limits.max, limits.min, limits.max // 2 + 1, middle, middle - 1, middle + 5], dtype)
    a, b = (np.array(side, dtype) for side in zip(*product(numbers, numbers)))
    graph = Graph("pairs")
    x, y = (graph.add_input(name, TensorType(dtype, a.shape)) for name in "xy")
    added, taken, multiplied = (graph.emit(op, x, y) for op in ("add", "sub", "mul"))
    graph.outputs = [added, taken, multiplied, graph.emit("mul", added, taken), graph.emit("neg", multiplied)]
    with np.errstate(all="ignore"):
        expected = evaluate(graph, {"x": a, "y": b})
    for result, wanted in zip(run_graph(graph, {"x": a, "y": b}), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_chains_with_constants(dtype: str) -> None:
    graph = Graph("chains")
    x = graph.add_input("x", TensorType(dtype, (5,)))

    def step(value: Value, op: str, number: int) -> Value:
        return graph.emit(op, value, graph.constant(np.full((), number, dtype)))

    graph.outputs = [step(step(x, *first), *second) for first, second in product(STEPS, STEPS)]
    feeds = {"x": np.array([3, -5, 0, 1, 100], dtype)}
    for result, wanted in zip(run_graph(graph, feeds, pipeline=""), evaluate(graph, feeds), strict=True):
        np.testing.assert_array_equal(result, wanted)
