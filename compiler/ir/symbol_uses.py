"""Symbols that occur in a graph, that values determine, and that nodes introduce."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .graph import Graph, Node, Value
from .ops import Kind, kind_of
from .sizes import Symbol, is_open, size_of, symbols_of
from .types import TensorType, Type

Symbols = frozenset[Symbol]
NO_SYMBOLS: Symbols = frozenset()


def bodies_of(node: Node) -> list[Graph]:
    """Return the graphs nested in a node."""
    return [attr for attr in node.attrs.values() if isinstance(attr, Graph)]


def symbols_of_type(type_: Type) -> Symbols:
    return symbols_of(type_.shape) if isinstance(type_, TensorType) else NO_SYMBOLS


def symbols_of_values(values: Iterable[Value]) -> Symbols:
    return NO_SYMBOLS.union(*(symbols_of_type(value.type) for value in values))


def symbols_of_node(node: Node) -> Symbols:
    """Return all symbols that occur in a node, including its results and nested graphs."""
    return symbols_of_values((*node.inputs, *node.outputs)).union(*map(_of_attribute, node.attrs.values()))


def _of_attribute(attribute: Any) -> Symbols:
    if isinstance(attribute, tuple):
        return NO_SYMBOLS.union(*map(_of_attribute, attribute))
    return symbols_within(attribute) if isinstance(attribute, Graph) else symbols_of([attribute])


def symbols_within(graph: Graph) -> Symbols:
    """Return all symbols that occur in a graph."""
    claimed = symbols_of(claim.size for claim in graph.claims)
    return (symbols_of_values(graph.inputs) | claimed).union(*map(symbols_of_node, graph.nodes))


def determined_by(values: Iterable[Value]) -> Symbols:
    """Return the symbols that are a dimension by themselves."""
    dims = {d for v in values if isinstance(v.type, TensorType) for d in v.type.shape if is_open(d)}
    return frozenset(s for s in symbols_of(dims) if size_of(s) in dims)


def made_by(node: Node, known: Symbols) -> Symbols:
    """Return the symbols that a host or control node introduces: dimensions of its results that none of its operands
    has.
    """
    if kind_of(node.op) not in (Kind.HOST, Kind.CONTROL):
        return NO_SYMBOLS
    return determined_by(node.outputs) - known - symbols_of_values(node.inputs)


REQUIRED = "host.Required"
"""Operator that ends a run whose sizes contradict the graph; kept for that effect, not for its result."""


def remove_dead(graph: Graph) -> int:
    """Remove nodes of whose results neither values nor sizes are used; returns their number."""
    makers = _makers(graph)
    live = _live(graph, makers) if makers else None
    outputs, count = set(graph.outputs), 0
    for node in reversed(graph.nodes):
        used = (
            any(v.uses or v in outputs for v in node.outputs) or node.op == REQUIRED if live is None else node in live
        )
        if not used:
            graph.remove(node)
            count += 1
    return count


def idle_symbols(graph: Graph) -> dict[Symbol, Node]:
    """Return the symbols that no live node but those that introduce them has, so that no nested graph will check them;
    each with such a node.
    """
    makers, known = _makers(graph), symbols_of_values(graph.inputs)
    used = NO_SYMBOLS.union(*(symbols_of_node(node) - made_by(node, known) for node in _live(graph, makers)))
    return {symbol: nodes[0] for symbol, nodes in makers.items() if symbol not in used}


def _makers(graph: Graph) -> dict[Symbol, list[Node]]:
    known, found = symbols_of_values(graph.inputs), dict[Symbol, list[Node]]()
    for node in graph.nodes:
        for symbol in made_by(node, known):
            found.setdefault(symbol, []).append(node)
    return found


def _live(graph: Graph, makers: dict[Symbol, list[Node]]) -> set[Node]:
    live: set[Node] = set()
    waiting = [v.producer for v in graph.outputs if v.producer is not None]
    waiting += [node for node in graph.nodes if node.op == REQUIRED]
    for symbol in symbols_of_values(graph.outputs):
        waiting += makers.get(symbol, [])
    while waiting:
        node = waiting.pop()
        if node in live:
            continue
        live.add(node)
        waiting += [v.producer for v in node.inputs if v.producer is not None]
        for symbol in symbols_of_node(node):
            waiting += makers.get(symbol, [])
    return live
