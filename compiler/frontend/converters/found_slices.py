"""Slices that begin or end where the data says: how many elements they take is a size that a run finds."""

from __future__ import annotations

from tilestitch.compiler.ir import TensorType, Value
from tilestitch.compiler.ir.claims import may_be_natural
from tilestitch.compiler.ir.sizes import Size, bounds_of

from ..builder import Builder, dtype_of
from ..context import Context
from ..found_sizes import Element, element, required
from ..symbols import found_size, sizes_are_symbols, taken_sizes
from .single_slices import Cut, cuts_of, from_begin


def found_slice(ctx: Context) -> Value | None:
    """Return a slice of contiguous elements whose number only a run can tell; None for another slice, and for one whose
    number of elements is known, or certainly small: its elements are taken one by one.
    """
    x, starts, ends = (ctx.input(index) for index in range(3))
    if not sizes_are_symbols() or not isinstance(x.type, TensorType) or not x.type.is_sized or dtype_of(x) == "string":
        return None
    cuts = cuts_of(x, starts, ends, ctx.optional(3), ctx.optional(4))
    if cuts is None or not any(map(_is_found, cuts.values())):
        return None
    if any(cut.step != 1 or cut.ahead is not None for cut in cuts.values()):
        return None
    for axis, cut in cuts.items():
        x = _cut(ctx, x, axis, cut)
    return x


def _is_found(cut: Cut) -> bool:
    return isinstance(cut.start, Element) or isinstance(cut.end, Element)


def _cut(b: Builder, x: Value, axis: int, cut: Cut) -> Value:
    size = b.dim(x, axis)
    first, last = (_within(b, element(b, end), size) for end in (cut.start, cut.end))
    count = b.emit("maximum", b.sub(last, first), b.constant(0, "int64"))
    taken = _as_size(b, count, size)
    if cut.start == 0:
        may_be_natural(size - taken)
        return b.slice_axis(x, axis, 0, taken)
    return b.gather(x, b.add(b.iota(taken, "int64"), first), axis)


def _within(b: Builder, at: Value, size: Size) -> Value:
    """Return a bound of a slice between 0 and the size of the dimension."""
    count = b.size(size)
    return b.emit("minimum", from_begin(b, at, count), count)


def _as_size(b: Builder, count: Value, most: Size) -> Size:
    flat = b.reshape(count, (1,))
    with taken_sizes() as taken:
        size = found_size(b.origins[-1] if b.origins else "slice", bounds_of(most)[1])
    if taken:
        required(b, flat, taken)
        return taken[0]
    (extent,) = b.host("Extent", [flat], [TensorType("bool", (size,))])
    return b.dim(extent, 0)
