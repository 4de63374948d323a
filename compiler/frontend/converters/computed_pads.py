"""Pad by amounts that a model computes from data: elements are read at places that are computed as the model runs."""

from __future__ import annotations

from collections.abc import Sequence

from tilestitch.compiler.ir import Value

from ..builder import dtype_of, normalize_axis
from ..context import Context
from ..errors import NotStatic
from ..found_sizes import Element, Entry, element, entries_of, sizes_of
from .indexing import along_axis


def pad_as_computed(ctx: Context, x: Value, pads: Sequence[Entry]) -> Value:
    """Pads, begins before ends, some of which only a run can tell; negative ones crop. NotStatic where they are left to
    the host.
    """
    mode = ctx.attr("mode", "constant")
    if mode not in ("constant", "edge"):
        raise NotStatic(f"mode {mode} of Pad needs known pads")
    given, rank = ctx.optional(2), ctx.rank(x)
    fill = ctx.like(0, x) if given is None else ctx.cast(ctx.reshape(given, ()), dtype_of(x))
    axes = ctx.optional_ints(3)
    places = range(rank) if axes is None else [normalize_axis(a, rank) for a in axes]
    if len(pads) != 2 * len(places):
        raise ctx.fail(f"{len(pads)} pads are given for {len(places)} axes")
    for axis, head, tail in zip(places, pads[: len(places)], pads[len(places) :], strict=True):
        if isinstance(head, Element) or isinstance(tail, Element) or head != 0 or tail != 0:
            x = _padded(ctx, x, axis, head, tail, fill if mode == "constant" else None)
    return x


def _padded(ctx: Context, x: Value, axis: int, head: Entry, tail: Entry, fill: Value | None) -> Value:
    size = ctx.dim(x, axis)
    before = element(ctx, head)
    total = ctx.add(ctx.add(before, ctx.size(size)), element(ctx, tail))
    entries = entries_of(ctx.reshape(total, (1,)))
    assert entries is not None
    (padded,) = sizes_of(ctx, entries)
    place = ctx.sub(ctx.iota(padded), before)
    last = ctx.size(size - 1)
    y = ctx.gather(x, ctx.minimum(ctx.maximum(place, 0), last), axis)
    if fill is None:
        return y
    inside = ctx.emit("logical_and", ctx.less_equal(0, place), ctx.less_equal(place, last))
    return ctx.select(along_axis(ctx, inside, axis, ctx.rank(x)), y, fill)
