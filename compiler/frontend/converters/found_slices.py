"""Slices that begin or end where the data says: how many elements they take is a size that a run finds.

TensorFlow's `x[:, i]` has a step longer than any dimension, so that it takes one element, or none. Where its reader
needs one, as a Squeeze does, it is a Gather, which fails where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilestitch.compiler.ir import UNKNOWN, TensorType, Value
from tilestitch.compiler.ir.claims import may_be_equal, may_be_natural
from tilestitch.compiler.ir.sizes import Size, bounds_of, ceil_div, is_open, largest, smallest

from ..builder import Builder, dtype_of, normalize_axis
from ..context import Context
from ..errors import NotStatic
from ..found_sizes import Element, Entry, element, entries_of, required
from ..symbols import found_size, is_found, sizes_are_symbols, taken_sizes
from .host_types import Dim, constant_ints

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
    count = largest(0, ceil_div(stop - begin, step) if step > 0 else ceil_div(begin - stop, -step))
    from_one_side = step == 1 and not is_open(start) and not is_open(end) and (start < 0) == (end < 0)
    return begin, smallest(count, max(0, end - start)) if from_one_side else count


def _place(at: Size, size: Size, first: Size, last: Size) -> Size:
    """Return the clamped bound of a slice. An open bound that inputs tell is claimed to lie in a dimension of
    known size.
    """
    low, high = bounds_of(at)
    if not is_open(at) and at >= LONGEST and may_be_natural(at - last):
        return last
    may_be_either = low < 0 <= high
    at = at + size if high < 0 else at
    least = 0 if may_be_either else first
    whole = is_found(at) or (size == 1 and low >= 0)  # no table, of which a slice shows the first places
    if is_open(at) and not is_open(size) and not whole and may_be_natural(last - at) and may_be_natural(at - least):
        return at
    counted = at + size * smallest(1, largest(0, -at)) if may_be_either else at
    return smallest(largest(counted, first), last)


@dataclass(frozen=True)
class Cut:
    """Bounds of a slice along one axis, elements of its operands; `ahead`: how far its end is beyond its start if that
    is known.
    """

    start: Entry
    end: Entry
    step: Entry
    ahead: int | None

    def numbers(self) -> tuple[Size, Size, Size] | None:
        """Return start, end and step if none is known only at run time."""
        start, end, step = self.start, self.end, self.step
        if isinstance(start, Element) or isinstance(end, Element) or isinstance(step, Element):
            return None
        return start, end, step

    def takes_one(self, size: Size) -> bool:
        """Return whether at most one element is taken from a dimension of this size."""
        if isinstance(self.step, Element) or is_open(self.step) or self.step < 1:
            return False
        if self.step == self.ahead == 1 or self.step >= bounds_of(size)[1]:
            return True
        return self.step >= LONGEST and may_be_natural(self.step - size)


def found_slice(ctx: Context) -> Value | None:
    """Return a slice whose bounds only a run can tell, of adjacent elements or of at most one along each axis; None for
    another slice.
    """
    x, starts, ends, axes = ctx.input(0), ctx.input(1), ctx.input(2), ctx.optional(3)
    if not sizes_are_symbols() or not isinstance(x.type, TensorType) or not x.type.is_sized or dtype_of(x) == "string":
        return None
    if axes is not None:
        _claim_as_many((starts, ends), axes)
    cuts = cuts_of(x, starts, ends, axes, ctx.optional(4))
    if cuts is None or all(cut.numbers() for cut in cuts.values()):
        return None
    if not all(cut.step == 1 or cut.takes_one(ctx.dim(x, axis)) for axis, cut in cuts.items()):
        return None
    for axis, cut in cuts.items():
        x = _cut(ctx, x, axis, cut)
    return x


def _claim_as_many(bounds: Sequence[Value], axes: Value) -> None:
    """Claim that there is a bound for each axis, where their number is a size that only a run can tell."""
    for bound in bounds:
        for each, size in zip(bound.tensor_type.shape, axes.tensor_type.shape):
            if not isinstance(each, str) and not isinstance(size, str):
                may_be_equal(each, size)


def cuts_of(x: Value, starts: Value, ends: Value, axes: Value | None, steps: Value | None) -> Mapping[int, Cut] | None:
    """Return the cuts by axis, or None where the rank, the axes or their number is not known."""
    firsts, lasts = entries_of(starts), entries_of(ends)
    if not isinstance(x.type, TensorType) or firsts is None or lasts is None or len(firsts) != len(lasts):
        return None
    places = range(len(firsts)) if axes is None else constant_ints(axes)
    strides = [1] * len(firsts) if steps is None else entries_of(steps)
    if places is None or strides is None or not len(places) == len(strides) == len(firsts):
        return None
    rank = x.type.rank
    cuts = [Cut(*cut, _ahead(cut[1], cut[0])) for cut in zip(firsts, lasts, strides, strict=True)]
    return {normalize_axis(p, rank): cut for p, cut in zip(places, cuts, strict=True)}


def sizes_after(cuts: Mapping[int, Cut], x: TensorType) -> tuple[Dim, ...]:
    """Return the sizes of a slice as far as they are known."""
    sizes = list(x.shape)
    for axis, cut in cuts.items():
        size, known = x.shape[axis], cut.numbers()
        sizes[axis] = UNKNOWN
        if known is not None and not isinstance(size, str) and not any(map(is_open, known)):
            sizes[axis] = taken_elements(size, *known)[1]
    return tuple(sizes)


def _cut(b: Builder, x: Value, axis: int, cut: Cut) -> Value:
    size, known = b.dim(x, axis), cut.numbers()
    if known is not None and known[2] == 1:
        begin, taken = taken_elements(size, *known)
        return b.slice_axis(x, axis, begin, begin + taken)
    most = 1 if cut.takes_one(size) else bounds_of(size)[1]
    room = b.size(size)
    first, last = (_within(b, element(b, end), room) for end in (cut.start, cut.end))
    with taken_sizes() as assumed:
        found = found_size(b.origins[-1] if b.origins else "slice", most)
    if most == 1 and assumed == [1]:
        place = b.select(b.less(first, last), first, room)  # the index after the last one where there is none
        return b.gather(x, b.reshape(place, (1,)), axis)
    count = b.reshape(b.maximum(b.sub(last, first), 0), (1,))
    count = b.minimum(count, 1) if most == 1 else count
    if assumed:
        required(b, count, assumed)
        taken = assumed[0]
    else:
        (extent,) = b.host("Extent", [count], [TensorType("bool", (found,))])
        taken = b.dim(extent, 0)
    if cut.start == 0:
        may_be_natural(size - taken)
        return b.slice_axis(x, axis, 0, taken)
    return b.gather(x, b.add(b.iota(taken, "int64"), first), axis)


def _within(b: Builder, at: Value, room: Value) -> Value:
    """Return a bound of a slice, between 0 and the size of the dimension; negative ones count from its end."""
    counted = b.maximum(b.add(at, room), 0)
    return b.minimum(b.select(b.less(at, 0), counted, at), room)


def _ahead(entry: Entry, base: Entry) -> int | None:
    """Return by how much an entry exceeds another if both are computed from the same one by adding constants."""
    found = dict(_sums(base))
    return next((more - found[origin] for origin, more in _sums(entry) if origin in found), None)


def _sums(entry: Entry) -> Iterator[tuple[Entry, int]]:
    """Yield the entry, and the ones that it is computed from by adding constants, each with the sum of these."""
    added = 0
    yield entry, added
    while isinstance(entry, Element) and (made := entry.value.producer) is not None and made.op == "add":
        step = next((v.data for v in made.inputs if v.data is not None), None)
        rest = next((entries_of(v) for v in made.inputs if v.data is None), None)
        if step is None or rest is None or {step.size, len(rest)} - {1, entry.value.tensor_type.num_elements}:
            return
        added += int(step.reshape(-1)[entry.place % step.size])
        entry = rest[entry.place % len(rest)]
        yield entry, added
