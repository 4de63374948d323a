"""Graphs mean the same in numpy, in PyTorch, in JAX and by the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.device.interpreters import UnsupportedGraph, graph_constants, graph_function, namespace, unsupported
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.text import parse_graph

CASES = {
    "layer_norm": """graph @main(%x: float32[4,8]) -> (%o) {
      %c = constant [0.125] : float32[1]
      %s = reduce_sum(%x) {axes=[1], keepdims=true} : float32[4,1]
      %m = mul(%s, %c) : float32[4,1]
      %d = sub(%x, %m) : float32[4,8]
      %q = mul(%d, %d) : float32[4,8]
      %v = reduce_sum(%q) {axes=[1], keepdims=true} : float32[4,1]
      %e = sqrt(%v) : float32[4,1]
      %o = div(%d, %e) : float32[4,8]
    }""",
    "softmax_of_matmul": """graph @main(%x: float32[2,4,8], %y: float32[2,5,8]) -> (%o) {
      %p = matmul(%x, %y) {trans_b=true} : float32[2,4,5]
      %m = reduce_max(%p) {axes=[2], keepdims=true} : float32[2,4,1]
      %d = sub(%p, %m) : float32[2,4,5]
      %e = exp(%d) : float32[2,4,5]
      %s = reduce_sum(%e) {axes=[2], keepdims=true} : float32[2,4,1]
      %o = div(%e, %s) : float32[2,4,5]
    }""",
    "conv_and_pool": """graph @main(%x: float32[1,9,9,4], %w: float32[3,3,2,6]) -> (%o) {
      %c = conv(%x, %w)
        {strides=[2,1], before=[1,0], after=[1,1], dilations=[1,2], groups=2, layout="NXC"} : float32[1,5,6,6]
      %o = window_reduce(%c)
        {reducer="max", kernel=[3,2], strides=[1,2], before=[1,0], after=[1,0], dilations=[1,1], layout="NXC"}
        : float32[1,5,3,6]
    }""",
    "integers": """graph @main(%a: int8[5,64], %b: uint8[64,6], %x: uint8[1,2,5,5], %w: int8[3,2,2,2]) -> (%o, %c) {
      %o = matmul(%a, %b) {out_dtype="int32"} : int32[5,6]
      %c = conv(%x, %w) {strides=[1,1], before=[0,1], after=[1,0], dilations=[1,1], groups=1, layout="NCX",
        out_dtype="int32"} : int32[1,3,5,5]
    }""",
    "movement": """graph @main(%x: float32[4,6], %i: int64[3]) -> (%o, %r) {
      %g = gather(%x, %i) {axis=0} : float32[3,6]
      %t = transpose(%g) {perm=[1,0]} : float32[6,3]
      %s = slice(%t) {starts=[5,0], steps=[-2,1], sizes=[3,2]} : float32[3,2]
      %p = pad(%s) {before=[1,0], after=[0,2], mode="constant"} : float32[4,4]
      %o = concat(%p, %p) {axis=1} : float32[4,8]
      %k = iota() {shape=[4,8], axis=1, dtype="int64"} : int64[4,8]
      %f = cast(%k) {to="float32"} : float32[4,8]
      %r = erf(%f) : float32[4,8]
    }""",
}  # fmt: skip


def inputs_of(graph: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    made = []
    for value in graph.inputs:
        low, high = {"uint8": (0, 256), "int8": (-128, 128)}.get(value.dtype, (-4, 4))
        if "int" in value.dtype:
            made.append(rng.integers(low, high, value.shape).astype(value.dtype))
        else:
            made.append(rng.standard_normal(value.shape, np.float32))
    return made


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_graphs_mean_the_same(name: str, library: str) -> None:
    if library != "numpy":
        pytest.importorskip(library)
    graph = parse_graph(CASES[name])
    n = namespace(library)
    feeds = inputs_of(graph)
    weights = {key: n.array(data) for key, data in graph_constants(graph).items()}
    results = graph_function(graph, n)([n.array(feed) for feed in feeds], weights)
    for result, expected in zip(results, evaluate(graph, feeds), strict=True):
        np.testing.assert_allclose(np.asarray(result), expected, rtol=2e-5, atol=2e-5)


def test_weights_in_blocks_are_dequantised() -> None:
    form, rng = BlockFormat("int4", 16, "float16", True, 40), np.random.default_rng(3)
    codes, zeros = (rng.integers(0, 16, (6, count)).astype(np.uint8) for count in (40, form.blocks))
    graph = Graph()
    x = graph.add_input("x", TensorType("float32", (5, 40)))
    w = graph.constant(form.encode(codes, rng.random((6, form.blocks)).astype(np.float16), zeros))
    graph.outputs = [graph.emit("block_matmul", x, w, **form.attrs)]
    feeds = inputs_of(graph)
    (result,) = graph_function(graph, namespace("numpy"))(feeds, graph_constants(graph))
    np.testing.assert_allclose(result, evaluate(graph, feeds)[0], rtol=2e-5, atol=2e-5)


def test_matrices_in_blocks_are_chosen_by_index() -> None:
    form, rng = BlockFormat("int8", 16, "float32", False, 40), np.random.default_rng(3)
    codes, scales = rng.integers(0, 256, (18, 40)).astype(np.uint8), rng.random((18, form.blocks), np.float32)
    graph = Graph()
    x = graph.add_input("x", TensorType("float32", (4, 5, 40)))
    indices = graph.constant(np.array([2, 0, 2, 1]))
    w = graph.constant(form.encode(codes, scales, None).reshape(3, 6, form.blocks, -1))
    graph.outputs = [graph.emit("block_matmul", x, w, indices, **form.attrs)]
    feeds = inputs_of(graph)
    (result,) = graph_function(graph, namespace("numpy"))(feeds, graph_constants(graph))
    np.testing.assert_allclose(result, evaluate(graph, feeds)[0], rtol=2e-5, atol=2e-5)


def test_operators_that_are_not_there_are_named() -> None:
    graph = parse_graph("""graph @main(%x: float32[4]) -> (%v) {
      %v, %i = top_k(%x) {k=1, axis=0, largest=true} : float32[1], int64[1]
    }""")
    assert unsupported(graph) == ["top_k"]
    with pytest.raises(UnsupportedGraph, match="top_k"):
        graph_function(graph, namespace("numpy"))
