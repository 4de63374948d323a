"""Rows that several blocks of a GPU may share: few long ones.

A block computes a part of its row, stores the result, and waits for the whole grid; then every block combines the parts
of its row itself. All blocks must be resident together, so that a row is spread over at most as many as the device is
certain to hold: one per multiprocessor, which any block of at most 1024 threads can have for itself. AStitch (ASPLOS
2022) calls it task splitting, and the exchange global stitching. Alternatively, where nothing reads the rows again, a
second launch combines the parts, and no block waits.

Candidates are those that could pay; the latency model decides whether they do.
"""

from math import ceil

from tilestitch.passes.plan.parts import Roles

WARP = 32
MIN_PART = 2048
"""Least elements of a row per block, where a row extends along the last dimension."""
MIN_COLUMN_PART = 256
"""The same where neighbouring threads have neighbouring rows: a block has this many elements of 32 rows."""
LEAST = 1 << 15
"""Elements that one multiprocessor reads in about the time of two grid barriers; fewer are left to one block."""
MOST_PARTS = 512
ARG_REDUCTIONS = frozenset({"arg_max", "arg_min"})


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
