"""Partitioning of graphs where sizes arise: what depends on a size that only a run can tell becomes a graph of its own.

The results of NonZero and the like have data-dependent sizes. What is computed with them is moved to the body of a
`call` that has such results as inputs: like any program it solves its symbols from the shapes of its inputs. Nodes are
partitioned by level. Those of level 0 need only the graph's own symbols; a node that makes a size (its *maker*) stays
outside, so that a graph consists of level 0, its makers, a call for level 1, the makers there, and so on.

The bodies of loops and branches are closed in the same way: each gets the symbols that occur in it, and further inputs
whose shapes determine those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilestitch.compiler.ir import UNKNOWN, Graph, Kind, Node, SequenceType, Value, kind_of
from tilestitch.compiler.ir.sizes import Symbol, symbols_of
from tilestitch.compiler.ir.symbol_uses import (
    NO_SYMBOLS,
    Symbols,
    bodies_of,
    determined_by,
    made_by,
    symbols_of_node,
    symbols_of_type,
    symbols_of_values,
    symbols_within,
)

CALL = "call"


def with_regions(graph: Graph) -> Graph:
    """Change the graph in place so that it, and all nested graphs, have only symbols that their inputs determine."""
    known = symbols_of_values(graph.inputs)
    levels = _Levels.of(graph, known)
    calls = _moved(graph, levels)
    _place_claims(graph, known, calls, levels)
    for node in graph.nodes:
        _close(graph, node, known | levels.of_symbol.keys())
        for body in bodies_of(node):
            with_regions(body)
    _forget(graph, known)
    return graph


# --- levels -----------------------------------------------------------------------------------------------------------


@dataclass
class _Levels:
    """Levels of nodes and symbols; a maker has the level of its operands, its symbols the next one. Host steps on
    sequences are like makers: they stay outside of calls, so that these have kernels only.
    """

    of_node: dict[Node, int] = field(default_factory=dict)
    of_symbol: dict[Symbol, int] = field(default_factory=dict)
    makers: set[Node] = field(default_factory=set)

    @staticmethod
    def of(graph: Graph, known: Symbols) -> _Levels:
        found = _Levels()
        waiting = graph.nodes
        while waiting:  # nodes without operands may precede what makes their sizes
            rest = [node for node in waiting if not found._settle(node, known)]
            if len(rest) == len(waiting):
                raise AssertionError(f"nothing makes the sizes of {rest[0].name}: {rest[0].outputs}")
            waiting = rest
        return found

    def _settle(self, node: Node, known: Symbols) -> bool:
        made = made_by(node, known)
        needed = symbols_of_node(node) - known - made - _own_symbols(node)
        producers = [v.producer for v in node.inputs if v.producer is not None]
        if not needed <= self.of_symbol.keys() or not all(p in self.of_node for p in producers):
            return False
        level = max([0, *(self.of_symbol[s] for s in needed), *(self._after(p) for p in producers)])
        self.of_node[node] = level
        if made or (level and _handles_sequences(node)):
            self.makers.add(node)
            for symbol in made:
                self.of_symbol.setdefault(symbol, level + 1)
        return True

    def _after(self, producer: Node) -> int:
        return self.of_node[producer] + (producer in self.makers)


def _own_symbols(node: Node) -> Symbols:
    """Return the symbols that only bodies of the node have."""
    return frozenset(symbol for body in bodies_of(node) for symbol in body.symbols)


def _handles_sequences(node: Node) -> bool:
    """Return whether a node is a host step on sequences, to which sizes of tensors mean nothing."""
    values = (*node.inputs, *node.outputs)
    return kind_of(node.op) is Kind.HOST and any(isinstance(value.type, SequenceType) for value in values)


# --- calls ------------------------------------------------------------------------------------------------------------


def _moved(graph: Graph, levels: _Levels) -> dict[int, Node]:
    """Move nodes above level 0 into calls, one per level; returns these by level."""
    members: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node not in levels.makers and levels.of_node[node]:
            members.setdefault(levels.of_node[node], []).append(node)
    calls = {level: moved_to_call(graph, members[level], f"{graph.name}.{level}") for level in sorted(members)}
    ranks = {call: 2 * level for level, call in calls.items()}
    ranks.update({node: 2 * level + (node in levels.makers) for node, level in levels.of_node.items()})
    graph.sort(ranks.__getitem__)
    return calls


def moved_to_call(graph: Graph, nodes: Sequence[Node], name: str) -> Node:
    """Replace some nodes, anywhere in the graph, by a call; the graph must be sorted afterwards."""
    inside = set(nodes)
    produced = [output for node in nodes for output in node.outputs]
    results = [v for v in produced if graph.is_output(v) or any(user not in inside for user, _ in v.uses)]
    body = Graph(name)
    values = (v for node in nodes for v in (*node.inputs, *node.outputs))
    for taken in dict.fromkeys((*(node.name for node in nodes), *(v.name for v in values))):
        body.fresh_name(taken)
    body.copy_nodes(nodes, {})
    copies = {v.name: v for node in body.nodes for v in node.outputs}
    body.outputs = [copies[v.name] for v in results]
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v.producer not in inside and not v.is_constant)
    inner = {v.name: v for node in body.nodes for v in node.inputs}
    body.inputs = [inner[v.name] for v in read]
    origins = dict.fromkeys(origin for node in nodes for origin in node.origins)
    call = graph.add(CALL, list(read), {"body": body}, origins=origins, types=[v.type for v in results])
    for old, new in zip(results, call.outputs, strict=True):
        graph.replace_uses(old, new)
        old.name, new.name = new.name, old.name
    for node in reversed(nodes):
        graph.remove(node)
    return call


# --- bodies -----------------------------------------------------------------------------------------------------------


def _close(graph: Graph, node: Node, known: Symbols) -> None:
    """Give the bodies of a node inputs that determine their outer symbols."""
    bodies = bodies_of(node)
    missing = NO_SYMBOLS.union(*((symbols_within(body) & known) - determined_by(body.inputs) for body in bodies))
    for value in list(_determining(graph, node, missing)):
        graph.append_input(node, value)
        for body in bodies:
            body.add_input(value.name, value.type)


def _determining(graph: Graph, node: Node, missing: Symbols) -> Iterator[Value]:
    """Yield values available before the node whose shapes determine some symbols."""
    open_ = sorted(missing, key=lambda symbol: symbol.name)
    while open_:
        symbol = open_.pop()
        found = next((v for v in _before(graph, node) if symbol in determined_by([v])), None)
        if found is not None:
            yield found
            done = determined_by([found])
            open_ = [s for s in open_ if s not in done]
            continue
        mentioning = [v for v in graph.inputs if symbol in symbols_of_type(v.type)]  # of sums, and the like
        yield from mentioning
        open_ = [s for s in open_ if s not in symbols_of_values(mentioning)]


def _before(graph: Graph, node: Node) -> Iterator[Value]:
    yield from graph.inputs
    for other in graph.nodes:
        if other is node:
            return
        yield from other.outputs


# --- what is left outside ---------------------------------------------------------------------------------------------


def _place_claims(graph: Graph, known: Symbols, calls: Mapping[int, Node], levels: _Levels) -> None:
    """Move claims on sizes that arise later to the bodies where something is computed with them; otherwise the host
    checks them itself.
    """
    for claim in graph.claims:
        made = symbols_of([claim.size]) - known
        level = max((levels.of_symbol.get(symbol, 0) for symbol in made), default=0)
        place = next((calls[number] for number in sorted(calls) if number >= level), None)
        if made and made <= levels.of_symbol.keys() and place is not None:
            body = place.attrs["body"]
            body.claims = (*body.claims, claim)
    graph.claims = tuple(claim for claim in graph.claims if symbols_of([claim.size]) <= known)


def _forget(graph: Graph, known: Symbols) -> None:
    """Leave sizes that no input determines to the run."""
    graph.symbols = (
        *(s for s in graph.symbols if s in known),
        *sorted(known.difference(graph.symbols), key=lambda symbol: symbol.name),
    )
    for node in graph.nodes:
        for output in node.outputs:
            if not symbols_of_type(output.type) <= known:
                left = (d if symbols_of([d]) <= known else UNKNOWN for d in output.tensor_type.shape)
                output.type = output.tensor_type.with_shape(tuple(left))
