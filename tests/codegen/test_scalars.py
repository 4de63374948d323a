"""Constants of one element in which groups differ that are equal otherwise: arguments of one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.compiled import assert_close, compile_graph
from tilestitch.codegen.separated import FEWEST_KERNELS
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.program import NativeStep

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.integers(-4, 5, (8, 32)).astype(np.float32)
WEIGHTS = RANDOM.integers(-1, 2, (12, 32, 32)).astype(np.float32)


def quantised(graph: Graph, value: Value, scale: float, zero: int) -> Value:
    """Rounded to uint8, and back, as QDQ models do it."""
    shifted = graph.emit("round", graph.emit("mul", value, graph.constant(np.float32(1 / scale))))
    shifted = graph.emit("add", shifted, graph.constant(np.float32(zero)))
    low = graph.emit("maximum", shifted, graph.constant(np.float32(0)))
    code = graph.emit("cast", graph.emit("minimum", low, graph.constant(np.float32(255))), to="uint8")
    steps = graph.emit("sub", graph.emit("cast", code, to="int32"), graph.constant(np.int32(zero)))
    return graph.emit("mul", graph.emit("cast", steps, to="float32"), graph.constant(np.float32(scale)))


def expected(x: np.ndarray, scale: float, zero: int) -> np.ndarray:
    codes = np.clip(np.round(x * np.float32(1 / scale)) + np.float32(zero), 0, 255)
    return (codes - zero).astype(np.float32) * np.float32(scale)


def layers(scales: Sequence[float]) -> Graph:
    """GEMMs one after the other, each with an epilogue that quantises by a scale and a zero point of its own."""
    graph = Graph("g")
    value = graph.add_input("x", TensorType("float32", (8, 32)))
    for i, scale in enumerate(scales):
        value = quantised(graph, graph.emit("matmul", value, graph.constant(WEIGHTS[i])), scale, 100 + i)
    graph.outputs = [value]
    return graph


def symbols(artifact: bytes) -> list[str]:
    steps = [step for program in read_artifact(artifact).programs for step in program.steps]
    return [launch.symbol for step in steps if isinstance(step, NativeStep) for launch in step.launches]


def test_layers_that_differ_in_scales_share_a_kernel() -> None:
    scales = [2.0 ** (i % 5 - 1) for i in range(3 * FEWEST_KERNELS)]  # powers of two: all results are exact
    artifact = compile_graph(layers(scales), pipeline="")
    found = symbols(artifact)
    assert len(found) >= len(scales)
    assert len(set(found)) <= len(found) // 2
    with load(artifact, num_threads=2) as module:
        (result,) = module.run({"x": ROWS}).values()
    value = ROWS
    for i, scale in enumerate(scales):
        value = expected(value @ WEIGHTS[i], scale, 100 + i)
    assert len(np.unique(value)) > 10
    np.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("scales", [[0.25, 0.5, 1.0], [0.25, 0.3, 0.35]])
def test_few_different_scales_stay_in_the_code(scales: list[float]) -> None:
    artifact = read_artifact(compile_graph(layers(scales), pipeline=""))
    shapes = [value.shape for program in artifact.programs for value in program.values]
    assert len(shapes) > len(scales)
    assert () not in shapes


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_a_constant_in_memory_is_what_it_is_in_the_code(op: str, dtype: str) -> None:
    graph = Graph("g")
    constants = np.array([3, 1, 7, 2, 5, 4], dtype)
    x = graph.add_input("x", TensorType(dtype, (6, 40)))
    negative = graph.emit("neg", x)
    graph.outputs = [graph.emit(op, graph.constant(c), negative) for c in constants]
    feed = RANDOM.integers(1, 50, (6, 40)).astype(dtype)
    artifact = compile_graph(graph, planner="none", pipeline="")
    in_memory = [value for value in read_artifact(artifact).programs[0].values if value.shape == ()]
    assert len(in_memory) == (0 if (op, dtype) == ("div", "int32") else len(constants))
    with load(artifact, num_threads=2) as module:
        results = list(module.run({"x": feed}).values())
    numpy_op = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
    for c, result in zip(constants, results, strict=True):
        if op == "div":
            exact = c / -feed.astype(np.float64)
            exact = np.trunc(exact) if dtype == "int32" else exact
            assert_close(result, exact.astype(dtype), 1e-3 if dtype == "float16" else 1e-6)
        else:
            np.testing.assert_array_equal(result, numpy_op[op](c, -feed))
