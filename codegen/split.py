"""Row-wise groups with few long rows: reductions are cut into parts that many threads compute, then joined.

The group is rewritten as a small graph of its own, in which each reduction reads its operand as [rows, parts, length]
and is done twice: over the length, then over the parts. Each piece of that graph is a group that the other templates
can lower; what lies between the pieces is temporary memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilestitch.codegen.compute.dtypes import HALVES
from tilestitch.codegen.groups import GroupView
from tilestitch.codegen.launch import KernelArg, TemporaryArg, ValueArg
from tilestitch.compiler.ir.graph import Graph, Node, Value
from tilestitch.compiler.ir.ops import Kind, kind_of
from tilestitch.passes.plan.roles import Roles, RowSpace, roles_of

MIN_ELEMENTS = 1 << 17
"""Iteration spaces smaller than this are not worth more launches."""
MIN_PART = 4096
MAX_PARTS = 64


@dataclass(frozen=True)
class Piece:
    """One launch of the rewritten group: its nodes, what it reads, and what it stores."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def parts_of(rows: RowSpace) -> int:
    """Into how many parts each row is cut; 1 if rows are many, short, or of a length that does not divide."""
    length = prod(d for a, d in enumerate(rows.shape) if a in rows.axes)
    count = prod(rows.dropped)
    trailing = rows.axes == tuple(range(len(rows.shape) - len(rows.axes), len(rows.shape)))
    if not trailing or length * count < MIN_ELEMENTS or count >= 8:
        return 1
    wanted = min(MAX_PARTS, length // MIN_PART)
    return next((p for p in range(wanted, 1, -1) if length % p == 0), 1)


def split_rows(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], rows: RowSpace, parts: int
) -> tuple[list[Piece], dict[Value, Value]]:
    """The pieces of a group whose rows are cut into `parts`, in order, and which of their values are the group's own.

    All reductions must be `reduce_*`.
    """
    graph = Graph("split")
    new: dict[Value, Value] = {v: graph.add_input(v.name, v.type) for v in inputs}
    for node in nodes:
        # Constants of one element; a value of their own keeps the uses of the old one as they are.
        new.update((v, Value(v.name, v.type, v.data)) for v in node.inputs if v not in new)
        operands = [new[v] for v in node.inputs]
        if kind_of(node.op) is Kind.REDUCTION:
            new[node.output] = _reduce_in_parts(graph, node, operands[0], rows, parts)
            continue
        twin = graph.add(node.op, operands, node.attrs, origins=node.origins)
        new.update(zip(node.outputs, twin.outputs, strict=True))
    own = {new[v]: v for v in (*inputs, *outputs)}
    return _pieces(graph, [new[v] for v in outputs]), own


def lower_in_parts(
    view: GroupView, outputs: Sequence[Value], rows: RowSpace, parts: int
) -> Iterator[tuple[Piece, Roles, tuple[KernelArg, ...]]]:
    """The pieces of a row-wise group whose rows are cut, each with its roles and the arguments of its launch."""
    pieces, own = split_rows(view.nodes, view.inputs, outputs, rows, parts)

    def argument(value: Value) -> KernelArg:
        if value in own:
            return ValueArg(own[value].name)
        return TemporaryArg(f"{view.name}.{value.name}", value.tensor_type.nbytes)

    for piece in pieces:
        roles = roles_of(piece.nodes, piece.outputs, view.name)
        assert isinstance(roles, Roles), roles
        yield piece, roles, tuple(argument(v) for v in (*piece.inputs, *piece.outputs))


def _reduce_in_parts(graph: Graph, node: Node, operand: Value, rows: RowSpace, parts: int) -> Value:
    count = prod(rows.dropped)
    length = prod(rows.shape) // max(1, count)
    dtype = operand.dtype
    if dtype in HALVES:
        operand = graph.emit("cast", operand, to="float32")
    cut = graph.emit("reshape", operand, shape=(count, parts, length // parts))
    partial = graph.emit(node.op, cut, axes=(2,), keepdims=False, origins=node.origins)
    joined = graph.emit(node.op, partial, axes=(1,), keepdims=False, origins=node.origins)
    result = graph.emit("reshape", joined, shape=node.output.shape)
    return graph.emit("cast", result, to=dtype) if dtype in HALVES else result


def _pieces(graph: Graph, outputs: Sequence[Value]) -> list[Piece]:
    """One piece for each reduction, with what it pulls, and one for each stored value that is left."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    stored = [v for n in graph.nodes if kind_of(n.op) is Kind.REDUCTION for v in n.outputs]
    stored = list(dict.fromkeys([*stored, *outputs]))
    pieces = []
    for value in sorted(stored, key=lambda v: order[v.producer] if v.producer else -1):
        nodes, reads = _pulled(value, set(stored) - {value})
        pieces.append(Piece(tuple(sorted(nodes, key=order.__getitem__)), tuple(reads), (value,)))
    return pieces


def _pulled(value: Value, known: set[Value]) -> tuple[list[Node], list[Value]]:
    """The nodes that compute `value` from inputs and `known` values, and those they read."""
    nodes: dict[Node, None] = {}
    reads: dict[Value, None] = {}
    stack = [value]
    while stack:
        top = stack.pop()
        if top in known or top.producer is None:
            if top.data is None or top.data.size != 1:
                reads[top] = None
            continue
        if top.producer in nodes:
            continue
        nodes[top.producer] = None
        stack.extend(top.producer.inputs)
    return list(nodes), list(reads)
