"""Start and number of elements of a slice along a dimension, as expressions where they are open."""

from __future__ import annotations

from tilestitch.compiler.ir.claims import may_be_natural
from tilestitch.compiler.ir.sizes import Size, bounds_of, ceil_div, is_open, largest, smallest

from ..errors import NotStatic

LONGEST = 10**9
"""Limit above which, by a claim, no dimension reaches: exporters write such numbers for "to the end"."""


def taken_elements(size: Size, start: Size, end: Size, step: Size) -> tuple[Size, Size]:
    """Return the start of a slice and its number of elements.

    One that goes backwards from before the dimension starts at its first element, unlike numpy's (ONNX, Slice).
    """
    if not any(map(is_open, (size, start, end, step))):
        start = -size if step < 0 and start < -size else start
        taken = range(*slice(start, end, step).indices(size))
        return (taken.start if len(taken) else 0), len(taken)
    if is_open(step):
        raise NotStatic(f"the step of the slice is {step}")
    first, last = (0, size) if step > 0 else (-1, size - 1)
    begin, stop = _place(start, size, 0, last), _place(end, size, first, last)
    return begin, largest(0, ceil_div(stop - begin, step) if step > 0 else ceil_div(begin - stop, -step))


def _place(at: Size, size: Size, first: Size, last: Size) -> Size:
    """Return the clamped bound of a slice. An open bound is claimed to lie in a dimension of known size."""
    low, high = bounds_of(at)
    if not is_open(at) and at >= LONGEST and may_be_natural(at - last):
        return last
    may_be_either = low < 0 <= high
    at = at + size if high < 0 else at
    least = 0 if may_be_either else first
    whole = size == 1 and low >= 0  # no table, of which a slice shows the first places
    if is_open(at) and not is_open(size) and not whole and may_be_natural(last - at) and may_be_natural(at - least):
        return at
    counted = at + size * smallest(1, largest(0, -at)) if may_be_either else at
    return smallest(largest(counted, first), last)
