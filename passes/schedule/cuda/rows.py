"""Schedules of row-wise groups on GPUs: softmax, normalisation, reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.fusion.rules.spread import WARP, blocks_of_row, column_team, in_launches, row_team
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.access.row_loops import RowLoops, row_loops
from tilestitch.passes.plan.access.split_rows import pieces_of
from tilestitch.passes.plan.parts import Roles
from tilestitch.passes.plan.schedules import RowSchedule, SplitRowSchedule
from tilestitch.passes.plan.view import GroupView

from .elementwise import choose_vectors
from .gpu import Gpu

BLOCK = 128
"""Threads of a block whose teams are smaller."""
MOST_THREADS = 1024


def choose_rows(view: GroupView, roles: Roles, gpu: Gpu) -> RowSchedule | SplitRowSchedule:
    """The schedule of a row-wise group whose outputs have elements."""
    assert roles.rows is not None
    parts = in_launches(roles, gpu.multiprocessors)
    if parts == 1:
        return _one_launch(view.nodes, roles, view.inputs, view.stored, gpu).schedule
    pieces, _ = pieces_of(view, view.stored, roles.rows, parts)
    return SplitRowSchedule(parts, tuple(
        _one_launch(piece.nodes, own, piece.inputs, piece.outputs, gpu).schedule
        if own.kind is GroupKind.ROWWISE
        else choose_vectors(piece.nodes, piece.inputs, piece.outputs, gpu.device.sm_count)
        for piece, own in pieces
    ))  # fmt: skip


def _one_launch(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], gpu: Gpu
) -> RowLoops:
    loops = row_loops(nodes, roles, inputs, outputs)
    rows, length = loops.row_count, prod(loops.line_extents)
    parts = blocks_of_row(roles, gpu.multiprocessors)
    if loops.columns:
        team = column_team(rows, length // parts, gpu.multiprocessors)
        return replace(loops, team=team, rows=WARP, parts=parts)
    if parts > 1:
        team = min(MOST_THREADS, ceil(length / (loops.lanes * parts * 2 * WARP)) * WARP)
        return replace(loops, team=team, parts=parts)
    team = row_team(rows, length, loops.lanes, gpu.multiprocessors)
    # Teams of several warps meet in shared memory of the whole block, which has room for one row.
    return replace(loops, team=team, rows=BLOCK // team if team <= WARP else 1)
