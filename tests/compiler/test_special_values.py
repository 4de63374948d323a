"""NaN, infinities, zeros and extreme integers next to constants: nothing is folded that numpy would not fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import emulated
from tests.compiled import assert_close, compile_graph
from tests.tolerances import KERNELS
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.runtime import load

NAN, INF = float("nan"), float("inf")
NUMBERS = np.array([0.0, -0.0, 1, -1, INF, -INF, NAN, 3.5, -2.5, 0.5, 1e-40, 1e38, -1e38, 2, -3, 7], np.float32)
HALVES = np.array([0.0, -0.0, 1, -1, INF, -INF, NAN, 3.5, -2.5, 0.5, 6e-8, 6e4, -6e4, 2, -3, 7], np.float16)
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 3.0, INF, -INF, NAN)
TARGETS: dict[str, tuple[Callable[[Graph], bytes], str]] = {
    "cpu": (compile_graph, "cpu"),
    "cuda": (emulated, "emulator"),
}


def agree(target: str, graph: Graph, feeds: dict[str, np.ndarray], tolerance: float = 0.0) -> None:
    """Every output of the compiled graph is numpy's, infinities and NaNs included."""
    with np.errstate(all="ignore"):
        expected = evaluate(graph, feeds)
    compiler, device = TARGETS[target]
    with load(compiler(graph), device=device) as module:
        results = list(module.run(feeds).values())
    for value, actual, wanted in zip(graph.outputs, results, expected, strict=True):
        node = value.producer
        try:
            assert_close(actual, wanted, tolerance)
        except AssertionError as error:
            operands = [v.data.tolist() if v.data is not None else v.name for v in node.inputs] if node else []
            raise AssertionError(f"{node.op if node else value.name} of {operands}: {error}") from error


def graph_of(array: np.ndarray) -> tuple[Graph, Value]:
    graph = Graph("special")
    return graph, graph.add_input("x", TensorType(array.dtype.name, array.shape))


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("x", [NUMBERS, HALVES], ids=["float32", "float16"])
def test_arithmetic_with_special_constants(target: str, x: np.ndarray) -> None:
    graph, value = graph_of(x)
    for op in ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "less", "less_equal", "equal"):
        for number in CONSTANTS:
            constant = graph.constant(np.asarray(number, x.dtype))
            graph.outputs = [*graph.outputs, graph.emit(op, value, constant, origins=[op])]
            graph.outputs = [*graph.outputs, graph.emit(op, constant, value, origins=[op])]
        graph.outputs = [*graph.outputs, graph.emit(op, value, value, origins=[op])]
    agree(target, graph, {"x": x}, KERNELS[x.dtype.name])


@pytest.mark.parametrize("target", list(TARGETS))
def test_zero_times_what_is_not_finite_inside_fused_kernels(target: str) -> None:
    x = np.random.default_rng(0).uniform(-2, 2, (4, 4)).astype(np.float32)
    x[0, 0], x[1, 1], x[2, 2] = NAN, INF, -INF
    graph, value = graph_of(x)

    def emit(op: str, *operands: Any, **attrs: Any) -> Value:
        values = [v if isinstance(v, Value) else graph.constant(np.asarray(v, np.float32)) for v in operands]
        return graph.emit(op, *values, origins=[op], **attrs)

    exponentials = emit("exp", emit("sub", value, emit("reduce_max", value, axes=(1,), keepdims=True)))
    softmax = emit("div", exponentials, emit("reduce_sum", exponentials, axes=(1,), keepdims=True))
    padded = emit("pad", value, before=(1, 0), after=(0, 0), mode="constant")
    graph.outputs = [
        emit("mul", softmax, 0.0),
        emit("reduce_sum", emit("mul", value, [0.0] * 4), axes=(1,), keepdims=False),
        emit("matmul", value, np.zeros((4, 3))),
        emit("matmul", emit("slice", value, starts=(0, 0), steps=(1, 1), sizes=(4, 1)), np.zeros((1, 1))),
        emit("div", value, [0.0, -0.0, 0.0, -0.0]),
        emit("mul", padded, INF),
        emit("select", emit("less", value, 0.0), 1.0, emit("select", emit("less_equal", 0.0, value), 2.0, 3.0)),
        emit("logical_not", emit("less", value, 0.0)),
    ]
    agree(target, graph, {"x": x}, KERNELS[x.dtype.name])


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integer_constants_that_overflow_next_to_variables(target: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    extremes = (4, limits.max, limits.min, 1 << (limits.bits - 2))
    x = np.array([1, 2, limits.max, limits.min], dtype)
    graph, value = graph_of(x)
    for first in extremes:
        joined = graph.emit("concat", graph.constant(np.array([first], dtype)), value, axis=0, origins=["Concat"])
        for op in ("add", "sub", "mul", "div", "mod", "pow", "shift_left", "less"):
            for number in (0, 5, *extremes[1:]):
                constant = graph.constant(np.array([number], dtype))
                graph.outputs = [*graph.outputs, graph.emit(op, joined, constant, origins=[op])]
    agree(target, graph, {"x": x})


@pytest.mark.parametrize("target", list(TARGETS))
def test_chains_of_constants_overflow_where_each_step_does(target: str) -> None:
    graph, value = graph_of(NUMBERS)
    for factors in ((1e30, 1e30, 1e-30, 1e-30), (1e-30, 1e-30, 1e30, 1e30), (2.0, 4.0, 8.0), (0.5, 3.0), (1e20, 1e-41)):
        result = value
        for factor in factors:
            result = graph.emit("mul", result, graph.constant(np.float32(factor)), origins=["Mul"])
        graph.outputs = [*graph.outputs, result]
    rounded = graph.emit("add", value, graph.constant(np.float32(12582912.0)), origins=["Add"])
    graph.outputs = [
        *graph.outputs,
        graph.emit("add", rounded, graph.constant(np.float32(-12582912.0)), origins=["Add"]),
    ]
    agree(target, graph, {"x": NUMBERS}, 1e-6)


@pytest.mark.parametrize("target", list(TARGETS))
def test_the_first_of_halves_that_round_to_the_same_is_the_largest(target: str) -> None:
    ones, tiny = np.ones((3, 8), np.float16), np.full((3, 8), 1e-5, np.float16)
    graph = Graph("ties")
    a, b = (graph.add_input(name, TensorType("float16", (3, 8))) for name in "ab")
    below = graph.emit("concat", graph.emit("sub", a, b, origins=["Sub"]), a, axis=1, origins=["Concat"])
    for last in (False, True):
        found = graph.emit("arg_max", below, axis=1, keepdims=False, select_last=last, origins=["ArgMax"])
        graph.outputs = [*graph.outputs, found]
    agree(target, graph, {"a": ones, "b": tiny})
