"""Slices whose start is known only at run time: their sizes, and the single element that a Squeeze takes.

TensorFlow's `x[:, i]` is such a slice: its step is longer than any dimension, so it takes one element, or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilestitch.compiler.ir import UNKNOWN, OptionalType, TensorType, Value
from tilestitch.compiler.ir.claims import may_be_natural
from tilestitch.compiler.ir.sizes import Size, bounds_of, is_open

from ..builder import Builder, normalize_axis
from ..found_sizes import Element, Entry, element, entries_of
from ..symbols import found_size
from .host_types import Dim, constant_ints
from .slice_sizes import LONGEST, taken_elements


@dataclass(frozen=True)
class Cut:
    """Bounds of a slice along one axis, elements of its operands; `ahead`: how far its end is beyond its start if that
    is known.
    """

    start: Entry
    end: Entry
    step: Entry
    ahead: int | None


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
    cuts = zip(firsts, lasts, strides, strict=True)
    ahead = _ahead(ends, starts)
    return {normalize_axis(p, rank): Cut(*cut, ahead) for p, cut in zip(places, cuts, strict=True)}


def sizes_after(cuts: Mapping[int, Cut], x: TensorType, hint: str) -> tuple[Dim, ...]:
    """Return the sizes of a slice as far as they are known; sizes with a known upper bound are symbols."""
    sizes = list(x.shape)
    for axis, cut in cuts.items():
        sizes[axis] = _size_after(cut, x.shape[axis], f"{hint}_{axis}")
    return tuple(sizes)


def _size_after(cut: Cut, size: Dim, hint: str) -> Dim:
    # An end before the start may count from the end of the dimension while the start does not: x[0:-1] is long.
    if cut.ahead is not None and cut.ahead >= 0 and cut.step == 1:
        return found_size(hint, cut.ahead)
    if isinstance(size, str):
        return UNKNOWN
    known = _numbers(cut)
    if known is not None:
        return taken_elements(size, *known)[1]
    return found_size(hint, 1) if _takes_one(cut, size) else UNKNOWN


def _numbers(cut: Cut) -> tuple[int, int, int] | None:
    """Return start, end and step if all are numbers."""
    start, end, step = cut.start, cut.end, cut.step
    if isinstance(start, Element) or isinstance(end, Element) or isinstance(step, Element):
        return None
    return None if any(map(is_open, (start, end, step))) else (start, end, step)


def _takes_one(cut: Cut, size: Size) -> bool:
    """Return whether at most one element is taken from a dimension of this size."""
    if isinstance(cut.step, Element) or is_open(cut.step) or cut.step < 1:
        return False
    if cut.step == cut.ahead == 1 or cut.step >= bounds_of(size)[1]:
        return True
    return cut.step >= LONGEST and may_be_natural(cut.step - size)


def element_of_slice(b: Builder, value: Value, squeezed: Sequence[int]) -> Value | None:
    """Return a slice that takes one element along each of these axes, squeezed; None if it does not.

    A Squeeze fails where there is no element: so does a Gather at the index after the last one.
    """
    node = value.producer
    if node is None or node.op != "host.Slice":
        return None
    x, starts, ends, *others = node.inputs
    axes, steps = (None if v is None or v.type == OptionalType(None) else v for v in (*others, None, None)[:2])
    cuts = cuts_of(x, starts, ends, axes, steps)
    if cuts is None or any(axis not in cuts for axis in squeezed):
        return None
    shape = x.tensor_type.shape
    for axis, cut in cuts.items():
        size = shape[axis]
        if isinstance(size, str):
            return None
        if not (_takes_one(cut, size) if axis in squeezed else _takes_all(cut, size)):
            return None
    for axis in sorted(squeezed, reverse=True):
        x = b.gather(x, _place(b, cuts[axis], b.dim(x, axis)), axis)
    return x


def _takes_all(cut: Cut, size: Size) -> bool:
    known = _numbers(cut)
    return known is not None and cut.step == 1 and taken_elements(size, *known) == (0, size)


def _place(b: Builder, cut: Cut, size: Size) -> Value:
    """Return the index of the element, `size` if there is none."""
    count = b.size(size)
    first = from_begin(b, element(b, cut.start), count)
    last = cut.end
    if not isinstance(last, Element) and not is_open(last) and last >= bounds_of(size)[1]:
        return first
    return b.select(b.less(first, from_begin(b, element(b, last), count)), first, count)


def from_begin(b: Builder, at: Value, count: Value) -> Value:
    """Return a bound of a slice, at least 0, with negative ones counted from the end of the dimension."""
    counted = b.emit("maximum", b.add(at, count), b.constant(0, "int64"))
    return b.select(b.less(at, 0), counted, at)


def _ahead(value: Value, base: Value) -> int | None:
    """Return by how much a value exceeds another if both are computed from the same one by adding constants."""
    found: dict[Value, int] = dict(_sums(base))
    return next((more - found[origin] for origin, more in _sums(value) if origin in found), None)


def _sums(value: Value) -> Iterator[tuple[Value, int]]:
    """Yield the value, and the ones that it is computed from by adding constants, each with the sum of these."""
    added = 0
    yield value, added
    while (made := value.producer) is not None and made.op == "add":
        step = next((v for v in made.inputs if v.data is not None and v.data.size == 1), None)
        if step is None or step.data is None:
            return
        added += int(step.data.reshape(()))
        value = next(v for v in made.inputs if v is not step)
        yield value, added
