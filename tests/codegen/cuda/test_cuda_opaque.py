"""Sorting, scans, scatters and windows as CUDA, on the emulated device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import check, emulated, launches_of
from tests.codegen.kernel_harness import interpret
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.types import TensorType, to_numpy_dtype
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions
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
def test_roi_align(layout: str) -> None:
    shape = (2, 5, 9, 7) if layout == "NCX" else (2, 9, 7, 5)
    graph = Graph("roi_align")
    images = graph.add_input("x", TensorType("float32", shape))
    regions = graph.add_input("r", TensorType("float32", (3, 4)))
    places = graph.add_input("i", TensorType("int64", (3,)))
    attrs = {"mode": "avg", "size": (3, 2), "ratio": 0, "scale": 0.5, "offset": 0.5, "layout": layout}
    graph.outputs = [graph.emit("roi_align", images, regions, places, **attrs)]
    corners = np.array([[0, 0, 9, 17], [-4.5, 3, 30, 11], [12, 18, 13, 19.3]], np.float32)
    check(graph, {"x": _numbers(shape, "float32"), "r": corners, "i": np.array([0, 1, 1])})


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize(
    ("op", "data", "indices", "updates", "attrs"),
    [
        ("scatter_elements", (50,), (300,), (300,), {"axis": 0}),
        ("scatter_elements", (4, 60), (3, 200), (3, 200), {"axis": 1}),
        ("scatter_nd", (40,), (500, 1), (500,), {}),
        ("scatter_nd", (6, 5, 3), (90, 2), (90, 3), {}),
        ("scatter_nd", (6, 5), (7, 9, 2), (7, 9), {}),
        ("scatter_nd", (6, 5), (3, 1), (3, 5), {}),
    ],
)
def test_the_last_of_many_updates_of_a_place_counts(
    op: str,
    data: tuple[int, ...],
    indices: tuple[int, ...],
    updates: tuple[int, ...],
    attrs: dict[str, Any],
    reduction: str,
) -> None:
    """In whatever order threads run: few places, many updates, and more threads than one."""
    graph = Graph(op)
    x, u = graph.add_input("x", TensorType("float32", data)), graph.add_input("u", TensorType("float32", updates))
    i = graph.add_input("i", TensorType("int64", indices))
    graph.outputs = [graph.emit(op, x, i, u, reduction=reduction, **attrs)]
    size = data[attrs["axis"]] if attrs else np.array(data[: indices[-1]])
    feeds = {"x": _numbers(data, "float32"), "i": RNG.integers(-size, size, indices), "u": _numbers(updates, "float32")}
    kinds = [launch.kind for launch in launches_of(graph)]
    assert kinds == (["copy", f"{op}_claim", op] if reduction == "none" else ["copy", op])
    expected = interpret(graph, feeds)[graph.outputs[0]]
    for order in ("reversed", "adversarial"):
        options = EmulatorOptions(block_order=order, thread_order="random", seed=3)
        with load(emulated(graph), device=options) as module:
            np.testing.assert_array_equal(next(iter(module.run(feeds).values())), expected)


@pytest.mark.parametrize("op", ["scatter_elements", "scatter_nd"])
def test_indices_are_checked_as_places_are_claimed(op: str) -> None:
    graph = Graph(op)
    x, u = (graph.add_input(n, TensorType("float32", (9,))) for n in "xu")
    i = graph.add_input("i", TensorType("int64", (9,) if op == "scatter_elements" else (9, 1)))
    attrs = {"axis": 0} if op == "scatter_elements" else {}
    graph.outputs = [graph.emit(op, x, i, u, reduction="none", **attrs)]
    feeds = {"x": np.zeros(9, np.float32), "u": np.ones(9, np.float32), "i": np.full(i.shape, 9)}
    with load(emulated(graph), device="emulator") as module, pytest.raises(ExecutionError, match="out of range"):
        module.run(feeds)


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
