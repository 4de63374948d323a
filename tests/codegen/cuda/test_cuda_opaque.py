"""Sorting, scans, scatters and windows as CUDA, on the emulated device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import check, emulated
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.types import TensorType, to_numpy_dtype
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(("shape", "axis", "k"), [((3, 40), 1, 5), ((4, 6, 3), 1, 6), ((1,), 0, 1), ((2, 9000), 1, 70)])
@pytest.mark.parametrize("largest", [False, True])
def test_top_k(shape: tuple[int, ...], axis: int, k: int, largest: bool) -> None:
    graph = Graph("top_k")
    x = graph.add_input("x", TensorType("float32", shape))
    graph.outputs = list(graph.add("top_k", [x], {"k": k, "axis": axis, "largest": largest}).outputs)
    data = RNG.integers(0, 20, shape).astype(np.float32)
    data.reshape(-1)[0] = np.nan
    check(graph, {"x": data})


@pytest.mark.parametrize(("shape", "axis"), [((5, 7), 0), ((5, 7), 1), ((2, 1000), 1), ((300,), 0)])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(shape: tuple[int, ...], axis: int, exclusive: bool, reverse: bool) -> None:
    graph = Graph("cumulative")
    x = graph.add_input("x", TensorType("int64", shape))
    attrs = {"axis": axis, "reducer": "sum", "exclusive": exclusive, "reverse": reverse}
    graph.outputs = [graph.emit("cumulative", x, **attrs)]
    check(graph, {"x": RNG.integers(-9, 9, shape)})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_scatter_elements(reduction: str, dtype: str) -> None:
    graph = Graph("scatter")
    x = graph.add_input("x", TensorType(dtype, (5, 6)))
    indices = graph.add_input("i", TensorType("int64", (4, 3)))
    updates = graph.add_input("u", TensorType(dtype, (4, 3)))
    graph.outputs = [graph.emit("scatter_elements", x, indices, updates, axis=0, reduction=reduction)]
    feeds = {"x": _numbers((5, 6), dtype), "i": RNG.integers(-5, 5, (4, 3)), "u": _numbers((4, 3), dtype)}
    check(graph, feeds)


def test_scatter_nd_and_its_index_check() -> None:
    graph = Graph("scatter_nd")
    x = graph.add_input("x", TensorType("float32", (6, 3, 40)))
    indices = graph.add_input("i", TensorType("int64", (4, 2)))
    updates = graph.add_input("u", TensorType("float32", (4, 40)))
    graph.outputs = [graph.emit("scatter_nd", x, indices, updates, reduction="add")]
    good = np.array([[0, 1], [5, 2], [0, 1], [-1, -1]])
    feeds = {"x": _numbers((6, 3, 40), "float32"), "i": good, "u": _numbers((4, 40), "float32")}
    check(graph, feeds)
    with load(emulated(graph), device="emulator") as module, pytest.raises(ExecutionError, match="out of range"):
        module.run({**feeds, "i": np.full((4, 2), 6)})


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_pooling_with_an_epilogue(layout: str, reducer: str) -> None:
    graph = Graph("pool")
    shape = (2, 5, 11, 13) if layout == "NCX" else (2, 11, 13, 5)
    x = graph.add_input("x", TensorType("float32", shape))
    attrs = {"kernel": (3, 2), "strides": (2, 1), "before": (1, 1), "after": (1, 0), "dilations": (1, 2)}
    pooled = graph.emit("window_reduce", x, reducer=reducer, layout=layout, **attrs)
    graph.outputs = [graph.emit("mul", pooled, pooled)]
    check(graph, {"x": _numbers(shape, "float32")})


def _numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(to_numpy_dtype(dtype))
