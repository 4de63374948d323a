"""Pad by amounts that are computed from data, or negative at some sizes, as a gather at indices computed at run
time.
"""

from collections.abc import Sequence

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import bounds_of

from ..builder import dtype_of, normalize_axis
from ..context import Context
from ..errors import NotStatic
from ..found_sizes import Element, Entry, element, entries_of, sizes_of
from .indexing import along_axis


def must_be_computed(pad: Entry) -> bool:
    """Return whether a pad, or whether it crops, is known only at run time."""
    if isinstance(pad, Element):
        return True
    low, high = bounds_of(pad)
    return low < 0 < high


def pad_as_computed(ctx: Context, x: Value, pads: Sequence[Entry]) -> Value:
    """Pad x, with begins before ends; negative ones crop. NotStatic where they are left to the host."""
    mode = ctx.attr("mode", "constant")
    if mode not in ("constant", "edge", "reflect"):
        raise NotStatic(f"mode {mode} of Pad needs known pads")
    given, rank = ctx.optional(2), ctx.rank(x)
    fill = ctx.like(0, x) if given is None else ctx.cast(ctx.reshape(given, ()), dtype_of(x))
    axes = ctx.optional_ints(3)
    places = range(rank) if axes is None else [normalize_axis(a, rank) for a in axes]
    if len(pads) != 2 * len(places):
        raise ctx.fail(f"{len(pads)} pads are given for {len(places)} axes")
    for axis, head, tail in zip(places, pads[: len(places)], pads[len(places) :], strict=True):
        if isinstance(head, Element) or isinstance(tail, Element) or head != 0 or tail != 0:
            x = _padded(ctx, x, axis, (head, tail), mode, fill)
    return x


def _padded(ctx: Context, x: Value, axis: int, ends: tuple[Entry, Entry], mode: str, fill: Value) -> Value:
    size = ctx.dim(x, axis)
    before, after = (element(ctx, end) for end in ends)
    entries = entries_of(ctx.reshape(ctx.add(ctx.add(before, ctx.size(size)), after), (1,)))
    assert entries is not None
    (padded,) = sizes_of(ctx, entries)
    place, last = ctx.sub(ctx.iota(padded), before), ctx.size(size - 1)
    if mode == "reflect":
        place = _mirrored(ctx, place, last, before, after)
    if mode == "constant" and bounds_of(size)[0] < 1:  # there may be no element, but a gather reads one
        x = ctx.pad(x, (0,) * ctx.rank(x), tuple(int(other == axis) for other in range(ctx.rank(x))))
    y = ctx.gather(x, ctx.maximum(ctx.minimum(place, last), 0), axis)
    if mode != "constant":
        return y
    inside = ctx.emit("logical_and", ctx.less_equal(0, place), ctx.less_equal(place, last))
    return ctx.select(along_axis(ctx, inside, axis, ctx.rank(x)), y, fill)


def _mirrored(ctx: Context, place: Value, last: Value, before: Value, after: Value) -> Value:
    """Return the source positions of padding by reflection, repeated between the ends that negative pads leave."""
    first = ctx.maximum(ctx.sub(0, before), 0)
    most = ctx.sub(ctx.minimum(ctx.add(last, after), last), first)
    period = ctx.maximum(ctx.mul(most, 2), 1)
    along = ctx.emit("mod", ctx.sub(place, first), period)
    return ctx.add(ctx.minimum(along, ctx.sub(period, along)), first)
