"""Running sums, top_k and scatters against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codegen.kernel_harness import Fault, check, run_graph
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.types import TensorType, to_numpy_dtype

RNG = np.random.default_rng(2)
SHAPES = st.lists(st.sampled_from([1, 2, 3, 7, 16, 33]), min_size=1, max_size=3).map(tuple)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shape=SHAPES,
    dtype=st.sampled_from(["float32", "int32", "float16", "int8"]),
    reducer=st.sampled_from(["sum", "prod"]),
    exclusive=st.booleans(),
    reverse=st.booleans(),
    data=st.data(),
)
def test_cumulative(
    shape: tuple[int, ...], dtype: str, reducer: str, exclusive: bool, reverse: bool, data: st.DataObject
) -> None:
    graph = Graph("cumulative")
    x = graph.add_input("x", TensorType(dtype, shape))
    axis = data.draw(st.integers(0, len(shape) - 1))
    graph.outputs = [graph.emit("cumulative", x, axis=axis, reducer=reducer, exclusive=exclusive, reverse=reverse)]
    check(graph, {"x": RNG.integers(-1, 2, shape).astype(to_numpy_dtype(dtype))})


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shape=SHAPES, dtype=st.sampled_from(["float32", "int64", "float16", "uint8"]), largest=st.booleans(), data=st.data()
)
def test_top_k(shape: tuple[int, ...], dtype: str, largest: bool, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    graph = Graph("top_k")
    x = graph.add_input("x", TensorType(dtype, shape))
    k = data.draw(st.integers(0, shape[axis]))
    graph.outputs = list(graph.add("top_k", [x], {"k": k, "axis": axis, "largest": largest}).outputs)
    check(graph, {"x": RNG.integers(0, 9, shape).astype(to_numpy_dtype(dtype))})


FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("k", [16, 60, 900])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_top_k_of_long_lines_with_extremes_and_ties(k: int, largest: bool, dtype: str) -> None:
    numpy_dtype = to_numpy_dtype(dtype)
    if dtype in FLOATS:
        x = RNG.normal(0, 100, (3, 900)).astype(numpy_dtype)
        x[0, ::31], x[0, 7::31] = np.nan, np.copysign(np.nan, -1)
        x[1, 5::200], x[1, 11::200] = np.inf, -np.inf
        x[2, ::2], x[2, 1::4] = 0.0, -0.0
    else:
        limits = np.iinfo(numpy_dtype)
        x = RNG.integers(limits.min, limits.max, (3, 900), numpy_dtype, endpoint=True)
        x[0, ::31], x[0, 7::31] = limits.min, limits.max
        x[2] = RNG.integers(0, 5, 900)
    graph = Graph("top_k")
    node = graph.add(
        "top_k", [graph.add_input("x", TensorType(dtype, x.shape))], {"k": k, "axis": 1, "largest": largest}
    )
    graph.outputs = list(node.outputs)
    check(graph, {"x": x})


REDUCTIONS = ["none", "add", "mul", "max", "min"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize(
    "shape, indices, axis",
    [((5, 7), (3, 7), 0), ((5, 7), (5, 2), 1), ((2, 3, 4), (2, 5, 3), 1), ((6,), (9,), 0), ((4, 4), (0, 4), 0)],
)
def test_scatter_elements(
    reduction: str, dtype: str, shape: tuple[int, ...], indices: tuple[int, ...], axis: int
) -> None:
    graph = Graph("scatter")
    x, u = graph.add_input("x", TensorType(dtype, shape)), graph.add_input("u", TensorType(dtype, indices))
    i = graph.add_input("i", TensorType("int64", indices))
    graph.outputs = [graph.emit("scatter_elements", x, i, u, axis=axis, reduction=reduction)]
    where = RNG.integers(-shape[axis], shape[axis], indices)
    check(
        graph,
        {"x": RNG.integers(-3, 4, shape).astype(dtype), "i": where, "u": RNG.integers(-2, 3, indices).astype(dtype)},
    )


def scatter_nd(
    shape: tuple[int, ...], indices: tuple[int, ...], dtype: str, reduction: str
) -> tuple[Graph, dict[str, np.ndarray]]:
    depth = indices[-1]
    updates = (*indices[:-1], *shape[depth:])
    graph = Graph("scatter")
    x, u = graph.add_input("x", TensorType(dtype, shape)), graph.add_input("u", TensorType(dtype, updates))
    i = graph.add_input("i", TensorType("int32", indices))
    graph.outputs = [graph.emit("scatter_nd", x, i, u, reduction=reduction)]
    where = np.stack([RNG.integers(-shape[d], shape[d], indices[:-1]) for d in range(depth)], -1).astype(np.int32)
    numbers = RNG.integers(-3, 4, shape).astype(dtype), RNG.integers(-2, 3, updates).astype(dtype)
    return graph, {"x": numbers[0], "i": where, "u": numbers[1]}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    "shape, indices",
    [
        ((5, 7), (3, 1)),
        ((5, 7), (4, 2)),
        ((6, 32), (3, 1)),
        ((2, 3, 4), (2, 2, 2)),
        ((4,), (3, 1)),
        ((9, 100000), (5, 1)),
    ],
)
def test_scatter_nd(reduction: str, dtype: str, shape: tuple[int, ...], indices: tuple[int, ...]) -> None:
    check(*scatter_nd(shape, indices, dtype, reduction))


def test_scatter_reports_an_index_out_of_range_and_leaves_the_rest_alone() -> None:
    graph, inputs = scatter_nd((5, 7), (3, 1), "float32", "none")
    inputs["i"][1] = 5
    with pytest.raises(Fault, match="out of range"):
        run_graph(graph, inputs)


@pytest.mark.parametrize("channels", [5, 16, 40, 300])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize(("mode", "ratio"), [("avg", 0), ("avg", 2), ("max", 2), ("avg", 3)])
def test_roi_align(channels: int, layout: str, mode: str, ratio: int) -> None:
    shape = (2, channels, 9, 7) if layout == "NCX" else (2, 9, 7, channels)
    graph = Graph("roi_align")
    images = graph.add_input("x", TensorType("float32", shape))
    regions = graph.add_input("r", TensorType("float32", (3, 4)))
    places = graph.add_input("i", TensorType("int64", (3,)))
    attrs = {"mode": mode, "size": (3, 2), "ratio": ratio, "scale": 0.5, "offset": 0.5, "layout": layout}
    graph.outputs = [graph.emit("roi_align", images, regions, places, **attrs)]
    corners = np.array([[0, 0, 9, 17], [-4.5, 3, 30, 11], [12, 18, 13, 19.3]], np.float32)
    feeds = {"x": RNG.random(shape, np.float32), "r": corners, "i": np.array([0, 1, 1])}
    check(graph, feeds, factor=4)
    with pytest.raises(Fault, match="out of range"):
        run_graph(graph, {**feeds, "i": np.array([0, 2, 1])})
