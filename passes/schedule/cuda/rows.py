"""Schedules of row-wise groups on GPUs: softmax, normalisation, reductions.

Several blocks may share a row if there are few long ones. A block computes a part of its row, stores the result, and
waits for the whole grid; then every block combines the parts of its row itself. All blocks must be resident together,
so that a row is spread over at most as many as the device is certain to hold: one per multiprocessor, which any block
of at most 1024 threads can have for itself. AStitch (ASPLOS 2022) calls it task splitting, and the exchange global
stitching. Alternatively, where nothing reads the rows again, a second launch combines the parts, and no block waits.
These are candidates where they could pay; the latency model decides whether they do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.access.row_loops import REGISTER_ELEMENTS, RowLoops, row_loops
from tilestitch.passes.plan.access.split_rows import pieces_of
from tilestitch.passes.plan.parts import ARG_REDUCTIONS, Roles, RowSpace
from tilestitch.passes.plan.schedules import RowSchedule, SplitRowSchedule
from tilestitch.passes.plan.view import GroupView

from .elementwise import ENOUGH_THREADS, choose_vectors
from .gpu import Gpu

WARP = 32
MIN_PART = 2048
"""Least elements of a row per block, where a row extends along the last dimension."""
MIN_COLUMN_PART = 256
"""The same where neighbouring threads have neighbouring rows: a block has this many elements of 32 rows."""
LEAST = 1 << 15
"""Elements that one multiprocessor reads in about the time of two grid barriers; fewer are left to one block."""
MOST_PARTS = 512
BLOCK = 128
"""Threads of a block with smaller teams."""
MOST_THREADS = 1024
LEAST_COLUMN = 8
"""Least elements of a column per thread."""
LEAST_RUN = 16
"""Neighbouring elements that the lanes of a row read together: a sector of memory of half floats."""
MANY_TEAMS = 16
"""Warps of columns per multiprocessor that hide each other's latency."""


def may_spread(roles: Roles, multiprocessors: int) -> bool:
    """Return whether several blocks may share a row of a row-wise group with its own launch."""
    return max(blocks_of_row(roles, multiprocessors), in_launches(roles, multiprocessors)) > 1


def blocks_of_row(roles: Roles, multiprocessors: int) -> int:
    """Return over how many blocks of one launch each row may be spread; 1 if it may not."""
    rows = roles.rows
    assert rows is not None
    groups = ceil(rows.count / WARP) if rows.across else rows.count
    if not groups or 4 * groups > multiprocessors or rows.length * (WARP if rows.across else 1) < LEAST:
        return 1
    wanted = rows.length // (MIN_COLUMN_PART if rows.across else MIN_PART)
    return max(1, min(wanted, multiprocessors // groups))


def in_launches(roles: Roles, multiprocessors: int) -> int:
    """Return into how many parts each row may be split, whose results a second launch combines; 1 if it may not."""
    rows = roles.rows
    assert rows is not None
    finds_place = any(n.op in ARG_REDUCTIONS for n in roles.parts)
    if not rows.trailing or not rows.count or finds_place or roles.looks_again or 4 * rows.count >= multiprocessors:
        return 1
    wanted = min(rows.length // MIN_PART, ceil(2 * multiprocessors / rows.count), MOST_PARTS)
    return next((p for p in range(wanted, 1, -1) if rows.length % p == 0), 1)


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
