"""Graphs cut where sizes come to be."""

from __future__ import annotations

from tilestitch.compiler.ir.text import parse_graph, print_graph
from tilestitch.compiler.ir.verify import verify
from tilestitch.passes.open.regions import with_regions

TWICE = """graph @main[b=1..64, n=0.or.1..100, m=0.or.1..100](%x: float32[b,4]) -> (%y, %w) {
  %w = exp(%x) : float32[b,4]
  %i = iota() {axis=0, dtype="int64", shape=[{"size": "n"}]} : int64[n]
  %p = host.NonZero(%x) : int64[2,n]
  %r = reduce_sum(%p) {axes=[0], keepdims=false} : int64[n]
  %s = add(%r, %i) : int64[n]
  %q = host.NonZero(%s) : int64[1,m]
  %y = add(%q, %q) : int64[1,m]
}"""


def test_what_depends_on_a_size_is_called_after_what_makes_it() -> None:
    graph = with_regions(parse_graph(TWICE))
    verify(graph)
    assert [node.op for node in graph.nodes] == ["exp", "host.NonZero", "call", "host.NonZero", "call"]
    assert [symbol.name for symbol in graph.symbols] == ["b"]
    assert str(graph.nodes[1].output.type) == "int64[2,?]"
    first, second = (node.attrs["body"] for node in graph.nodes if node.op == "call")
    assert [node.op for node in first.nodes] == ["iota", "reduce_sum", "add"]
    assert [[s.name for s in body.symbols] for body in (first, second)] == [["n"], ["m"]]
    assert [v.name for v in graph.outputs] == ["y", "w"]


def test_a_body_is_given_what_determines_its_symbols() -> None:
    text = """graph @main[b=1..64](%x: float32[b,4], %c: bool[]) -> (%y) {
  %y = if(%c) {else_graph=graph @e() -> (%i) {
    %i = iota() {axis=0, dtype="int64", shape=[{"size": "b"}]} : int64[b]
  }, then_graph=graph @t() -> (%j) {
    %j = iota() {axis=0, dtype="int64", shape=[{"size": "2*b"}]} : int64[2*b]
  }} : int64[?]
}"""
    graph = with_regions(parse_graph(text))
    verify(graph)
    (branch,) = graph.nodes
    assert [v.name for v in branch.inputs] == ["c", "x"]
    for body in (branch.attrs["then_graph"], branch.attrs["else_graph"]):
        assert [str(v.type) for v in body.inputs] == ["float32[b,4]"]
        assert [s.name for s in body.symbols] == ["b"]


def test_symbols_that_may_be_empty_are_printed_and_read() -> None:
    graph = parse_graph(TWICE)
    assert graph.symbols[1].or_empty and graph.symbols[1].low == 1
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
