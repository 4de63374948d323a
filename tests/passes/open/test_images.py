"""Which nodes compute each image of a batch by itself."""

from __future__ import annotations

import pytest

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes.open.images import SAME, images_of, why_not_by_image

APART = {
    'add(%x, %w) : float32[n,3,4]': "%w: float32[3,4]",
    'mul(%x, %w) : float32[n,3,4]': "%w: float32[1,3,1]",
    'select(%c, %x, %x) : float32[n,3,4]': "%c: bool[n,1,1]",
    'reshape(%x) {shape=[{"size": "3*n"},4]} : float32[3*n,4]': "",
    'reshape(%x) {shape=[{"size": "n"},12]} : float32[n,12]': "",
    'transpose(%x) {perm=[0,2,1]} : float32[n,4,3]': "",
    'broadcast_to(%w) {shape=[{"size": "n"},3,4]} : float32[n,3,4]': "%w: float32[3,4]",
    'slice(%x) {starts=[0,1,0], steps=[1,1,2], sizes=[{"size": "n"},2,2]} : float32[n,2,2]': "",
    'concat(%x, %v) {axis=1} : float32[n,5,4]': "%v: float32[n,2,4]",
    'pad(%x) {before=[0,1,0], after=[0,0,2], mode="constant"} : float32[n,4,6]': "",
    'gather(%w, %i) {axis=0} : float32[n,2,4]': "%w: float32[7,4], %i: int64[n,2]",
    'gather(%x, %i) {axis=2} : float32[n,3,5]': "%i: int64[5]",
    'gather_elements(%x, %i) {axis=1} : float32[n,2,4]': "%i: int64[n,2,4]",
    'reduce_sum(%x) {axes=[1,2], keepdims=false} : float32[n]': "",
    'arg_max(%x) {axis=2, keepdims=false, select_last=false} : int64[n,3]': "",
    'matmul(%x, %w) : float32[n,3,2]': "%w: float32[4,2]",
    'matmul(%m, %w) : float32[n,2]': "%m: float32[n,4], %w: float32[4,2]",
    'matmul(%x, %v) {trans_b=true} : float32[n,3,2]': "%v: float32[n,2,4]",
    'matmul(%w, %x) : float32[n,2,4]': "%w: float32[2,3]",
    'cumulative(%x) {axis=1, exclusive=false, reducer="sum", reverse=false} : float32[n,3,4]': "",
    'iota() {shape=[{"size": "n"},4], axis=1, dtype="int64"} : int64[n,4]': "",
}  # fmt: skip

MIXED = {
    'reshape(%x) {shape=[3,{"size": "4*n"}]} : float32[3,4*n]': "",
    'transpose(%x) {perm=[1,0,2]} : float32[3,n,4]': "",
    'slice(%x) {starts=[1,0,0], steps=[1,1,1], sizes=[{"size": "n-1"},3,4]} : float32[n-1,3,4]': "",
    'slice(%x) {starts=[{"size": "n-1"},0,0], steps=[-1,1,1], sizes=[{"size": "n"},3,4]} : float32[n,3,4]': "",
    'concat(%x, %x) {axis=0} : float32[2*n,3,4]': "",
    'pad(%x) {before=[1,0,0], after=[0,0,0], mode="constant"} : float32[n+1,3,4]': "",
    'gather(%x, %i) {axis=0} : float32[2,3,4]': "%i: int64[2]",
    'gather(%x, %i) {axis=0} : float32[n,3,4]': "%i: int64[n]",
    'gather_elements(%x, %i) {axis=0} : float32[n,3,4]': "%i: int64[n,3,4]",
    'reduce_sum(%x) {axes=[0], keepdims=true} : float32[1,3,4]': "",
    'reduce_max(%x) {axes=[0,1,2], keepdims=false} : float32[]': "",
    'arg_max(%x) {axis=0, keepdims=false, select_last=false} : int64[3,4]': "",
    'matmul(%m, %k) {trans_a=true} : float32[4,2]': "%m: float32[n,4], %k: float32[n,2]",
    'matmul(%m, %m) {trans_b=true} : float32[n,n]': "%m: float32[n,4]",
    'matmul(%w, %k) : float32[5,2]': "%w: float32[5,n], %k: float32[n,2]",
    'cumulative(%x) {axis=0, exclusive=false, reducer="sum", reverse=false} : float32[n,3,4]': "",
    'top_k(%w) {k={"size": "n"}, axis=0, largest=true} : float32[n], int64[n]': "%w: float32[1000]",
    'iota() {shape=[{"size": "n"},4], axis=0, dtype="int64"} : int64[n,4]': "",
    'sizes() {values=[{"size": "n"}], shape=[1], dtype="int64"} : int64[1]': "",
}  # fmt: skip


def graph_of(node: str, inputs: str) -> Graph:
    given = ", ".join(filter(None, ("%x: float32[n,3,4]", inputs)))
    return parse_graph(
        f"graph @main[n=1..9]({given}) -> (%y) {{\n  {'%y, %z' if 'top_k' in node else '%y'} = {node}\n}}"
    )


@pytest.mark.parametrize("node", APART)
def test_an_image_by_itself(node: str) -> None:
    graph = graph_of(node, APART[node])
    assert why_not_by_image(graph.nodes[0], graph.symbols[0]) is None


@pytest.mark.parametrize("node", MIXED)
def test_images_that_have_to_do_with_each_other(node: str) -> None:
    graph = graph_of(node, MIXED[node])
    assert why_not_by_image(graph.nodes[0], graph.symbols[0]) is not None


def test_rows_of_an_image() -> None:
    text = "graph @main[n=1..9, m=1..9](%a: float32[6*n,2], %b: float32[n*m,3], %c: float32[2,n], %d: float32[m], "
    graph = parse_graph(text + "%e: float32[n+1], %f: float32[n,n]) -> (%a) {\n}")
    symbol = graph.symbols[0]
    assert [str(images_of(value, symbol)) for value in graph.inputs] == ["6", "m", "None", str(SAME), "None", "None"]
