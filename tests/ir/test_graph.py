"""Graph surgery keeps def-use, origins and order right; the verifier sees what is wrong."""

import numpy as np
import pytest

from tilestitch.compiler.ir import Graph, IRError, Node, TensorType, TypeRuleError, VerifyError
from tilestitch.compiler.ir.graph import NodeList
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.compiler.ir.verify import verify


def chain() -> Graph:
    return parse_graph("""graph @main(%x: float32[2,3]) -> (%c) {
      %a = neg(%x) : float32[2,3]  from "A"
      %b = exp(%a) : float32[2,3]  from "B"
      %c = add(%b, %a) : float32[2,3]  from "C"
    }""")


def test_replacing_a_node_moves_its_readers_and_its_origins() -> None:
    graph = chain()
    b = graph.node("b")
    new = graph.emit("tanh", b.inputs[0], insert_before=b)
    graph.replace(b, [new])
    verify(graph)
    assert [n.op for n in graph.nodes] == ["neg", "tanh", "add"]
    assert graph.node("tanh").origins == ("B",)


def test_replacing_a_graph_output() -> None:
    graph = chain()
    graph.replace(graph.node("c"), [graph.node("b").output])
    verify(graph)
    assert graph.outputs[0].name == "b"


def test_a_used_node_cannot_be_removed() -> None:
    graph = chain()
    with pytest.raises(IRError, match="%a is still used"):
        graph.remove(graph.node("a"))


def test_sorting_repairs_order_and_finds_cycles() -> None:
    graph = chain()
    graph._nodes = NodeList(reversed(graph.nodes))
    with pytest.raises(VerifyError, match="before it is defined"):
        verify(graph)
    graph.sort()
    verify(graph)
    graph.set_input(graph.node("a"), 0, graph.node("c").output)
    with pytest.raises(IRError, match="cycle"):
        graph.sort()


def test_names_are_unique() -> None:
    graph = chain()
    assert graph.emit("neg", graph.outputs[0]).name == "neg"
    assert graph.emit("neg", graph.outputs[0]).name == "neg_1"
    assert graph.constant(1.0, name="x").name == "x_1"


def test_a_clone_is_independent() -> None:
    graph = chain()
    copy = graph.clone()
    copy.replace(copy.node("b"), [copy.node("a").output])
    assert str(graph) == str(chain()) != str(copy)
    verify(graph)
    verify(copy)


def test_constants_are_read_only() -> None:
    value = Graph().constant(np.zeros(3))
    assert value.data is not None
    assert not value.data.flags.writeable


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("add", [(2, 3), (2, 4)], {}, "do not broadcast"),
        ("matmul", [(2, 3), (4, 5)], {}, "inner dimensions 3 and 4"),
        ("reshape", [(2, 3)], {"shape": (4,)}, "6 elements do not fit"),
        ("transpose", [(2, 3)], {"perm": (0, 0)}, "no permutation"),
        ("slice", [(4,)], {"starts": (2,), "steps": (1,), "sizes": (3,)}, "leave a dimension of 4"),
        ("reduce_sum", [(2, 3)], {"axes": (2,), "keepdims": False}, "do not fit rank 2"),
        ("reduce_sum", [(2, 3)], {"keepdims": False}, "attributes missing: .'axes'."),
        ("neg", [(2,)], {"axis": 1}, "unknown: .'axis'."),
        ("logical_not", [(2,)], {}, "must be of kind bool"),
        ("concat", [(2, 3), (3, 3)], {"axis": 1}, "dimension 0 differs"),
    ],
)
def test_type_rules_refuse(op: str, shapes: list[tuple[int, ...]], attrs: dict, message: str) -> None:
    graph = Graph()
    values = [graph.add_input("x", TensorType("float32", s)) for s in shapes]
    with pytest.raises(TypeRuleError, match=message):
        graph.emit(op, *values, **attrs)


def test_symbolic_dimensions_pass_through_type_rules() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType("float32", ("n", 3)))
    w = graph.add_input("w", TensorType("float32", (3, 5)))
    y = graph.emit("matmul", x, w)
    assert y.type == TensorType("float32", ("n", 5))
    assert graph.emit("add", y, graph.emit("neg", y)).type == y.type
    with pytest.raises(IRError, match="--shape"):
        _ = y.shape


def test_the_verifier_checks_def_use_lists() -> None:
    graph = chain()
    graph.node("a").output._uses.clear()
    with pytest.raises(VerifyError, match="uses of %a"):
        verify(graph)


def test_the_verifier_checks_recorded_types() -> None:
    graph = chain()
    graph.node("b").output.type = TensorType("float32", (9, 9))
    with pytest.raises(VerifyError, match="its rule gives"):
        verify(graph)


def test_a_node_lists_each_origin_once() -> None:
    assert Node("neg", [], [], {}, "n", ["a", "b", "a"]).origins == ("a", "b")


def test_a_node_is_found_by_its_name_until_it_is_removed() -> None:
    graph = chain()
    found = graph.node("b")
    graph.replace_uses(found.output, found.inputs[0])
    graph.sort()
    assert graph.clone().node("b") is not found is graph.node("b")
    graph.remove(found)
    with pytest.raises(IRError, match="no node 'b'"):
        graph.node("b")
    graph.emit("tanh", graph.node("a").output)
    assert graph.node("tanh").op == "tanh"
