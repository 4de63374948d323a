"""The text form prints and parses back to the same graph."""

import numpy as np
import pytest
from hypothesis import given, settings

from tests.strategies import graphs
from tilestitch.compiler.ir import Graph, TensorType, TextError, printing
from tilestitch.compiler.ir.text import constants_of, fingerprint, parse_graph, print_graph
from tilestitch.compiler.ir.verify import verify

SMALL = """graph @main(%x: float32[2,3]) -> (%y, %v) {
  %c = constant [1.5, "inf", "nan"] : float32[3]
  %y = add(%x, %c) : float32[2,3]  from "Add_0", "Add_1"
  %v, %i = top_k(%y) {axis=1, k=1, largest=true} : float32[2,1], int64[2,1]  node "top"
}"""


def test_a_graph_prints_as_it_was_written() -> None:
    assert print_graph(parse_graph(SMALL)) == SMALL


def test_parsing_keeps_names_origins_attributes_and_constants() -> None:
    graph = parse_graph(SMALL)
    add, top = graph.nodes
    assert add.origins == ("Add_0", "Add_1")
    assert (top.name, top.attrs) == ("top", {"axis": 1, "k": 1, "largest": True})
    np.testing.assert_array_equal(graph.constants[0].data, np.float32([1.5, np.inf, np.nan]))


def test_nested_graphs_symbols_and_host_types_round_trip() -> None:
    text = """graph @main(%n: int64[], %s: seq<float32[a,?]>, %o: optional<>, %m: map<string,float32>) -> (%r) {
  %t = constant [true] : bool[]
  %r = if(%t, %n) {else_graph=graph @e(%m: int64[]) -> (%q) {
    %q = host.thing(%m) {deep=[1, [2, "x"]]} : int64[*]
  }, then_graph=graph @f(%m: int64[]) -> (%q) {
    %q = neg(%m) : int64[]
  }} : int64[*]
}"""
    assert print_graph(parse_graph(text)) == text


def test_large_constants_are_referred_to_by_digest_or_written_in_full() -> None:
    graph = Graph()
    graph.outputs = [graph.emit("neg", graph.constant(np.arange(100, dtype=np.float32)))]
    short = print_graph(graph)
    assert "#sha256:" in short
    assert print_graph(parse_graph(short, constants_of(graph))) == short
    np.testing.assert_array_equal(parse_graph(print_graph(graph, full=True)).constants[0].data, np.arange(100))
    with pytest.raises(TextError, match="was not given"):
        parse_graph(short)


def test_the_fingerprint_depends_on_the_data_of_constants() -> None:
    def graph(number: float) -> Graph:
        g = Graph()
        g.outputs = [g.emit("neg", g.constant(np.full(100, number, np.float32)))]
        return g

    assert fingerprint(graph(1)) == fingerprint(graph(1)) != fingerprint(graph(2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph @m(%x: float32[2]) -> (%y) {\n}", "%y is not defined"),
        ("graph @m(%x: float31[2]) -> (%x) {\n}", "unknown dtype"),
        ("graph @m(%x: float32[2]) -> (%y) {\n  %y = frob(%x) : float32[2]\n}", "unknown operator 'frob'"),
        ("graph @m(%x: float32[2]) -> (%y) {\n  %y = neg(%x) : float32[3]\n}", "its type rule gives float32"),
        ("graph @m(%x: float32[2]) -> (%x) {\n  %x = neg(%x) : float32[2]\n}", "defined twice"),
        ("graph @m(%x: float32[2]) -> (%x) {", "expected .more text., found .the end."),
        ("graph @m() -> (%c) {\n  %c = constant [1, 2] : float32[3]\n}", "data does not fit"),
    ],
)
def test_a_mistake_is_reported_with_its_line(text: str, message: str) -> None:
    with pytest.raises(TextError, match="line [0-9]+, column [0-9]+: .*" + message):
        parse_graph(text)


@given(graphs())
@settings(deadline=None, max_examples=60)
def test_random_graphs_round_trip_and_verify(graph: Graph) -> None:
    verify(graph)
    text = print_graph(graph, full=True)
    again = parse_graph(text)
    verify(again)
    assert print_graph(again, full=True) == text
    assert fingerprint(again) == fingerprint(graph) == fingerprint(graph.clone())


def test_types_print_as_written() -> None:
    assert str(TensorType("bfloat16", ("batch", 3))) == "bfloat16[batch,3]"


def test_digests_are_of_what_an_array_holds_now() -> None:
    """That of one which cannot be written is found once; another in its place has its own."""
    data = np.arange(100.0)
    first = printing.digest(data)
    data[0] = 7
    assert printing.digest(data) != first
    data.flags.writeable = False
    again = printing.digest(data)
    assert printing.digest(data) == again == printing.digest(data.copy())
    del data
    for value in range(20):
        other = np.full(100, float(value))
        other.flags.writeable = False
        assert printing.digest(other) == printing.digest(other.copy()) != again
        del other
