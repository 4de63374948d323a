"""Canonicalisation: what can be written in several ways is written in one."""

import pytest

from tests.passes.helpers import after, assert_same_values, body, origins
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.sizes import Size, Symbol, size_of
from tilestitch.compiler.ir.substitute import graph_at
from tilestitch.passes import PassContext, VerifyListener, run_pipeline

X = TensorType("float32", (2, 1))

CASES = {
    "constants stand on the right": ("%c = constant [2.0] : float32[] %y = add(%c, %x) : float32[2,3]", ["add(x, 2)"]),
    "but not of operators that do not commute": (
        "%c = constant [2.0] : float32[] %y = sub(%c, %x) : float32[2,3]",
        ["sub(2, x)"],
    ),
    "a cast to the same dtype": ('%a = cast(%x) {to="float32"} : float32[2,3] %y = neg(%a) : float32[2,3]', ["neg(x)"]),
    "a cast through a wider dtype": (
        '%a = cast(%x) {to="float64"} : float64[2,3] %y = cast(%a) {to="float16"} : float16[2,3]',
        ["cast(x)"],
    ),
    "a cast through a narrower dtype stays": (
        '%a = cast(%x) {to="float16"} : float16[2,3] %y = cast(%a) {to="float32"} : float32[2,3]',
        ["cast(x)", "cast(a)"],
    ),
    "reshape of reshape": (
        "%a = reshape(%x) {shape=[6]} : float32[6] %y = reshape(%a) {shape=[3,2]} : float32[3,2]",
        ["reshape(x)"],
    ),
    "reshape there and back": (
        "%a = reshape(%x) {shape=[6]} : float32[6] %b = reshape(%a) {shape=[2,3]} : float32[2,3] "
        "%y = neg(%b) : float32[2,3]",
        ["neg(x)"],
    ),
    "transpose of transpose": (
        "%a = transpose(%x) {perm=[1,0]} : float32[3,2] %b = transpose(%a) {perm=[1,0]} : float32[2,3] "
        "%y = neg(%b) : float32[2,3]",
        ["neg(x)"],
    ),
    "a transpose that moves only axes of size 1": (
        "%a = reshape(%x) {shape=[2,1,3]} : float32[2,1,3] %y = transpose(%a) {perm=[0,2,1]} : float32[2,3,1]",
        ["reshape(x)"],
    ),
    "broadcasting that the reader does anyway": (
        "%b = broadcast_to(%r) {shape=[2,3]} : float32[2,3] %y = add(%x, %b) : float32[2,3]",
        ["add(x, r)"],
    ),
    "broadcasting that decides the shape comes last": (
        "%b = broadcast_to(%r) {shape=[2,3]} : float32[2,3] %c = neg(%b) : float32[2,3] "
        "%y = mul(%c, %b) : float32[2,3]",
        ["neg(r)", "mul(neg, r)", "broadcast_to(mul_1)"],
    ),
    "broadcasting comes last after operands that are smaller than the result": (
        "%b = broadcast_to(%r) {shape=[2,2,3]} : float32[2,2,3] %y = less(%b, %x) : bool[2,2,3]",
        ["less(r, x)", "broadcast_to(less)"],
    ),
    "constants of equal elements are scalars": (
        "%c = constant [2.0, 2.0, 2.0] : float32[3] %y = mul(%x, %c) : float32[2,3]",
        ["mul(x, 2)"],
    ),
    "a slice of everything": (
        "%a = slice(%x) {starts=[0,0], steps=[1,1], sizes=[2,3]} : float32[2,3] %y = neg(%a) : float32[2,3]",
        ["neg(x)"],
    ),
    "slice of slice": (
        "%a = slice(%x) {starts=[1,2], steps=[-1,-1], sizes=[2,3]} : float32[2,3] "
        "%y = slice(%a) {starts=[0,2], steps=[1,-2], sizes=[1,2]} : float32[1,2]",
        ["slice(x)"],
    ),
    "a slice inside one part of a concat": (
        "%n = neg(%x) : float32[2,3] %a = concat(%x, %n) {axis=1} : float32[2,6] "
        "%y = slice(%a) {starts=[0,4], steps=[1,1], sizes=[2,2]} : float32[2,2]",
        ["neg(x)", "slice(n)"],
    ),
    "concat of what split took apart": (
        "%a = slice(%x) {starts=[0,0], steps=[1,1], sizes=[2,1]} : float32[2,1] "
        "%b = slice(%x) {starts=[0,1], steps=[1,1], sizes=[2,2]} : float32[2,2] "
        "%c = concat(%a, %b) {axis=1} : float32[2,3] %y = neg(%c) : float32[2,3]",
        ["neg(x)"],
    ),
    "padding by nothing": (
        '%a = pad(%x) {before=[0,0], after=[0,0], mode="edge"} : float32[2,3] %y = neg(%a) : float32[2,3]',
        ["neg(x)"],
    ),
    "a sum over axes of size 1": (
        "%a = reshape(%x) {shape=[2,1,3]} : float32[2,1,3] "
        "%y = reduce_sum(%a) {axes=[1], keepdims=false} : float32[2,3]",
        [],
    ),
    "keepdims instead of reshape": (
        "%a = reduce_max(%x) {axes=[1], keepdims=false} : float32[2] %y = reshape(%a) {shape=[2,1]} : float32[2,1]",
        ["reduce_max(x)"],
    ),
    "a gather at one place is a slice": (
        "%i = constant [-1] : int64[] %y = gather(%x, %i) {axis=1} : float32[2]",
        ["slice(x)", "reshape(slice)"],
    ),
    "a gather of a constant range is a slice": (
        "%i = constant [2, 1, 0] : int64[3] %y = gather(%x, %i) {axis=1} : float32[2,3]",
        ["slice(x)"],
    ),
    "a gather out of range stays for the run to report": (
        "%i = constant [0, 0] : int64[2] %y = gather(%x, %i) {axis=1} : float32[2,2]",
        ["gather(x, [2])"],
    ),
    "select with a known condition": (
        "%c = constant [false] : bool[] %n = neg(%x) : float32[2,3] %y = select(%c, %n, %x) : float32[2,3] "
        "%z = abs(%y) : float32[2,3]",
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_canonical_form(name: str) -> None:
    statements, expected = CASES[name]
    graph = after(
        f"graph @g(%x: float32[2,3], %r: float32[3]) -> (%y) {{ {statements.replace(' %', chr(10) + ' %')} }}",
        "canonicalise,dce",
    )
    assert body(graph) == expected


def test_origins_of_what_went_away_are_kept_by_what_replaced_it() -> None:
    graph = after(
        """graph @g(%x: float32[2,3]) -> (%y) {
          %n = neg(%x) : float32[2,3] from "Neg"
          %a = reshape(%n) {shape=[6]} : float32[6] from "A"
          %b = reshape(%a) {shape=[2,3]} : float32[2,3] from "B"
          %y = exp(%b) : float32[2,3] from "Exp"
        }""",
        "canonicalise",
    )
    assert body(graph) == ["neg(x)", "exp(n)"]
    assert origins(graph) == {"Neg", "A", "B", "Exp"}


def test_symbolic_shapes_are_left_where_sizes_matter() -> None:
    from tilestitch.compiler.ir.text import parse_graph, print_graph

    text = """graph @g(%x: float32[n,3]) -> (%y) {
      %a = reshape(%x) {shape=[-1]} : float32[?]
      %b = broadcast_to(%a) {shape=[6]} : float32[6]
      %y = add(%b, %a) : float32[6]
    }"""
    graph = parse_graph(text)
    result = run_pipeline(graph, PassContext(), "canonicalise")
    assert [str(v.type) for v in result.outputs] == ["float32[6]"]
    assert "reshape" in print_graph(result)


@pytest.mark.parametrize(
    "count, put_together", [(128, [128]), (129, [65, 64, 2]), (20_000, [*[128] * 156, 32, 79, 78, 2])]
)
def test_a_concat_of_very_many_is_one_of_concats(count: int, put_together: list[int]) -> None:
    graph = Graph()
    graph.outputs = [graph.emit("concat", *(graph.add_input(f"x{i}", X) for i in range(count)), axis=1)]
    result = run_pipeline(graph, PassContext(), "fixpoint(canonicalise,dce)")
    assert_same_values(graph, result)
    assert [len(n.inputs) for n in result.nodes] == put_together


def nested_concats(count: int, reader: str, **attrs: object) -> Graph:
    """What a dense block, or a recurrence that keeps its states, puts together."""
    graph = Graph()
    whole, read = graph.add_input("x", X), []
    for i in range(count):
        read.append(graph.emit(reader, whole, **attrs))
        whole = graph.emit("concat", whole, graph.add_input(f"x{i}", X), axis=1)
    graph.outputs = [*read, graph.emit("neg", whole)]
    return graph


@pytest.mark.parametrize(
    "reader, attrs, operands",
    [("sin", {}, [2, 3, 4, 5, 6]), ("reduce_max", {"axes": (1,), "keepdims": True}, [2, 2, 2, 2, 2])],
    ids=["read element by element", "needed as a whole"],
)
def test_a_concat_reads_the_parts_of_one_that_need_not_be_there(reader: str, attrs: dict, operands: list[int]) -> None:
    graph = nested_concats(5, reader, **attrs)
    result = run_pipeline(graph, PassContext(), "fixpoint(canonicalise,dce)")
    assert_same_values(graph, result)
    assert [len(n.inputs) for n in result.nodes if n.op == "concat"] == operands


def test_concats_that_many_have_among_theirs_do_not_grow_without_end() -> None:
    result = run_pipeline(nested_concats(300, "sin"), PassContext(), "fixpoint(canonicalise,dce)")
    assert max(len(n.inputs) for n in result.nodes if n.op == "concat") <= 32


N = size_of(Symbol("n", 1, 64))


def products(rows: Size, depth: Size, columns: int) -> Graph:
    """Products of rows, of which the sum of each is taken."""
    graph = Graph()
    graph.symbols = (Symbol("n", 1, 64),)
    x, w = (graph.add_input(name, TensorType("float32", shape)) for name, shape in
            (("x", (rows, depth)), ("w", (depth, columns))))  # fmt: skip
    sums = graph.emit("reduce_sum", x, axes=(1,), keepdims=True)
    graph.outputs = [graph.emit("add", graph.emit("transpose", graph.emit("matmul", x, w), perm=(1, 0)),
                                graph.emit("reshape", sums, shape=(1, rows)))]  # fmt: skip
    return graph


@pytest.mark.parametrize(
    ("graph", "left"),
    [
        (products(0, 4, 3), set()),
        (products(N, 4, 0), {"broadcast_to"}),
        (products(5, 0, 3), {"broadcast_to", "transpose", "reshape", "add"}),
        (products(N, 0, 3), {"broadcast_to", "transpose", "reshape", "add"}),
    ],
)
def test_what_has_no_elements_or_is_made_of_none_takes_no_sums(graph: Graph, left: set[str]) -> None:
    result = run_pipeline(graph, PassContext(listeners=[VerifyListener()]), "fixpoint(canonicalise,algebra,cse,dce)")
    assert {node.op for node in result.nodes} == left
    sizes = {"n": 5}
    assert_same_values(graph_at(graph, sizes), graph_at(result, sizes))
