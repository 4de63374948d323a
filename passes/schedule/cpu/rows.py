"""Schedules of row-wise kernels on a CPU: loops, what is kept of a row, and parts of few long rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilestitch.compiler.ir import Kind, Node, Value, kind_of, op_spec
from tilestitch.compiler.ir.accesses import Walk, merge, walk_of
from tilestitch.compiler.ir.indexing import reshape_index
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.access.split_rows import Piece, pieces_of
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.cpu.rows import RowGroup, RowPlan
from tilestitch.passes.plan.cpu.schedules import CpuLoopSchedule, CpuRowSchedule, CpuSplitRowSchedule
from tilestitch.passes.plan.parts import Roles, RowSpace
from tilestitch.passes.plan.view import GroupView

from .loops import choose_loops

MIN_ELEMENTS = 1 << 17
"""Iteration spaces smaller than this are not worth more launches."""
MIN_PART = 4096
MAX_PARTS = 64
MANY_ROWS = 8
ARG_REDUCTIONS = frozenset({"arg_max", "arg_min"})
TASK_ELEMENTS = 12288
CACHE_COST = 4
"""A value that takes this many operations to compute again is kept for the passes that follow."""
CACHE_BYTES = 512 * 1024
"""Rows that need more workspace than this are computed again instead."""
MOST_VECTORS, MOST_DEAR_VECTORS = 4, 2
"""Of a step of cheap and of expensive work."""


def row_schedules(view: GroupView, roles: Roles, isa: Isa) -> list[CpuRowSchedule | CpuSplitRowSchedule]:
    """Return the schedules to choose among for a row-wise group with at least one row: rows whole, and in parts."""
    assert roles.rows is not None
    whole = whole_rows(view, roles, isa)
    parts = 1 if any(node.op in ARG_REDUCTIONS for node in view.nodes) else parts_of(roles.rows)
    if parts == 1:
        return [whole]
    pieces, _ = pieces_of(view, view.stored, roles.rows, parts)
    return [whole, CpuSplitRowSchedule(parts, tuple(_piece(piece, own, isa) for piece, own in pieces))]


def whole_rows(view: GroupView, roles: Roles, isa: Isa) -> CpuRowSchedule:
    """Return the schedule that takes rows whole."""
    return _one_launch(RowGroup(view.nodes, roles, view.inputs, view.stored), isa)


def _piece(piece: Piece, roles: Roles, isa: Isa) -> CpuRowSchedule | CpuLoopSchedule:
    if roles.kind is GroupKind.ROWWISE:
        return _one_launch(RowGroup(piece.nodes, roles, piece.inputs, piece.outputs), isa)
    return choose_loops(piece.nodes, piece.inputs, piece.outputs, isa)


def parts_of(rows: RowSpace) -> int:
    """Into how many parts each row may be cut; 1 if rows are many, short, or of a length that does not divide."""
    if not rows.trailing or rows.length * rows.count < MIN_ELEMENTS or rows.count >= MANY_ROWS:
        return 1
    wanted = min(MAX_PARTS, rows.length // MIN_PART)
    return next((p for p in range(wanted, 1, -1) if rows.length % p == 0), 1)


def _one_launch(group: RowGroup, isa: Isa) -> CpuRowSchedule:
    members = frozenset(group.nodes)
    kept = group.kept(lambda value: _cost(value, members) >= CACHE_COST)
    bare = _loops(group, isa)
    schedule = replace(bare, kept=group.places(kept))
    return bare if RowPlan(group, schedule).scratch_bytes > CACHE_BYTES else schedule


def _cost(value: Value, members: frozenset[Node]) -> int:
    """Return the operations to compute an element of `value` from what lies in memory or is reduced."""
    cost = 0
    seen: set[Node] = set()
    stack = [value.producer]
    while stack:
        node = stack.pop()
        if node is None or node in seen or node not in members or kind_of(node.op) is Kind.REDUCTION:
            continue
        seen.add(node)
        spec = op_spec(node.op)
        cost += 10 if spec.expensive else 3 if node.op in ("div", "sqrt") else 1
        stack.extend(v.producer for v in node.inputs)
    return cost


def _loops(group: RowGroup, isa: Isa) -> CpuRowSchedule:
    extents, reduced = _joined(group)
    last = max(1, extents[-1])
    lanes = min(isa.vector_bytes // 4, 1 << (last.bit_length() - 1))
    dear = sum(op_spec(n.op).expensive for n in group.nodes)
    vectors = 1
    while vectors < (MOST_DEAR_VECTORS if dear else MOST_VECTORS) and lanes > 1 and last >= 2 * vectors * lanes:
        vectors *= 2
    row_elements = prod(e for e, r in zip(extents, reduced, strict=True) if r)
    width = 1 if reduced[-1] else lanes * vectors
    rows = max(1, TASK_ELEMENTS // (1 + dear) // max(1, row_elements * width))
    return CpuRowSchedule(extents, reduced, lanes, vectors, rows)


def _joined(group: RowGroup) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the dimensions of the rows, neighbours joined in which all that is read and stored lies alike, and which
    are reduced. The walk along a row reads inputs, and results of reductions, which lie in registers.
    """
    shape = group.shape
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    extents, reduced = [shape[d] for d in dims] or [1], [d in group.axes for d in dims] or [False]
    if prod(shape):
        extents, reduced = merge(extents, reduced, row_walk(group, extents).accesses)
    return tuple(extents), tuple(reduced)


def row_walk(group: RowGroup, extents: Sequence[int]) -> Walk:
    """Return the accesses along rows, in loops over these extents."""
    walked = group.walked
    known = [*group.inputs, *(v for n in group.nodes if kind_of(n.op) is Kind.REDUCTION for v in n.outputs)]
    return walk_of(walked, known, extents, lambda i: [reshape_index(i, extents, v.shape) for v in walked])
