"""Schedules of row-wise kernels on a CPU: loops, values kept per row, and splitting of few long rows."""

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
from tilestitch.passes.plan.parts import ARG_REDUCTIONS, Roles, RowSpace
from tilestitch.passes.plan.view import GroupView

from .loops import choose_loops

MIN_ELEMENTS = 1 << 17
"""Iteration spaces smaller than this do not justify more launches."""
MIN_PART = 4096
MAX_PARTS = 64
MANY_ROWS = 8
TASK_ELEMENTS = 12288
CACHE_COST = 4
"""A value that takes this many operations to recompute is kept for later passes."""
CACHE_BYTES = 512 * 1024
"""Values of rows that need more workspace than this are recomputed instead."""
MOST_VECTORS, MOST_DEAR_VECTORS = 4, 2
"""Most vectors per step of cheap and of expensive work."""


def row_schedules(view: GroupView, roles: Roles, isa: Isa) -> list[CpuRowSchedule | CpuSplitRowSchedule]:
    """Return the candidate schedules of a row-wise group with at least one row: with whole and with split rows."""
    assert roles.rows is not None
    whole = whole_rows(view, roles, isa)
    parts = 1 if any(node.op in ARG_REDUCTIONS for node in view.nodes) else parts_of(roles.rows)
    if parts == 1:
        return [whole]
    pieces, _ = pieces_of(view, view.stored, roles.rows, parts)
    return [whole, CpuSplitRowSchedule(parts, tuple(_piece(piece, own, isa) for piece, own in pieces))]


def whole_rows(view: GroupView, roles: Roles, isa: Isa) -> CpuRowSchedule:
    """Return the schedule with whole rows."""
    return _one_launch(RowGroup(view.nodes, roles, view.inputs, view.stored), isa)


def _piece(piece: Piece, roles: Roles, isa: Isa) -> CpuRowSchedule | CpuLoopSchedule:
    if roles.kind is GroupKind.ROWWISE:
        return _one_launch(RowGroup(piece.nodes, roles, piece.inputs, piece.outputs), isa)
    return choose_loops(piece.nodes, piece.inputs, piece.outputs, isa)


def parts_of(rows: RowSpace) -> int:
    """Return into how many parts each row may be split; 1 if rows are many, short, or of a length that does not
    divide.
    """
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
    """Return the operations to compute an element of `value` from memory or reduced values."""
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
    """Return the merged dimensions of the rows, and which are reduced. Neighbouring dimensions are merged where
    everything read and stored has uniform strides. Passes over a row read inputs, and results of reductions, which are
    in registers.
    """
    shape = group.shape
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    extents, reduced = [shape[d] for d in dims] or [1], [d in group.axes for d in dims] or [False]
    if prod(shape):
        extents, reduced = merge(extents, reduced, row_walk(group, extents).accesses)
    return tuple(extents), tuple(reduced)


def row_walk(group: RowGroup, extents: Sequence[int]) -> Walk:
    """Return the accesses along rows in loops over these extents."""
    walked = group.walked
    known = [*group.inputs, *(v for n in group.nodes if kind_of(n.op) is Kind.REDUCTION for v in n.outputs)]
    return walk_of(walked, known, extents, lambda i: [reshape_index(i, extents, v.shape) for v in walked])
