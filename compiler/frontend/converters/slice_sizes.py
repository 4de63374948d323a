"""Where a slice of a dimension begins, and how many elements it takes, as expressions where they are open."""

from __future__ import annotations

from tilestitch.compiler.ir.claims import may_be_natural
from tilestitch.compiler.ir.sizes import Size, bounds_of, ceil_div, is_open, largest, smallest

from ..errors import NotStatic

LONGEST = 10**9
"""No dimension is taken to be longer, which is claimed: exporters write numbers from here on for "to the end"."""


def taken_elements(size: Size, start: Size, end: Size, step: Size) -> tuple[Size, Size]:
    """Return where a slice of a dimension begins, and how many elements it takes.

    One that goes backwards from before the dimension begins with its first element, other than numpy's (ONNX, Slice).
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
    """Return the end of a slice. One that is open is taken to lie in a dimension of known size, which is claimed."""
    low, high = bounds_of(at)
    if not is_open(at) and at >= LONGEST and may_be_natural(at - last):
        return last
    may_be_either = low < 0 <= high
    at = at + size if high < 0 else at
    least = 0 if may_be_either else first
    if is_open(at) and not is_open(size) and may_be_natural(last - at) and may_be_natural(at - least):
        return at
    counted = at + size * smallest(1, largest(0, -at)) if may_be_either else at
    return smallest(largest(counted, first), last)
