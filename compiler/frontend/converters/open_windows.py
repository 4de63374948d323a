"""Windows over images of open size: their numbers of elements and the position of the largest, computed at run time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size

from ..context import Context
from .convolution import Window


def _first_places(ctx: Context, window: Window, axis: int, steps: Size, rank: int) -> Value:
    """Return where the windows begin along one spatial axis (negative in the padding), with the rank of the images."""
    places = ctx.sub(ctx.mul(ctx.iota(steps), window.strides[axis]), ctx.size(window.before[axis]))
    return ctx.reshape(places, tuple(steps if i == axis + 2 else 1 for i in range(rank)))


def open_counts(
    ctx: Context, images: Sequence[Size], results: Sequence[Size], window: Window,
    padding: tuple[Sequence[Size], Sequence[Size]],
) -> Value:  # fmt: skip
    """Return the number of taps of each window, at least 1, that meet the image or this padding before and after it."""
    lines = []
    for axis, (before, after) in enumerate(zip(*padding, strict=True)):
        first = _first_places(ctx, window, axis, results[2 + axis], len(images))
        missed = _taps_before(ctx, first, -before, window, axis)
        lines.append(ctx.sub(_taps_before(ctx, first, images[2 + axis] + after, window, axis), missed))
    return ctx.maximum(reduce(ctx.mul, lines), 1)


def _taps_before(ctx: Context, first: Value, end: Size, window: Window, axis: int) -> Value:
    """Return how many taps of the windows that begin at `first` lie before `end`."""
    dilation, taps = window.dilations[axis], window.kernel[axis]
    reach = ctx.clamp(ctx.sub(ctx.size(end), first), 0, taps * dilation)
    return reach if dilation == 1 else ctx.div(ctx.add(reach, dilation - 1), dilation)


def open_places(ctx: Context, best: Value, images: Sequence[Size], window: Window, column_major: bool) -> Value:
    """Return the positions in the flattened images of the taps `best`, which count row-major; a tap in the padding gets
    the position of the next one inside.
    """
    spatial, steps = images[2:], ctx.shape(best)[2:]
    total = _image_places(ctx, images)
    for axis, (size, dilation) in enumerate(zip(spatial, window.dilations, strict=True)):
        tap = ctx.emit("mod", ctx.div(best, prod(window.kernel[axis + 1 :])), ctx.like(window.kernel[axis], best))
        place = ctx.add(_first_places(ctx, window, axis, steps[axis], len(images)), ctx.mul(tap, dilation))
        missing = ctx.maximum(ctx.div(ctx.sub(dilation - 1, place), dilation), 0)
        inside = ctx.clamp(ctx.add(place, ctx.mul(missing, dilation)), 0, ctx.size(size - 1))
        stride = prod(spatial[:axis]) if column_major else prod(spatial[axis + 1 :])
        total = ctx.add(total, ctx.mul(inside, ctx.size(stride)))
    return total


def _image_places(ctx: Context, images: Sequence[Size]) -> Value:
    """Return where each channel of each image begins."""
    batch, channels, *spatial = images
    numbers = ctx.reshape(ctx.iota(batch * channels), (batch, channels, *(1,) * len(spatial)))
    return ctx.mul(numbers, ctx.size(prod(spatial)))
