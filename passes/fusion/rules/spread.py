"""Rows that several blocks of a GPU share: few long rows, whose statistics go through global memory.

A block computes a part of its row, stores what it found, and waits for the whole grid; then every block joins the parts
of its row itself. All blocks must be resident together, so that a row is spread over no more of them than the device
surely holds: one on each multiprocessor, which any block of at most 1024 threads can have for itself.
AStitch (ASPLOS 2022) calls it task splitting, and the exchange global stitching.
"""

from __future__ import annotations

from math import ceil, prod

from tilestitch.compiler.ir import Value
from tilestitch.passes.plan.roles import Part, Roles, RowSpace

WARP = 32
MOST_THREADS = 1024
VECTOR_BYTES = 16
REGISTER_ELEMENTS = 32
"""Elements of a row that a thread keeps in registers."""
MIN_PART = 2048
"""Elements of a row that a block should have at least, where a row lies along the last dimension."""
MIN_COLUMN_PART = 256
"""The same where neighbouring threads have neighbouring rows: a block has as many elements of 32 rows."""
LEAST = 1 << 15
"""Elements that one multiprocessor reads in about the time of two barriers of the grid; fewer are left to one block."""
ARG_REDUCTIONS = frozenset({"arg_max", "arg_min"})


def row_length(rows: RowSpace) -> int:
    """Elements of one row."""
    return prod(rows.shape[a] for a in rows.axes)


def lies_across(rows: RowSpace) -> bool:
    """Whether neighbouring elements in memory belong to neighbouring rows."""
    wide = [d for d, size in enumerate(rows.shape) if size != 1]
    return bool(wide) and wide[-1] not in rows.axes


def looks_again(roles: Roles) -> bool:
    """Whether elements of a row are needed again, or stored, besides its reductions."""
    return any(part is Part.FULL for part in roles.parts.values())


def blocks_of_row(roles: Roles, multiprocessors: int) -> int:
    """Over how many blocks each row of a row-wise group is spread; 1 where a block, or less, computes a row."""
    rows = roles.rows
    assert rows is not None
    count, length, across = prod(rows.dropped), row_length(rows), lies_across(rows)
    groups = ceil(count / WARP) if across else count
    if not groups or 4 * groups > multiprocessors or length * (WARP if across else 1) < LEAST:
        return 1
    if not across and not looks_again(roles) and in_launches(roles, multiprocessors) > 1:
        return 1
    wanted = length // (MIN_COLUMN_PART if across else MIN_PART)
    return max(1, min(wanted, multiprocessors // groups))


def in_launches(roles: Roles, multiprocessors: int) -> int:
    """Into how many parts each row is cut, whose results a second launch joins; 1 if rows are not cut.

    For rows that nothing reads again: that needs no resident blocks, and two launches cost what a barrier does.
    """
    rows = roles.rows
    assert rows is not None
    count, length = prod(rows.dropped), row_length(rows)
    trailing = rows.axes == tuple(range(len(rows.shape) - len(rows.axes), len(rows.shape)))
    finds_place = any(n.op in ARG_REDUCTIONS for n in roles.parts)
    if not trailing or not count or finds_place or looks_again(roles) or 4 * count >= multiprocessors:
        return 1
    wanted = min(length // MIN_PART, ceil(2 * multiprocessors / count), 512)
    return next((p for p in range(wanted, 1, -1) if length % p == 0), 1)


def row_team(rows: int, length: int, lanes: int, multiprocessors: int) -> int:
    """Threads along which a row of `length` elements is cut, read `lanes` at a time: lanes of a warp, or whole warps
    where rows are long or few.
    """
    vectors = max(1, length // lanes)
    per_thread = max(1, REGISTER_ELEMENTS // lanes)
    if vectors <= WARP:
        return 1 << (vectors - 1).bit_length()
    few = rows * WARP < multiprocessors * 512
    if vectors <= WARP * per_thread // 2 and not (few and vectors > 2 * WARP):
        return WARP
    return min(MOST_THREADS, ceil(vectors / ((1 if few else 2) * WARP)) * WARP)


def column_team(rows: int, length: int, multiprocessors: int) -> int:
    """Threads across which a column is cut: more where columns are few and long."""
    team = 1
    while team < 32 and length >= 8 * team and ceil(rows / WARP) * team < 16 * multiprocessors:
        team *= 2
    return team


def row_scheme(roles: Roles, multiprocessors: int) -> str:
    """How the threads of a row exchange what they find: global, block, warp, or inline where a thread has a row."""
    rows = roles.rows
    assert rows is not None
    if max(blocks_of_row(roles, multiprocessors), in_launches(roles, multiprocessors)) > 1:
        return "global"
    count, length = prod(rows.dropped), row_length(rows)
    if lies_across(rows):
        return "block" if column_team(count, length, multiprocessors) > 1 else "inline"
    nbytes = max(v.tensor_type.nbytes // max(1, v.tensor_type.num_elements) for n in roles.parts for v in n.inputs)
    lanes = max(1, VECTOR_BYTES // max(1, nbytes))
    while length % lanes:
        lanes //= 2
    team = row_team(count, length, lanes, multiprocessors)
    return "inline" if team == 1 else "warp" if team <= WARP else "block"


def reduction_levels(roles: Roles) -> int:
    """Reductions in the longest chain of which each needs the one before."""
    level: dict[Value, int] = {}
    for node, part in roles.parts.items():
        below = max((level.get(v, 0) for v in node.inputs), default=0)
        level.update((v, below + (part is Part.REDUCTION)) for v in node.outputs)
    return max(level.values(), default=0)
