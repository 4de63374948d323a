"""Pooling over windows and over whole images, and its inverse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.claims import may_be_natural
from tilestitch.compiler.ir.sizes import Size, ceil_div, is_open, largest, smallest
from tilestitch.compiler.ir.types import is_float, to_numpy_dtype

from ..builder import dtype_of
from ..context import Context, Converted, Versioned
from .common import outputs_named
from .convolution import Window, window_of
from .quantization import integer_range


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


MOST_SLICES = 32
"""Most taps of a MaxPool with indices that are computed as separate slices."""


def _pool_window(ctx: Context, x: Value) -> Window:
    """Return the node's window; with `ceil_mode`, padded at the end for the last partial window of each axis, which may
    be the only one.

    A window that would start beyond the operand and its leading padding is dropped.
    """
    kernel = ctx.attr("kernel_shape")
    window = window_of(ctx, x, kernel)
    partial = bool(ctx.attr("ceil_mode", 0)) and ctx.attr("auto_pad", "NOTSET") in ("NOTSET", "")
    for i, sizes in enumerate(zip(window.before, ctx.shape(x)[2:], window.after, strict=True)):
        lacking = window.strides[i] - 1 if partial else 0
        if not may_be_natural(sum(sizes) + lacking - window.extent(i)):
            raise ctx.fail(
                f"a window of {window.extent(i)} does not fit axis {2 + i}, which has {sizes[1]} elements and "
                f"{sizes[0]} + {sizes[2]} of padding; correct the model"
            )
    if not partial:
        return window
    after = []
    for i in range(len(kernel)):
        size, stride = ctx.dim(x, 2 + i), window.strides[i]
        span = size + window.before[i] + window.after[i] - window.extent(i)
        steps = -(-span // stride) + 1
        if is_open(size):
            steps = smallest(steps, ceil_div(size + window.before[i], stride))
        elif (steps - 1) * stride >= size + window.before[i]:
            steps -= 1
        after.append((steps - 1) * stride + window.extent(i) - size - window.before[i])
    return Window(window.kernel, window.strides, window.before, tuple(after), window.dilations)


def _window_reduce(ctx: Context, x: Value, window: Window, reducer: str) -> Value:
    """Reduce windows. `after` may be negative when ceil_mode drops a window: the operand is then cropped, unless that
    depends on open sizes, since no window reaches the cropped part.
    """
    after = list(window.after)
    for i, pad in enumerate(after):
        if not is_open(pad) and pad < 0:
            x = ctx.slice_axis(x, 2 + i, 0, ctx.dim(x, 2 + i) + pad)
            after[i] = 0
    attrs = window.attrs() | {"after": tuple(after)}
    return ctx.emit("window_reduce", x, reducer=reducer, kernel=window.kernel, **attrs)


def _taps(low: int, high: int, window: Window, axis: int, steps: int) -> np.ndarray:
    """Return how many taps of each window position fall into [low, high) along one axis."""
    starts = np.arange(steps)[:, None] * window.strides[axis] - window.before[axis]
    places = starts + np.arange(window.kernel[axis]) * window.dilations[axis]
    return ((places >= low) & (places < high)).sum(1)


def convert_average_pool(ctx: Context) -> Value:
    return average_pool(ctx, ctx.input(0))


def average_pool(ctx: Context, x: Value) -> Value:
    """Return the averages of the node's windows over x[N, C, spatial..]; that of no elements, in the padding, is 0."""
    window = _pool_window(ctx, x)
    total = _window_reduce(ctx, x, window, "sum")
    spatial = len(window.kernel)
    stated = window_of(ctx, x, window.kernel)
    if all(pad == 0 for pad in (*window.before, *window.after)):
        return ctx.div(total, prod(window.kernel))
    include = ctx.attr("count_include_pad", 0)
    if any(is_open(size) for size in ctx.shape(x)[2:]):
        padding = (stated.before, stated.after) if include else ((0,) * spatial, (0,) * spatial)
        return ctx.div(total, ctx.cast(open_counts(ctx, ctx.shape(x), ctx.shape(total), window, padding), x.dtype))
    counts = np.ones((1,) * spatial)
    for i in range(spatial):
        size, steps = ctx.dim(x, 2 + i), ctx.dim(total, 2 + i)
        low = -stated.before[i] if include else 0
        high = size + stated.after[i] if include else size
        line = _taps(low, high, window, i, steps)
        counts = counts * line.reshape(tuple(-1 if j == i else 1 for j in range(spatial)))
    counts = np.maximum(counts, 1)
    if counts.size and np.all(counts == counts.flat[0]):
        return ctx.div(total, float(counts.flat[0]))
    return ctx.div(total, ctx.constant(counts[None, None].astype(to_numpy_dtype(dtype_of(x)))))


def max_pool(ctx: Context, x: Value) -> Value:
    """Return the maxima of the node's windows over x[N, C, spatial..]."""
    return _window_reduce(ctx, x, _pool_window(ctx, x), "max")


def convert_max_pool(ctx: Context) -> Converted:
    x = ctx.input(0)
    if not ctx.has_output(1):
        return max_pool(ctx, x)
    return outputs_named(ctx, _max_with_indices(ctx, x, _pool_window(ctx, x)))


def _max_with_indices(ctx: Context, x: Value, window: Window) -> list[Value | None]:
    """Return maxima and indices. Each tap is a layer of the padded operand; the best one's position is looked up in a
    constant table.

    The first tap is also the best where nothing exceeds the padding: its position is that of the window's first
    element.
    """
    shape = ctx.shape(x)
    spatial = shape[2:]
    pads_after = [largest(p, 0) for p in window.after]
    padded = ctx.pad(x, (0, 0, *window.before), (0, 0, *pads_after), value=ctx.constant(_lowest(dtype_of(x))))
    steps = [
        (s + b + a - window.extent(i)) // window.strides[i] + 1
        for i, (s, b, a) in enumerate(zip(spatial, window.before, window.after, strict=True))
    ]
    starts = list(product(*(range(0, k * d, d) for k, d in zip(window.kernel, window.dilations, strict=True))))
    if any(map(is_open, shape)):
        stacked = _sliced(ctx, padded, window, starts, steps)
        best = ctx.emit("arg_max", stacked, axis=0, keepdims=False, select_last=False)
        values = ctx.reduce("max", stacked, (0,), keepdims=False)
        return [values, open_places(ctx, best, shape, window, bool(ctx.attr("storage_order", 0)))]
    places = []
    for start in starts:
        lines = [start[i] - window.before[i] + np.arange(steps[i]) * window.strides[i] for i in range(len(spatial))]
        places.append([_inside(line, window.dilations[i], spatial[i]) for i, line in enumerate(lines)])
    stacked = (_sliced if len(starts) <= MOST_SLICES else _gathered)(ctx, padded, window, starts, steps)
    best = ctx.emit("arg_max", stacked, axis=0, keepdims=True, select_last=False)
    values = ctx.reduce("max", stacked, (0,), keepdims=False)
    table = ctx.constant(_places_table(ctx, places, spatial), "int64")
    spread = ctx.broadcast_to(table, (len(starts), *shape[:2], *steps))
    within = ctx.squeeze(ctx.emit("gather_elements", spread, best, axis=0), (0,))
    base = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(shape[0], shape[1], *(1,) * len(spatial)) * prod(
        spatial
    )
    return [values, ctx.add(within, ctx.constant(base))]


def _sliced(ctx: Context, x: Value, window: Window, starts: Sequence[tuple[int, ...]], steps: Sequence[int]) -> Value:
    """Return [taps, batch, channels, positions...]: a strided slice for each tap."""
    batch = ctx.shape(x)[:2]
    strides = (1, 1, *window.strides)
    layers = [ctx.emit("slice", x, starts=(0, 0, *s), steps=strides, sizes=(*batch, *steps)) for s in starts]
    return ctx.concat([ctx.expand_dims(layer, (0,)) for layer in layers], 0)


def _gathered(ctx: Context, x: Value, window: Window, starts: Sequence[tuple[int, ...]], steps: Sequence[int]) -> Value:
    """Return the same as `_sliced` in a few nodes, however many taps there are: each axis becomes taps by positions."""
    batch, rank = ctx.shape(x)[:2], len(steps)
    for i in range(rank):
        taps = np.arange(window.kernel[i])[:, None] * window.dilations[i]
        places = taps + np.arange(steps[i]) * window.strides[i]
        x = ctx.emit("gather", x, ctx.constant(places.reshape(-1), "int64"), axis=2 + i)
    apart = [size for pair in zip(window.kernel, steps, strict=True) for size in pair]
    x = ctx.reshape(x, (*batch, *apart))
    x = ctx.transpose(x, (*range(2, 2 + 2 * rank, 2), 0, 1, *range(3, 2 + 2 * rank, 2)))
    return ctx.reshape(x, (len(starts), *batch, *steps))


def _inside(line: np.ndarray, dilation: int, size: int) -> np.ndarray:
    """Return positions along one axis; those in the padding become the next one that a window with this dilation has
    inside.
    """
    return np.clip(np.where(line < 0, line % dilation, line), 0, max(size - 1, 0))


def _lowest(dtype: str) -> np.ndarray:
    return np.asarray(-np.inf if is_float(dtype) else integer_range(dtype)[0]).astype(to_numpy_dtype(dtype))


def _places_table(ctx: Context, places: Sequence[Sequence[np.ndarray]], spatial: Sequence[int]) -> np.ndarray:
    """Return [taps, 1, 1, positions...]: index of each tap in its flattened image, row- or (storage_order)
    column-major.
    """
    strides = (
        [prod(spatial[:i]) for i in range(len(spatial))]
        if ctx.attr("storage_order", 0)
        else [prod(spatial[i + 1 :]) for i in range(len(spatial))]
    )
    tables = []
    for lines in places:
        parts = [
            line.reshape(tuple(-1 if j == i else 1 for j in range(len(lines)))) * strides[i]
            for i, line in enumerate(lines)
        ]
        tables.append(reduce(np.add, parts))
    return np.stack(tables)[:, None, None]


def convert_lp_pool(ctx: Context) -> Value:
    x, p = ctx.input(0), int(ctx.attr("p", 2))
    return _root(ctx, _window_reduce(ctx, _power(ctx, x, p), _pool_window(ctx, x), "sum"), p)


def _power(ctx: Context, x: Value, p: int) -> Value:
    if p == 2:
        return ctx.mul(x, x)
    magnitude = ctx.emit("abs", x)
    return magnitude if p == 1 else ctx.pow(magnitude, float(p))


def _root(ctx: Context, x: Value, p: int) -> Value:
    if p == 2:
        return ctx.emit("sqrt", x)
    return x if p == 1 else ctx.pow(x, 1.0 / p)


def convert_global_average_pool(ctx: Context) -> Value:
    x = ctx.input(0)
    return ctx.mean(x, range(2, ctx.rank(x)))


def convert_global_max_pool(ctx: Context) -> Value:
    x = ctx.input(0)
    return ctx.reduce("max", x, range(2, ctx.rank(x)))


def convert_global_lp_pool(ctx: Context) -> Value:
    x, p = ctx.input(0), int(ctx.attr("p", 2))
    return _root(ctx, ctx.reduce("sum", _power(ctx, x, p), range(2, ctx.rank(x))), p)


def convert_max_unpool(ctx: Context) -> Value:
    """Convert MaxUnpool: scatter to the positions from which MaxPool took the values; a larger `output_shape` appends
    zeros to each axis.
    """
    x, indices = ctx.input(0), ctx.input(1)
    kernel = ctx.attr("kernel_shape")
    window = window_of(ctx, x, kernel)
    shape = ctx.shape(x)
    inferred = [
        (shape[2 + i] - 1) * window.strides[i] + kernel[i] - window.before[i] - window.after[i]
        for i in range(len(kernel))
    ]
    full = (*shape[:2], *inferred)
    zeros = ctx.full((prod(full),), 0, dtype_of(x))
    flat = ctx.emit(
        "scatter_elements", zeros, ctx.reshape(indices, (-1,)), ctx.reshape(x, (-1,)), axis=0, reduction="none"
    )
    y = ctx.reshape(flat, full)
    if ctx.optional(2) is None:
        return y
    wanted = ctx.ints_of(2)
    growth = [w - f for w, f in zip(wanted, full, strict=True)]
    for axis, extra in enumerate(growth):
        if extra < 0:
            y = ctx.slice_axis(y, axis, 0, wanted[axis])
    return ctx.pad(y, (0,) * len(full), [max(g, 0) for g in growth])


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "AveragePool": [(1, convert_average_pool)],
    "MaxPool": [(1, convert_max_pool)],
    "LpPool": [(1, convert_lp_pool)],
    "GlobalAveragePool": [(1, convert_global_average_pool)],
    "GlobalMaxPool": [(1, convert_global_max_pool)],
    "GlobalLpPool": [(1, convert_global_lp_pool)],
    "MaxUnpool": [(9, convert_max_unpool)],
}
