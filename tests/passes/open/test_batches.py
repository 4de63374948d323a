"""What computes each image of a batch of known size by itself becomes a body with a symbol for their number."""

from __future__ import annotations

import numpy as np
import pytest

from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.compiler.ir.verify import verify
from tilestitch.passes.open.batches import batches_of, in_images

GRAPH = """graph @main(%x: float32[6,2,6], %k: float32[1,6]) -> (%s, %p, %q) {
  %e = exp(%k) : float32[1,6]
  %a = mul(%x, %e) : float32[6,2,6]
  %r = reshape(%a) {shape=[12,6]} : float32[12,6]
  %m = matmul(%r, %r) {trans_b=true} : float32[12,12]
  %p = exp(%r) : float32[12,6]
  %s = reduce_sum(%p) {axes=[0], keepdims=false} : float32[6]
  %q = tanh(%m) : float32[12,12]
}"""
BODY = """graph @main.images[images=1..6](%x: float32[images,2,6], %e: float32[1,6]) -> (%r, %p) {
  %a = mul(%x, %e) : float32[images,2,6]
  %r = reshape(%a) {shape=[{"size": "2 * images"}, 6]} : float32[2 * images,6]
  %p = exp(%r) : float32[2 * images,6]
}"""


def test_a_call_takes_the_place_of_what_keeps_images_apart() -> None:
    graph = parse_graph(GRAPH)
    found = in_images(graph, 6)
    assert found is not None
    opened, call = found
    verify(opened)
    assert str(call.attrs["body"]) == BODY
    assert [node.op for node in opened.nodes] == ["exp", "call", "matmul", "reduce_sum", "tanh"]
    assert [str(value.type) for value in call.outputs] == ["float32[12,6]", "float32[12,6]"]
    assert [value.name for value in opened.outputs] == ["s", "p", "q"]
    random = np.random.default_rng(0)
    feeds = {"x": random.random((6, 2, 6), np.float32), "k": random.random((1, 6), np.float32)}
    for actual, expected in zip(evaluate(opened, feeds), evaluate(graph, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_the_graph_stays_as_it_was() -> None:
    graph = parse_graph(GRAPH)
    before = str(graph)
    in_images(graph, 6)
    assert str(graph) == before


@pytest.mark.parametrize(
    "node",
    [
        "reduce_max(%x) {axes=[0], keepdims=true} : float32[1,6]",
        "transpose(%x) {perm=[1,0]} : float32[6,6]",
        "matmul(%x, %x) : float32[6,6]",
        "add(%x, %c) : float32[6,6]",
        "slice(%x) {starts=[0,0], steps=[1,1], sizes=[3,6]} : float32[3,6]",
        "slice(%x) {starts=[5,0], steps=[-1,1], sizes=[6,6]} : float32[6,6]",
        "concat(%x, %x) {axis=0} : float32[12,6]",
        "reshape(%x) {shape=[4,9]} : float32[4,9]",
        'cumulative(%x) {axis=0, exclusive=false, reducer="sum", reverse=false} : float32[6,6]',
        "host.Det(%x) : float32[6,6]",
    ],
)
def test_what_may_mix_images_stays(node: str) -> None:
    text = 'graph @main(%x: float32[6,6], %i: int64[6]) -> (%y) {\n  %c = cast(%i) {to="float32"} : float32[6]\n'
    found = in_images(parse_graph(text + f"  %y = {node}\n}}"), 6)
    assert found is not None and [n.op for n in found[1].attrs["body"].nodes] == ["cast"]


def test_batches_are_first_dimensions_of_inputs() -> None:
    text = "graph @main(%x: float32[6,2], %y: float32[9], %z: float32[1,7], %s: float32[]) -> (%x) {\n}"
    assert batches_of(parse_graph(text)) == [6, 9], "the one with most data first"
