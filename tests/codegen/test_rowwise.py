"""Row-wise groups: reductions over any axes of any shape, with element-wise work before, between and after."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codegen.kernel_harness import check, cpu_group
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.compiler.ir.graph import Graph, Value
from tilestitch.compiler.ir.types import TensorType, to_numpy_dtype

RNG = np.random.default_rng(0)


def normal(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(to_numpy_dtype(dtype))


def softmax(graph: Graph, x: Value, axis: int) -> Value:
    top = graph.emit("reduce_max", x, axes=(axis,), keepdims=True)
    e = graph.emit("exp", graph.emit("sub", x, top))
    return graph.emit("div", e, graph.emit("reduce_sum", e, axes=(axis,), keepdims=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "shape, axis",
    [
        ((5, 7), 0),
        ((5, 7), 1),
        ((3, 128), 1),
        ((2, 3, 100), 1),
        ((4, 1), 1),
        ((1, 1), 0),
        ((33, 70, 5), 1),
        ((2, 20000), 1),
    ],
)
def test_softmax(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    graph = Graph("softmax")
    graph.outputs = [softmax(graph, graph.add_input("x", TensorType(dtype, shape)), axis)]
    check(graph, {"x": normal(shape, dtype)}, factor=4)


@pytest.mark.parametrize(
    "shape, axes",
    [
        ((4, 768), (1,)),
        ((2, 5, 64), (2,)),
        ((2, 6, 8, 9), (1, 2, 3)),
        ((2, 6, 8, 9), (1,)),
        ((2, 6, 8, 9), (0, 2, 3)),
        ((2, 6, 8, 9), (0, 2)),
        ((7, 3), (1,)),
        ((3, 50), (0,)),
    ],
)
def test_layer_norm_of_a_sum_that_is_stored_too(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    graph = Graph("norm")
    x, residual = (graph.add_input(n, TensorType("float32", shape)) for n in ("x", "residual"))
    small = tuple(d if a in axes else 1 for a, d in enumerate(shape))
    scale, bias = (graph.add_input(n, TensorType("float32", small)) for n in ("scale", "bias"))
    share = graph.constant(np.float32(1 / np.prod([shape[a] for a in axes])))
    total = graph.emit("add", x, residual)
    mean = graph.emit("mul", graph.emit("reduce_sum", total, axes=axes, keepdims=True), share)
    centred = graph.emit("sub", total, mean)
    squares = graph.emit("reduce_sum", graph.emit("mul", centred, centred), axes=axes, keepdims=True)
    deviation = graph.emit(
        "sqrt", graph.emit("add", graph.emit("mul", squares, share), graph.constant(np.float32(1e-5)))
    )
    y = graph.emit("add", graph.emit("mul", graph.emit("div", centred, deviation), scale), bias)
    graph.outputs = [y, total, mean]
    check(
        graph,
        {"x": normal(shape), "residual": -0.5 * normal(shape)[::-1] + 1, "scale": normal(small), "bias": normal(small)},
        factor=5,
    )


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 7, 16, 17, 40]), max_size=4).map(tuple)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shape=SHAPES,
    op=st.sampled_from(["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"]),
    dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool"]),
    keepdims=st.booleans(),
    data=st.data(),
)
def test_reductions(shape: tuple[int, ...], op: str, dtype: str, keepdims: bool, data: st.DataObject) -> None:
    axes = tuple(a for a in range(len(shape)) if data.draw(st.booleans()))
    graph = Graph("reduce")
    x = graph.add_input("x", TensorType(dtype, shape))
    graph.outputs = [graph.emit(op, x, axes=axes, keepdims=keepdims)]
    values = RNG.integers(1, 2, shape) if op == "reduce_prod" else RNG.integers(0, 3, shape)
    check(graph, {"x": values.astype(to_numpy_dtype(dtype))}, factor=4)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
@pytest.mark.parametrize("shape, axes", [((3, 40), (1,)), ((5, 7, 17), (1,)), ((33, 2), (0,)), ((2, 0, 3), (1,))])
def test_bits_that_all_have(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    graph = Graph("and")
    x = graph.add_input("x", TensorType(dtype, shape))
    graph.outputs = [graph.emit("reduce_and", x, axes=axes, keepdims=False)]
    limits = np.iinfo(dtype)
    bits = RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    for _ in range(4):  # or no bit would be left of forty
        bits |= RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    check(graph, {"x": bits})


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shape=st.lists(st.sampled_from([1, 2, 5, 16, 33]), min_size=1, max_size=3).map(tuple),
    op=st.sampled_from(["arg_max", "arg_min"]),
    dtype=st.sampled_from(["float32", "int8", "int64", "float16"]),
    last=st.booleans(),
    keepdims=st.booleans(),
    data=st.data(),
)
def test_positions_of_extremes(
    shape: tuple[int, ...], op: str, dtype: str, last: bool, keepdims: bool, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    graph = Graph("arg")
    x = graph.add_input("x", TensorType(dtype, shape))
    graph.outputs = [graph.emit(op, x, axis=axis, keepdims=keepdims, select_last=last)]
    check(graph, {"x": RNG.integers(0, 4, shape).astype(to_numpy_dtype(dtype))})


def test_nan_wins_every_extreme() -> None:
    x = normal((6, 40))
    x[1, 5] = x[1, 30] = np.nan
    x[2] = -np.inf
    x[3] = np.inf
    for op, attrs in (
        ("reduce_max", {"axes": (1,), "keepdims": False}),
        ("reduce_min", {"axes": (1,), "keepdims": False}),
        ("arg_max", {"axis": 1, "keepdims": False, "select_last": 0}),
        ("arg_min", {"axis": 1, "keepdims": False, "select_last": 1}),
    ):
        graph = Graph(op)
        graph.outputs = [graph.emit(op, graph.add_input("x", TensorType("float32", x.shape)), **attrs)]
        check(graph, {"x": x})


def test_long_sums_stay_accurate() -> None:
    x = np.full((2, 300001), 0.1, np.float32)
    graph = Graph("sum")
    graph.outputs = [
        graph.emit("reduce_sum", graph.add_input("x", TensorType("float32", x.shape)), axes=(1,), keepdims=False)
    ]
    check(graph, {"x": x})


def test_values_without_the_reduced_axes_are_read_by_broadcasting_and_through_reshape() -> None:
    graph = Graph("broadcast")
    x = graph.add_input("x", TensorType("float32", (6, 50)))
    column = graph.emit("reduce_sum", x, axes=(0,), keepdims=False)
    graph.outputs = [graph.emit("sub", x, column), column]
    check(graph, {"x": normal((6, 50))}, factor=4)
    graph = Graph("reshape")
    x = graph.add_input("x", TensorType("float32", (6, 50)))
    row = graph.emit("reshape", graph.emit("reduce_sum", x, axes=(1,), keepdims=False), shape=(6, 1))
    graph.outputs = [graph.emit("sub", x, row)]
    check(graph, {"x": normal((6, 50))}, factor=4)


def test_prologue_with_gather_and_transpose() -> None:
    graph = Graph("prologue")
    table = graph.add_input("table", TensorType("float32", (10, 12, 5)))
    rows = graph.add_input("rows", TensorType("int64", (7,)))
    x = graph.emit("transpose", graph.emit("gather", table, rows, axis=0), perm=(0, 2, 1))
    graph.outputs = [softmax(graph, x, 2)]
    check(graph, {"table": normal((10, 12, 5)), "rows": RNG.integers(-10, 10, 7)}, factor=4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1, 262144), (1, 256, 1024)])
def test_few_long_rows_are_cut_into_parts(dtype: str, shape: tuple[int, ...]) -> None:
    graph = Graph("long")
    x = graph.add_input("x", TensorType(dtype, shape))
    axes = tuple(range(1, len(shape)))
    top = graph.emit("reduce_max", graph.emit("abs", x), axes=axes, keepdims=True)
    scaled = graph.emit("div", x, top)
    total = graph.emit("reduce_sum", scaled, axes=axes, keepdims=False)
    graph.outputs = [scaled, total, graph.emit("neg", total)]
    group = cpu_group(graph)
    assert max(launch.tasks for launch in lower_group(graph, group)) >= 4
    check(graph, {"x": normal(shape, dtype)}, factor=20)
