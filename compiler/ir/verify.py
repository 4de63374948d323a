"""The verifier: every invariant of a graph, checked between passes in tests and on request."""

import numpy as np

from .errors import IRError, TypeRuleError, VerifyError
from .graph import Graph, Node, Value
from .ops import Kind, infer_types, kind_of
from .types import TensorType, from_numpy_dtype, types_compatible


def verify(graph: Graph) -> None:
    """Raise VerifyError, naming graph, node and value, if `graph` breaks an invariant.

    Checked: values are defined before use and once; names are unique; def-use lists agree with operands; operands,
    attributes and recorded output types fit the operator's rule; constants match their type; nested graphs likewise.
    """
    _Verifier(graph).run()


class _Verifier:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.defined: set[Value] = set()
        self.names: dict[str, Value] = {}

    def fail(self, message: str) -> None:
        raise VerifyError(f"graph {self.graph.name}: {message}")

    def define(self, value: Value) -> None:
        other = self.names.setdefault(value.name, value)
        if other is not value:
            self.fail(f"two values are called %{value.name}; rename one with Graph.fresh_name")
        self.defined.add(value)

    def run(self) -> None:
        for value in self.graph.inputs:
            if value.producer is not None or value.is_constant:
                self.fail(f"input %{value.name} is also produced inside")
            self.define(value)
        node_names: set[str] = set()
        for node in self.graph.nodes:
            if node.name in node_names:
                self.fail(f"two nodes are called {node.name}")
            node_names.add(node.name)
            self.check_node(node)
        for value in self.graph.outputs:
            self.check_operand(value, "the graph's outputs")
        self.check_uses()

    def check_operand(self, value: Value, where: str) -> None:
        if value.is_constant:
            self.check_constant(value)
            self.define(value)
        elif value not in self.defined:
            self.fail(f"%{value.name} is used by {where} before it is defined (a missing Graph.sort?)")

    def check_constant(self, value: Value) -> None:
        data = value.data
        assert data is not None
        if not isinstance(data, np.ndarray) or value.producer is not None:
            self.fail(f"constant %{value.name} needs an ndarray and no producer")
        if value.type != TensorType(from_numpy_dtype(data.dtype), data.shape):
            self.fail(f"constant %{value.name} has type {value.type} but its data is {data.dtype}{list(data.shape)}")

    def check_node(self, node: Node) -> None:
        where = f"node {node.name} ({node.op})"
        for value in node.inputs:
            self.check_operand(value, where)
        try:
            stated = [o.type for o in node.outputs] if kind_of(node.op) in (Kind.HOST, Kind.CONTROL) else None
            expected = infer_types(node.op, [v.type for v in node.inputs], node.attrs, stated)
        except (TypeRuleError, IRError) as error:
            raise VerifyError(f"graph {self.graph.name}: {where}: {error}") from error
        if len(expected) != len(node.outputs):
            self.fail(f"{where} has {len(node.outputs)} outputs, its rule gives {len(expected)}")
        for i, (out, type_) in enumerate(zip(node.outputs, expected, strict=True)):
            if out.producer is not node or out.index != i:
                self.fail(f"{where}: output %{out.name} does not name it as producer")
            if not types_compatible(out.type, type_):
                self.fail(f"{where}: output %{out.name} is recorded as {out.type}, its rule gives {type_}")
            self.define(out)
        for attr in node.attrs.values():
            if isinstance(attr, Graph):
                verify(attr)

    def check_uses(self) -> None:
        expected: dict[Value, list[tuple[str, int]]] = {}
        for node in self.graph.nodes:
            for i, value in enumerate(node.inputs):
                expected.setdefault(value, []).append((node.name, i))
        for value in self.defined:
            recorded = sorted((node.name, i) for node, i in value.uses)
            if recorded != sorted(expected.get(value, [])):
                self.fail(
                    f"uses of %{value.name} are recorded as {recorded}, operands say {sorted(expected.get(value, []))}"
                )
