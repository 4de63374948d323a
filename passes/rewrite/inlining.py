"""Inlining of control-flow bodies into the surrounding graph."""

from __future__ import annotations

from collections.abc import Sequence

from tilestitch.compiler.ir import Graph, Node, Value, kind_of
from tilestitch.compiler.ir.ops import Kind
from tilestitch.compiler.ir.symbol_uses import symbols_of_type


def knows_sizes_of(operands: Sequence[Value], body: Graph) -> bool:
    """Return whether the body's inputs have only sizes that the operands have; others would hold for any iteration."""
    pairs = zip(operands, body.inputs, strict=True)
    return all(symbols_of_type(formal.type) <= symbols_of_type(given.type) for given, formal in pairs)


class Inlining:
    """Copies of `body`'s nodes before `node`, one per iteration, which share the body's constants."""

    def __init__(self, graph: Graph, node: Node, body: Graph) -> None:
        self.graph, self.node, self.body = graph, node, body
        self._constants: dict[Value, Value] = {}

    def turn(self, operands: Sequence[Value]) -> list[Value]:
        """Return the body's outputs for inputs `operands`."""
        mapping = dict(zip(self.body.inputs, operands, strict=True))

        def mapped(value: Value) -> Value:
            return mapping[value] if value in mapping else self._constant(value)

        for inner in self.body.nodes:
            stated = [o.type for o in inner.outputs] if kind_of(inner.op) in (Kind.HOST, Kind.CONTROL) else None
            twin = self.graph.add(
                inner.op, [mapped(v) for v in inner.inputs], inner.attrs,
                origins=(*inner.origins, *self.node.origins), types=stated, name=inner.name, insert_before=self.node,
            )  # fmt: skip
            mapping.update(zip(inner.outputs, twin.outputs, strict=True))
        return [mapped(o) for o in self.body.outputs]

    def _constant(self, value: Value) -> Value:
        if value not in self._constants:
            assert value.data is not None
            self._constants[value] = self.graph.constant(value.data, name=value.name)
        return self._constants[value]
