"""Inlining of control-flow bodies into the surrounding graph, and run-time sizes of results, which become known once
other values replace the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilestitch.compiler.ir import Graph, Node, TensorType, Value, kind_of
from tilestitch.compiler.ir.claims import Claim
from tilestitch.compiler.ir.ops import Kind
from tilestitch.compiler.ir.sizes import Size, Symbol, is_open, size_of
from tilestitch.compiler.ir.substitute import put_sizes
from tilestitch.compiler.ir.symbol_uses import Symbols, made_by, symbols_of_type, symbols_of_values
from tilestitch.compiler.ir.types import Type, types_compatible


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


def found_sizes(graph: Graph, node: Node, results: Sequence[Type]) -> dict[str, Size] | None:
    """Return the values of the symbols that the node defines, if values of these types replace its outputs; None if
    readers of the outputs were promised other types.
    """
    made, found = made_by(node, symbols_of_values(graph.inputs)) & set(graph.symbols), dict[str, Size]()
    for result, output in zip(results, node.outputs, strict=True):
        if not types_compatible(result, output.type) or not _find(made, result, output.type, found):
            return None
    return found


def _find(made: Symbols, result: Type, promised: Type, found: dict[str, Size]) -> bool:
    """Add the symbols of a promised type to `found`; return False where one is not determined."""
    lacking = (made & symbols_of_type(promised)) - symbols_of_type(result)
    if not isinstance(result, TensorType) or not isinstance(promised, TensorType):
        return not lacking
    for symbol in lacking:
        sizes = {known for known, size in zip(result.shape, promised.shape, strict=True) if size == size_of(symbol)}
        sizes |= {found[symbol.name]} if symbol.name in found else set()
        if len(sizes) != 1:
            return False
        size = sizes.pop()
        if isinstance(size, str):
            return False
        found[symbol.name] = size
    return True


def settle(graph: Graph, sizes: Mapping[str, Size], claims: Iterable[Claim], symbols: Iterable[Symbol] = ()) -> None:
    """Update the graph with known sizes, assumed claims, and symbols."""
    graph.claims = tuple(dict.fromkeys((*graph.claims, *claims)))
    graph.symbols = tuple(dict.fromkeys((*graph.symbols, *symbols)))
    if sizes:
        put_sizes(graph, sizes)
        graph.claims = tuple(claim for claim in graph.claims if is_open(claim.size) or not claim.holds({}))
