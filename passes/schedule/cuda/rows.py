"""Schedules of row-wise groups on GPUs: softmax, normalisation, reductions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.access.row_loops import REGISTER_ELEMENTS, RowLoops, row_loops
from tilestitch.passes.plan.access.split_rows import pieces_of
from tilestitch.passes.plan.parts import Roles, RowSpace
from tilestitch.passes.plan.schedules import RowSchedule, SplitRowSchedule
from tilestitch.passes.plan.view import GroupView

from .elementwise import ENOUGH_THREADS, choose_vectors
from .gpu import Gpu
from .spread import WARP, blocks_of_row, in_launches

BLOCK = 128
"""Threads of a block with smaller teams."""
MOST_THREADS = 1024
LEAST_COLUMN = 8
"""Least elements of a column per thread."""
LEAST_RUN = 16
"""Neighbouring elements that the lanes of a row read together: a sector of memory of half floats."""
MANY_TEAMS = 16
"""Warps of columns per multiprocessor that hide each other's latency."""


def row_schedules(view: GroupView, roles: Roles, gpu: Gpu) -> list[RowSchedule | SplitRowSchedule]:
    """Return the candidate schedules of a row-wise group with non-empty outputs: a row in one block or less, in several
    blocks of two launches, or in several of one.
    """
    loops = row_loops(view.nodes, roles, view.inputs, view.stored)
    found: list[RowSchedule | SplitRowSchedule] = [each.schedule for each in _in_blocks(loops, gpu.multiprocessors)]
    parts = in_launches(roles, gpu.multiprocessors)
    if parts > 1:
        found.append(_split(view, roles, parts, gpu))
    blocks = blocks_of_row(roles, gpu.multiprocessors)
    if blocks > 1:
        found.append(_spread(loops, blocks, gpu.multiprocessors).schedule)
    return list(dict.fromkeys(found))


def row_scheme(rows: RowSpace, schedule: RowSchedule | SplitRowSchedule) -> str:
    """Return how the threads of a row communicate: global, block, warp, or inline where a thread has a row."""
    if isinstance(schedule, SplitRowSchedule) or schedule.blocks_per_row > 1:
        return "global"
    if schedule.team == 1:
        return "inline"
    return "block" if rows.across or schedule.team > WARP else "warp"


# -- a row in one block ------------------------------------------------------------------------------------------------


def _in_blocks(loops: RowLoops, multiprocessors: int) -> Iterator[RowLoops]:
    """Yield the default team of threads, and others: for columns, and for rows that fit registers as with the
    default.
    """
    if loops.columns:
        yield replace(loops, team=_columns(loops, loops.vectors, multiprocessors), rows=WARP)
        teams = (1 << doublings for doublings in range(6))
        yield from (replace(loops, team=team, rows=WARP) for team in teams if team * LEAST_COLUMN <= loops.vectors)
        return
    usual = _in_team(loops, row_team(loops.row_count, loops.vectors, loops.lanes, multiprocessors))
    yield usual
    if usual.team == WARP and loops.row_count * WARP >= multiprocessors * ENOUGH_THREADS:
        return  # latency models are not told what exchanging sums costs each thread
    if usual.team >= WARP and usual.unrolled:
        others = (_in_team(loops, WARP << doublings) for doublings in range(6))
        yield from (each for each in others if each.unrolled and each.team < loops.vectors + WARP)


def _in_team(loops: RowLoops, team: int) -> RowLoops:
    # Teams of several warps communicate in shared memory of the whole block, which has room for one row.
    return replace(loops, team=team, rows=BLOCK // team if team <= WARP else 1)


def row_team(rows: int, vectors: int, lanes: int, multiprocessors: int) -> int:
    """Return the threads that share a row of `vectors` vectors of `lanes` elements: lanes of a warp, or whole warps
    where rows are long or few.
    """
    vectors = max(1, vectors)
    per_thread = max(1, REGISTER_ELEMENTS // lanes)
    few = rows * WARP < multiprocessors * 512
    many = rows * WARP >= multiprocessors * ENOUGH_THREADS
    if vectors <= WARP:
        return _fewer(1 << (vectors - 1).bit_length(), rows, vectors, lanes, multiprocessors)
    if vectors <= WARP * per_thread // (1 if many else 2) and not (few and vectors > 2 * WARP):
        return _fewer(WARP, rows, vectors, lanes, multiprocessors)
    return min(MOST_THREADS, ceil(vectors / ((1 if few else 2) * WARP)) * WARP)


def _fewer(team: int, rows: int, vectors: int, lanes: int, multiprocessors: int) -> int:
    """Return the fewest lanes of a warp that keep a row in registers, where rows are many enough for that: what a
    thread does once for a row, as finding it and exchanging sums, is done less often, and fewer lanes are left over.
    """
    while (
        team * lanes > LEAST_RUN
        and ceil(vectors / (team // 2)) * lanes <= REGISTER_ELEMENTS
        and rows * team // 2 >= multiprocessors * ENOUGH_THREADS
    ):
        team //= 2
    return team


def _columns(loops: RowLoops, length: int, multiprocessors: int) -> int:
    """Return the threads over which a column is split: more where columns are few and long."""
    team, groups = 1, ceil(loops.row_count / WARP)
    while team < WARP and length >= LEAST_COLUMN * team and groups * team < MANY_TEAMS * multiprocessors:
        team *= 2
    return team


# -- a row in several blocks -------------------------------------------------------------------------------------------


def _spread(loops: RowLoops, parts: int, multiprocessors: int) -> RowLoops:
    if loops.columns:
        team = _columns(loops, loops.vectors // parts, multiprocessors)
        return replace(loops, team=team, rows=WARP, parts=parts)
    team = min(MOST_THREADS, ceil(loops.vectors / (parts * 2 * WARP)) * WARP)
    return replace(loops, team=team, parts=parts)


def _split(view: GroupView, roles: Roles, parts: int, gpu: Gpu) -> SplitRowSchedule:
    """Return the schedule with split rows, each piece with its default schedule."""
    assert roles.rows is not None
    pieces, _ = pieces_of(view, view.stored, roles.rows, parts)
    return SplitRowSchedule(parts, tuple(
        _usual(piece.nodes, own, piece.inputs, piece.outputs, gpu)
        if own.kind is GroupKind.ROWWISE
        else choose_vectors(piece.nodes, piece.inputs, piece.outputs, gpu.device.sm_count)
        for piece, own in pieces
    ))  # fmt: skip


def _usual(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], gpu: Gpu
) -> RowSchedule:
    return next(_in_blocks(row_loops(nodes, roles, inputs, outputs), gpu.multiprocessors)).schedule
