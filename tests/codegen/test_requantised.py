"""Epilogues of integer sums: where these begin, and how what is quantised between is rounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.kernel_harness import check, cpu_group, run_graph
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.compiler.ir import Graph, TensorType, Value

WHOLE = {"strides": (1, 1), "before": (1, 1), "after": (1, 1), "dilations": (1, 1)}


def convolved(graph: Graph, channels: int, groups: int, layout: str, image: int = 5) -> Value:
    """int32 sums of `channels` of bytes."""
    of, kernel = 4 * groups, (3, 3)
    shape = (2, image, image, of) if layout == "NXC" else (2, of, image, image)
    w = (*kernel, 4, channels) if layout == "NXC" else (channels, 4, *kernel)
    x = graph.add_input("x", TensorType("uint8", shape))
    weights = graph.constant(np.random.default_rng(1).integers(-128, 128, w).astype(np.int8))
    return graph.emit("conv", x, weights, groups=groups, layout=layout, out_dtype="int32", **WHOLE)


def by_channel(channels: int, layout: str) -> np.ndarray:
    numbers = np.random.default_rng(2).integers(-(1 << 20), 1 << 20, channels).astype(np.int32)
    return numbers if layout == "NXC" else numbers.reshape(-1, 1, 1)


@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (7, 1), (17, 1), (64, 1), (34, 2), (96, 2)])
def test_sums_begin_with_what_is_added_to_them(channels: int, groups: int, layout: str) -> None:
    graph = Graph("g")
    sums = convolved(graph, channels, groups, layout)
    graph.outputs = [graph.emit("add", sums, graph.constant(by_channel(channels, layout)))]
    check(graph, {"x": np.random.default_rng(0).integers(0, 256, sums.producer.inputs[0].shape).astype(np.uint8)})


def test_sums_begin_with_0_where_others_read_them_or_what_is_added_differs_by_position() -> None:
    graph = Graph("g")
    sums = convolved(graph, 20, 1, "NXC")
    each = graph.constant(np.arange(25 * 20, dtype=np.int32).reshape(5, 5, 20))
    begun = graph.emit("add", sums, graph.constant(by_channel(20, "NXC")))
    graph.outputs = [graph.emit("maximum", graph.emit("add", sums, each), begun)]
    check(graph, {"x": np.random.default_rng(0).integers(0, 256, (2, 5, 5, 4)).astype(np.uint8)})


@pytest.mark.parametrize("zero", [0, 100, 255])
def test_products_are_rounded_to_even_and_kept_in_their_range(zero: int) -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("int32", (64,)))
    scaled = graph.emit("mul", graph.emit("cast", x, to="float32"), graph.constant(np.float32(0.25)))
    whole = graph.emit("cast", graph.emit("round", scaled), to="int32")
    moved = graph.emit("add", whole, graph.constant(np.int32(zero))) if zero else whole
    raised = graph.emit("maximum", moved, graph.constant(np.int32(0)))
    q = graph.emit("cast", graph.emit("minimum", raised, graph.constant(np.int32(255))), to="uint8")
    wide = graph.emit("cast", q, to="int32")
    less = graph.emit("sub", wide, graph.constant(np.int32(zero))) if zero else q
    graph.outputs = [graph.emit("div", graph.constant(np.float32(1)), graph.emit("cast", less, to="float32"))]
    halves = np.arange(-24, 24, dtype=np.int32)
    large = [1 << 31 - k if k else (1 << 31) - 1 for k in range(8)]
    numbers = np.concatenate([halves, np.array(large, np.int64).clip(max=(1 << 31) - 1), -np.array(large, np.int64)])
    values = numbers.astype(np.int32)
    kept = np.clip(np.rint(values.astype(np.float32) * np.float32(0.25)).astype(np.float64), -zero, 255 - zero)
    with np.errstate(divide="ignore"):
        expected = np.float32(1) / (kept + 0.0).astype(np.float32)
    (actual,) = run_graph(graph, {"x": values}).values()
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_code_keeps_a_float_only_where_its_plan_says_so() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("int32", (64,)))
    whole = graph.emit(
        "round", graph.emit("mul", graph.emit("cast", x, to="float32"), graph.constant(np.float32(0.25)))
    )
    raised = graph.emit("maximum", graph.emit("cast", whole, to="int32"), graph.constant(np.int32(0)))
    q = graph.emit("cast", graph.emit("minimum", raised, graph.constant(np.int32(255))), to="uint8")
    graph.outputs = [graph.emit("sqrt", graph.emit("cast", q, to="float32"))]
    group = cpu_group(graph)
    kept, integers = (str(lower_group(graph, each)[0].func) for each in (group, replace(group, floats=())))
    assert len(group.floats) == 1
    assert "uint8" in integers
    assert "uint8" not in kept.replace('scratch: T.handle("uint8")', "")
