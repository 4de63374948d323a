"""Row-wise groups with few long rows (split reductions): many threads compute parts of a row, which are combined.

The group is rewritten as a small graph of its own, in which each reduction reads its operand as [rows, parts, length]
and is computed in two steps: over the length, then over the parts. Each piece of that graph is a group that the other
templates can lower; values between the pieces are temporaries.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of
from tilestitch.compiler.ir.types import HALVES
from tilestitch.passes.plan.cpu.schedules import CpuSplitRowSchedule
from tilestitch.passes.plan.group import GroupKind
from tilestitch.passes.plan.roles import Roles, RowSpace, roles_of
from tilestitch.passes.plan.schedules import SplitRowSchedule
from tilestitch.passes.plan.view import GroupView


@dataclass(frozen=True)
class Piece:
    """One launch of the rewritten group: its nodes, what it reads, and what it stores."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def why_not_cut(rows: RowSpace, parts: int) -> str | None:
    """Return why rows cannot be split into `parts` equal parts; None if they can."""
    if parts < 2 or rows.length % parts or not rows.trailing:
        return f"rows of {rows.length} elements over axes {rows.axes} are not cut into {parts} equal parts"
    return None


def split_reasons(
    view: GroupView, roles: Roles, schedule: SplitRowSchedule | CpuSplitRowSchedule, of_rows: type,
    reasons: Callable[[Piece, Roles, Any], Iterator[str]],
) -> Iterator[str]:  # fmt: skip
    """Yield why the rows of a group cannot be split as scheduled. of_rows: the schedules of pieces that are row-wise.
    `reasons(piece, roles, schedule)` yields why a piece cannot be computed by a schedule of its kind.
    """
    assert roles.rows is not None
    uncut = why_not_cut(roles.rows, schedule.parts)
    if uncut is not None:
        yield uncut
        return
    pieces, _ = pieces_of(view, view.stored, roles.rows, schedule.parts)
    if len(pieces) != len(schedule.pieces):
        yield f"{len(pieces)} launches take as many schedules, not {len(schedule.pieces)}"
        return
    for (piece, own), each in zip(pieces, schedule.pieces, strict=True):
        if isinstance(each, of_rows) != (own.kind is GroupKind.ROWWISE):
            yield f"a launch that is {own.kind.value} has a schedule of template {each.template}"
        else:
            yield from reasons(piece, own, each)


def split_rows(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], rows: RowSpace, parts: int
) -> tuple[list[Piece], dict[Value, Value]]:
    """Return the pieces of a group whose rows are split into `parts`, in order, and which of their values are the
    group's own.
    """
    graph = Graph("split")
    new: dict[Value, Value] = {v: graph.add_input(v.name, v.type) for v in inputs}
    for node in nodes:
        # Constants of one element: copying the value leaves the uses of the old one as they are.
        new.update((v, Value(v.name, v.type, v.data)) for v in node.inputs if v not in new)
        operands = [new[v] for v in node.inputs]
        if kind_of(node.op) is Kind.REDUCTION:
            new[node.output] = _reduce_in_parts(graph, node, operands[0], rows, parts)
            continue
        twin = graph.add(node.op, operands, node.attrs, origins=node.origins)
        new.update(zip(node.outputs, twin.outputs, strict=True))
    own = {new[v]: v for v in (*inputs, *outputs)}
    return _pieces(graph, [new[v] for v in outputs]), own


def pieces_of(
    view: GroupView, outputs: Sequence[Value], rows: RowSpace, parts: int
) -> tuple[list[tuple[Piece, Roles]], dict[Value, Value]]:
    """Return the pieces of a row-wise group whose rows are split, each with its roles, and which values are the group's
    own.
    """
    pieces, own = split_rows(view.nodes, view.inputs, outputs, rows, parts)
    found = []
    for piece in pieces:
        roles = roles_of(piece.nodes, piece.outputs, view.name)
        assert isinstance(roles, Roles), roles
        found.append((piece, roles))
    return found, own


def _reduce_in_parts(graph: Graph, node: Node, operand: Value, rows: RowSpace, parts: int) -> Value:
    count, length = rows.count, prod(rows.shape) // max(1, rows.count)
    dtype = operand.dtype
    if dtype in HALVES:
        operand = graph.emit("cast", operand, to="float32")
    cut = graph.emit("reshape", operand, shape=(count, parts, length // parts))
    partial = graph.emit(node.op, cut, axes=(2,), keepdims=False, origins=node.origins)
    joined = graph.emit(node.op, partial, axes=(1,), keepdims=False, origins=node.origins)
    result = graph.emit("reshape", joined, shape=node.output.shape)
    return graph.emit("cast", result, to=dtype) if dtype in HALVES else result


def _pieces(graph: Graph, outputs: Sequence[Value]) -> list[Piece]:
    """Return one piece for each reduction, with what it pulls, and one for each remaining stored value."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    stored = [v for n in graph.nodes if kind_of(n.op) is Kind.REDUCTION for v in n.outputs]
    stored = list(dict.fromkeys([*stored, *outputs]))
    pieces = []
    for value in sorted(stored, key=lambda v: order[v.producer] if v.producer else -1):
        nodes, reads = _pulled(value, set(stored) - {value})
        pieces.append(Piece(tuple(sorted(nodes, key=order.__getitem__)), tuple(reads), (value,)))
    return pieces


def _pulled(value: Value, known: set[Value]) -> tuple[list[Node], list[Value]]:
    """Return the nodes that compute `value` from inputs and `known` values, and the values that they read."""
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
