"""Row-wise kernels on a CPU: into how many parts few long rows are cut."""

from __future__ import annotations

from math import prod

from tilestitch.passes.plan.roles import RowSpace

MIN_ELEMENTS = 1 << 17
"""Iteration spaces smaller than this are not worth more launches."""
MIN_PART = 4096
MAX_PARTS = 64


def parts_of(rows: RowSpace) -> int:
    """Into how many parts each row is cut; 1 if rows are many, short, or of a length that does not divide."""
    length = prod(d for a, d in enumerate(rows.shape) if a in rows.axes)
    count = prod(rows.dropped)
    trailing = rows.axes == tuple(range(len(rows.shape) - len(rows.axes), len(rows.shape)))
    if not trailing or length * count < MIN_ELEMENTS or count >= 8:
        return 1
    wanted = min(MAX_PARTS, length // MIN_PART)
    return next((p for p in range(wanted, 1, -1) if length % p == 0), 1)
