"""What people look at: Graphviz and Netron views of a graph."""

import onnx
from hypothesis import given

from tests.strategies import graphs
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.compiler.viewers import DOMAIN, to_dot, to_onnx

TEXT = """graph @main(%x: float32[2,3]) -> (%y) {
  %c = constant [1.5] : float32[1]
  %a = add(%x, %c) : float32[2,3]  from "Add_0"
  %y = reduce_sum(%a) {axes=[], keepdims=true} : float32[2,3]  from "Sum_0"
}"""


def test_graphviz_boxes_the_nodes_of_a_group() -> None:
    dot = to_dot(parse_graph(TEXT), {"a": "kernel 1", "y": "kernel 1"})
    assert dot.count("subgraph cluster_") == 1
    assert '"a" -> "y" [label="float32[2,3]"]' in dot
    assert "Add_0" in dot


def test_netron_sees_operators_types_and_origins() -> None:
    model = to_onnx(parse_graph(TEXT))
    add, reduce = model.graph.node
    assert (add.domain, add.op_type, list(add.input)) == (DOMAIN, "add", ["x", "c"])
    assert [a.name for a in reduce.attribute] == ["axes", "keepdims", "onnx_nodes"]
    assert [i.name for i in model.graph.initializer] == ["c"]


@given(graphs())
def test_every_graph_can_be_viewed(graph: Graph) -> None:
    assert to_dot(graph).startswith("digraph")
    onnx.checker.check_model(to_onnx(graph))


def test_netron_sees_open_dimensions_as_expressions() -> None:
    text = "graph @main[n=1..9](%x: float32[2 * n,3]) -> (%y) {\n  %y = neg(%x) : float32[2 * n,3]\n}"
    (x,) = to_onnx(parse_graph(text)).graph.input
    assert [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] == ["2 * n", 3]
