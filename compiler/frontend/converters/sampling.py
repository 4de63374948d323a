"""Image sampling at computed positions: GridSample, AffineGrid, RoiAlign, MaxRoiPool and DeformConv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilestitch.compiler.ir import TensorType, Value
from tilestitch.compiler.ir.claims import may_be_equal
from tilestitch.compiler.ir.sizes import is_open, largest

from ..builder import Builder, Operand, dtype_of
from ..context import Context, Versioned
from ..symbols import sizes_are_symbols
from .common import HALVES
from .convolution import Window, conv_window
from .indexing import along_axis
from .shaping import reshaped

KEYS_COEFFICIENT = -0.75
"""The coefficient `a` of Keys' cubic kernel that GridSample uses."""
Tap = tuple[Value, Value]
"""An integer position along one axis, and its weight."""


def linear_taps(b: Builder, place: Value) -> list[Tap]:
    """Return the two neighbours of real-valued positions."""
    low = b.emit("floor", place)
    fraction = b.sub(place, low)
    return [(low, b.sub(1.0, fraction)), (b.add(low, 1.0), fraction)]


def cubic_taps(b: Builder, place: Value) -> list[Tap]:
    """Return the four neighbours of real-valued positions, with Keys' cubic kernel."""
    a, low = KEYS_COEFFICIENT, b.emit("floor", place)
    t = b.sub(place, low)

    def near(x: Value) -> Value:
        return b.add(b.mul(b.mul(b.sub(b.mul(x, a + 2), a + 3), x), x), 1.0)

    def far(x: Value) -> Value:
        return b.sub(b.mul(b.add(b.mul(b.sub(b.mul(x, a), 5 * a), x), 8 * a), x), 4 * a)

    back = b.sub(1.0, t)
    weights = [far(b.add(t, 1.0)), near(t), near(back), far(b.add(back, 1.0))]
    return [(b.add(low, float(i - 1)), w) for i, w in enumerate(weights)]


def zero_outside(b: Builder, tap: Tap, size: int) -> Tap:
    """Return the tap with its position clamped to [0, size), and weight zero where it was outside."""
    place, weight = tap
    within = b.less(place, measure(b, size, place))
    inside = b.emit("logical_and", b.less_equal(b.like(0.0, place), place), within)
    return clamp_place(b, place, size), b.select(inside, weight, 0.0)


def clamp_place(b: Builder, place: Value, size: int) -> Value:
    return b.clamp(place, 0.0, measure(b, largest(size - 1, 0), place))


def measure(b: Builder, size: int, like: Value) -> Operand:
    """Return a size as an operand, of the dtype of `like` where it is open."""
    return b.size(size, dtype_of(like)) if is_open(size) else float(size)


def weighted_gather(b: Builder, image: Value, sizes: Sequence[int], taps: Sequence[Sequence[Tap]]) -> Value:
    """Return the weighted sum over all combinations of the axes' taps.

    `image` is [N, C, prod(sizes)], places and weights are [N, P]; the result is [N, C, P].
    """
    corners = list(product(*taps))
    if len(corners) == 1:
        return _one_corner(b, image, sizes, corners[0])
    # The channels of a place are read side by side: its position and weight are computed once for all of them.
    pixels = b.transpose(image, (0, 2, 1))
    total: Value | None = None
    for corner in corners:
        weight = b.expand_dims(reduce(b.mul, (w for _, w in corner)), (2,))
        index = b.expand_dims(_flat_places(b, [place for place, _ in corner], sizes), (2,))
        term = b.mul(b.emit("gather_nd", pixels, index, batch_dims=1), weight)
        total = term if total is None else b.add(total, term)
    assert total is not None
    return b.transpose(total, (0, 2, 1))


def _one_corner(b: Builder, image: Value, sizes: Sequence[int], corner: Sequence[Tap]) -> Value:
    """Return the weighted elements at one place each: to move the channels would take longer than to pick them."""
    batch, channels, _ = b.shape(image)
    flat = _flat_places(b, [place for place, _ in corner], sizes)
    count = b.dim(flat, 1)
    index = b.broadcast_to(b.reshape(flat, (batch, 1, count)), (batch, channels, count))
    weight = b.reshape(reduce(b.mul, (w for _, w in corner)), (batch, 1, count))
    return b.mul(b.emit("gather_elements", image, index, axis=2), weight)


def _flat_places(b: Builder, places: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Return positions in the flattened image; 0 for NaN, whose weight is NaN or zero."""
    strides = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    if not any(map(is_open, strides)):
        flat = reduce(b.add, (b.mul(place, float(stride)) for place, stride in zip(places, strides, strict=True)))
        return b.cast(b.select(b.emit("is_nan", flat), 0.0, flat), "int64")
    whole = [b.cast(b.select(b.emit("is_nan", place), 0.0, place), "int64") for place in places]
    return reduce(b.add, (b.mul(place, b.size(stride)) for place, stride in zip(whole, strides, strict=True)))


# -- GridSample ----------------------------------------------------------------------------------------------------


def reflect(b: Builder, x: Value, low: float, span: Operand) -> Value:
    """Return x reflected at `low` and `low + span` until it lies between them."""
    if not isinstance(span, Value):
        return _reflected(b, x, low, span) if span > 0 else b.mul(x, 0.0)
    is_there = b.less(b.like(0.0, span), span)
    return b.mul(_reflected(b, x, low, b.select(is_there, span, 1.0)), b.cast(is_there, dtype_of(x)))


def _reflected(b: Builder, x: Value, low: float, span: Operand) -> Value:
    phase = b.emit("mod", b.sub(x, low), b.mul(span, 2.0) if isinstance(span, Value) else b.like(2 * span, x))
    top = b.add(span, low) if isinstance(span, Value) else low + span
    return b.sub(top, b.emit("abs", b.sub(phase, span)))


_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def convert_grid_sample(ctx: Context) -> Value:
    x, grid = ctx.input(0), ctx.input(1)
    shape, grid_shape = ctx.shape(x), ctx.shape(grid)
    sizes, places = shape[2:], grid_shape[1:-1]
    mode = ctx.attr("mode", "linear" if ctx.opset >= 20 else "bilinear")
    mode = _MODES.get(mode, mode)
    padding, align = ctx.attr("padding_mode", "zeros"), bool(ctx.attr("align_corners", 0))
    if mode not in ("linear", "nearest", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise ctx.fail(f"mode {mode!r} or padding_mode {padding!r} is unknown")
    if not may_be_equal(shape[0], grid_shape[0]):
        raise ctx.fail(f"X has {shape[0]} images, but grid is for {grid_shape[0]}; give as many of both")
    wide = ctx.cast(grid, "float32") if dtype_of(grid) != "float64" else grid
    flat_grid = reshaped(ctx, wide, (shape[0], prod(places), len(sizes)))
    taps = []
    for axis, size in enumerate(sizes):
        # The last coordinate of the grid is that of the first spatial axis.
        at = len(sizes) - 1 - axis
        coordinate = ctx.squeeze(ctx.slice_axis(flat_grid, 2, at, at + 1), (2,))
        taps.append(_grid_taps(ctx, _denormalized(ctx, coordinate, size, align), size, mode, padding, align))
    dtype = dtype_of(x)
    compute = dtype_of(wide) if dtype in HALVES or not dtype.startswith("float") else dtype
    taps = [[(place, ctx.cast(weight, compute)) for place, weight in line] for line in taps]
    flat = ctx.cast(ctx.reshape(x, (*shape[:2], prod(sizes))), compute)
    return ctx.cast(ctx.reshape(weighted_gather(ctx, flat, sizes, taps), (*shape[:2], *places)), dtype)


def _denormalized(b: Builder, x: Value, size: int, align: bool) -> Value:
    if align:
        half = b.mul(b.size(size - 1, dtype_of(x)), 0.5) if is_open(size) else (size - 1) / 2
        return b.mul(b.add(x, 1.0), half)
    return b.mul(b.sub(b.mul(b.add(x, 1.0), measure(b, size, x)), 1.0), 0.5)


def _grid_taps(b: Builder, place: Value, size: int, mode: str, padding: str, align: bool) -> list[Tap]:
    low = 0.0 if align else -0.5
    span = measure(b, size - 1 if align else size, place)
    if mode == "nearest":
        place = b.emit("round", place)
    if padding == "border" and mode == "cubic":
        # Only positions beyond the border move to the outermost centre: the half cell in between is interpolated.
        high = b.add(span, low) if isinstance(span, Value) else b.like(low + span, place)
        beyond = b.emit("logical_or", b.less(place, low), b.less(high, place))
        place = b.select(beyond, clamp_place(b, place, size), place)
    elif padding == "border":
        place = clamp_place(b, place, size)
    elif padding == "reflection":
        place = reflect(b, place, low, span)
    if mode == "nearest":
        taps = [(b.emit("round", place), b.add(b.mul(place, 0.0), 1.0))]
    else:
        taps = linear_taps(b, place) if mode == "linear" else cubic_taps(b, place)
    if padding == "zeros":
        return [zero_outside(b, tap, size) for tap in taps]
    if padding == "reflection":
        taps = [(reflect(b, p, low, span), w) for p, w in taps]
    return [(clamp_place(b, p, size), w) for p, w in taps]


def convert_affine_grid(ctx: Context) -> Value:
    """Return the positions of a regular grid on [-1, 1] under the affine maps theta[N, k, k+1]; the last coordinate is
    x.
    """
    theta = ctx.input(0)
    sizes = ctx.ints_of(1)[2:]
    lines = []
    for size in sizes:
        centres = (2 * np.arange(size) + 1) / max(size, 1) - 1
        lines.append(np.linspace(-1.0, 1.0, size) if ctx.attr("align_corners", 0) else centres)
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*(m.reshape(-1) for m in reversed(mesh)), np.ones(prod(sizes))], 1)
    grid = ctx.matmul(ctx.constant(points, dtype_of(theta)), theta, trans_b=True)
    return ctx.reshape(grid, (ctx.dim(theta, 0), *sizes, len(sizes)))


# -- regions of interest -------------------------------------------------------------------------------------------


def convert_roi_align(ctx: Context) -> Value:
    x, rois, batch_indices = ctx.input(0), ctx.input(1), ctx.input(2)
    if not may_be_equal(ctx.dim(rois, 0), ctx.dim(batch_indices, 0)):
        raise ctx.fail(f"rois is {rois.type}, but batch_indices is {batch_indices.type}; give as many of both")
    if sizes_are_symbols() and dtype_of(x) == "float32":
        return ctx.emit("roi_align", x, rois, ctx.cast(batch_indices, "int64"), layout="NCX", **_regions(ctx))
    _, channels, height, width = ctx.shape(x)
    ratio = ctx.attr("sampling_ratio", 0)
    if ratio <= 0:
        return roi_align_on_host(ctx)
    count = ctx.shape(rois)[0]
    half_pixel = ctx.opset >= 16 and ctx.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    out = ctx.attr("output_height", 1), ctx.attr("output_width", 1)
    scaled = ctx.sub(ctx.mul(rois, ctx.attr("spatial_scale", 1.0)), 0.5 if half_pixel else 0.0)
    x1, y1, x2, y2 = (ctx.slice_axis(scaled, 1, i, i + 1) for i in range(4))
    rows = _sample_places(ctx, y1, y2, out[0], ratio, half_pixel)
    columns = _sample_places(ctx, x1, x2, out[1], ratio, half_pixel)
    points = (count, out[0] * ratio, out[1] * ratio)
    row_taps, column_taps = _roi_taps(ctx, rows, height), _roi_taps(ctx, columns, width)
    image = ctx.gather(x, ctx.cast(batch_indices, "int64"), 0)
    image = ctx.reshape(image, (count, channels, height * width))

    def spread(value: Value, axis: int) -> Value:
        return ctx.reshape(ctx.broadcast_to(ctx.expand_dims(value, (axis,)), points), (count, prod(points[1:])))

    taps = [[(spread(p, 2), spread(w, 2)) for p, w in row_taps], [(spread(p, 1), spread(w, 1)) for p, w in column_taps]]
    return _pooled_samples(ctx, image, (height, width), taps, (count, channels, out[0], ratio, out[1], ratio))


def roi_align_on_host(ctx: Context) -> Value:
    """Convert RoiAlign with sampling_ratio 0, where the number of samples depends on each region's size, to a host
    step.
    """
    return ctx.host("RoiAlign", [ctx.input(0), ctx.input(1), ctx.input(2)], [_pooled_type(ctx)], **_regions(ctx))[0]


def _pooled_type(ctx: Context) -> TensorType:
    x, rois = ctx.input(0).tensor_type, ctx.input(1).tensor_type
    return x.with_shape((rois.shape[0], x.shape[1], ctx.attr("output_height", 1), ctx.attr("output_width", 1)))


def _regions(ctx: Context) -> dict[str, Any]:
    """Return the attributes of roi_align."""
    half_pixel = ctx.opset >= 16 and ctx.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    return {
        "mode": ctx.attr("mode", "avg"), "size": (ctx.attr("output_height", 1), ctx.attr("output_width", 1)),
        "ratio": max(ctx.attr("sampling_ratio", 0), 0), "scale": float(ctx.attr("spatial_scale", 1.0)),
        "offset": 0.5 if half_pixel else 0.0,
    }  # fmt: skip


def _pooled_samples(
    ctx: Context, image: Value, sizes: Sequence[int], taps: Sequence[Sequence[Tap]], shape: tuple[int, ...]
) -> Value:
    """Return the samples of each bin averaged; mode `max` takes the largest of all weighted neighbours, as ONNX defines
    it.
    """
    if ctx.attr("mode", "avg") == "avg":
        return ctx.mean(ctx.reshape(weighted_gather(ctx, image, sizes, taps), shape), (3, 5), keepdims=False)
    best: Value | None = None
    for corner in product(*taps):
        term = weighted_gather(ctx, image, sizes, [[tap] for tap in corner])
        best = term if best is None else ctx.maximum(best, term)
    assert best is not None
    return ctx.reduce("max", ctx.reshape(best, shape), (3, 5), keepdims=False)


def _sample_places(ctx: Context, start: Value, end: Value, bins: int, ratio: int, half_pixel: bool) -> Value:
    """Return [R, bins*ratio]: evenly spaced sample positions of each region along one axis."""
    extent = ctx.sub(end, start)
    if not half_pixel:
        extent = ctx.maximum(extent, 1.0)
    fractions = (np.arange(bins * ratio) + 0.5) / (bins * ratio)
    return ctx.add(start, ctx.mul(extent, ctx.constant(fractions[None], dtype_of(start))))


def _roi_taps(ctx: Context, place: Value, size: int) -> list[Tap]:
    """Return two neighbours; positions more than one element outside the image count as zero, nearer ones as its
    border.
    """
    outside = ctx.emit("logical_or", ctx.less(place, -1.0), ctx.less(ctx.like(float(size), place), place))
    taps = linear_taps(ctx, clamp_place(ctx, place, size))
    keep = ctx.select(outside, 0.0, ctx.add(ctx.mul(clamp_place(ctx, place, size), 0.0), 1.0))
    return [(clamp_place(ctx, p, size), ctx.mul(w, keep)) for p, w in taps]


def convert_max_roi_pool(ctx: Context) -> Value:
    """Return the maximum over a grid of bins in each region [batch, x1, y1, x2, y2]; an empty bin is zero."""
    x, rois = ctx.input(0), ctx.input(1)
    _, channels, height, width = ctx.shape(x)
    count = ctx.shape(rois)[0]
    pooled_h, pooled_w = ctx.attr("pooled_shape")
    batch = ctx.cast(ctx.squeeze(ctx.slice_axis(rois, 1, 0, 1), (1,)), "int64")
    scaled = ctx.mul(ctx.slice_axis(rois, 1, 1, 5), ctx.attr("spatial_scale", 1.0))
    corners = ctx.emit("floor", ctx.add(scaled, 0.5))
    x1, y1, x2, y2 = (ctx.slice_axis(corners, 1, i, i + 1) for i in range(4))
    rows = _bin_mask(ctx, y1, y2, pooled_h, height)
    columns = _bin_mask(ctx, x1, x2, pooled_w, width)
    lowest = float(np.finfo(np.float16 if dtype_of(x) == "float16" else np.float32).min)
    image = ctx.reshape(ctx.gather(x, batch, 0), (count, channels, height, 1, width))
    wide = ctx.select(ctx.reshape(columns, (count, 1, 1, pooled_w, width)), image, lowest)
    by_column = ctx.reshape(ctx.reduce("max", wide, (4,), keepdims=False), (count, channels, 1, height, pooled_w))
    tall = ctx.select(ctx.reshape(rows, (count, 1, pooled_h, height, 1)), by_column, lowest)
    best = ctx.reduce("max", tall, (3,), keepdims=False)
    return ctx.select(ctx.equal(best, lowest), 0.0, best)


def _bin_mask(ctx: Context, start: Value, end: Value, bins: int, size: int) -> Value:
    """Return bool [R, bins, size]: the positions along an axis that belong to each bin."""
    extent = ctx.maximum(ctx.add(ctx.sub(end, start), 1.0), 1.0)
    step = ctx.div(extent, float(bins))
    dtype = dtype_of(start)
    index = ctx.constant(np.arange(bins)[None], dtype)
    low = ctx.add(ctx.emit("floor", ctx.mul(step, index)), start)
    high = ctx.add(ctx.emit("ceil", ctx.mul(step, ctx.add(index, 1.0))), start)
    place = ctx.constant(np.arange(size)[None, None], dtype)
    inside = ctx.less_equal(ctx.expand_dims(low, (2,)), place)
    return ctx.emit("logical_and", inside, ctx.less(place, ctx.expand_dims(high, (2,))))


# -- deformable convolution ----------------------------------------------------------------------------------------


def convert_deform_conv(ctx: Context) -> Value:
    """Convert DeformConv: sample the taps at their displaced positions, then multiply by the filters."""
    x, w, offset, bias, mask = ctx.input(0), ctx.input(1), ctx.input(2), ctx.optional(3), ctx.optional(4)
    window = conv_window(ctx, x, w)
    batch, channels, *sizes = ctx.shape(x)
    out = ctx.shape(offset)[2:]
    offset_groups, groups, filters = ctx.attr("offset_group", 1), window.groups, ctx.shape(w)[0]
    taps, spatial = prod(window.kernel), len(sizes)
    rows = batch * offset_groups
    moved = ctx.reshape(offset, (rows, taps, spatial, *out))
    lines = []
    for axis in range(spatial):
        displaced = ctx.add(
            ctx.squeeze(ctx.slice_axis(moved, 2, axis, axis + 1), (2,)), _regular_places(ctx, window, axis, out)
        )
        place = ctx.reshape(displaced, (rows, taps * prod(out)))
        lines.append([zero_outside(ctx, tap, sizes[axis]) for tap in linear_taps(ctx, place)])
    image = ctx.reshape(x, (rows, channels // offset_groups, prod(sizes)))
    columns = weighted_gather(ctx, image, sizes, lines)
    if mask is not None:
        columns = ctx.mul(columns, ctx.reshape(mask, (rows, 1, taps * prod(out))))
    columns = ctx.reshape(columns, (batch, groups, channels // groups * taps, prod(out)))
    weights = ctx.reshape(w, (1, groups, filters // groups, channels // groups * taps))
    y = ctx.reshape(ctx.matmul(weights, columns), (batch, filters, *out))
    return y if bias is None else ctx.add(y, along_axis(ctx, bias, 1, ctx.rank(y)))


def _regular_places(ctx: Context, window: Window, axis: int, out: Sequence[int]) -> Value:
    """Return [1, taps, .., out, ..]: the position of each tap along `axis` without displacement."""
    dtype, rank = dtype_of(ctx.input(2)), len(out) + 2
    tap = np.indices(window.kernel)[axis].reshape(-1) * window.dilations[axis] - window.before[axis]
    start = ctx.mul(ctx.cast(ctx.iota(out[axis]), dtype), window.strides[axis])
    return ctx.add(along_axis(ctx, ctx.constant(tap, dtype), 1, rank), along_axis(ctx, start, axis + 2, rank))


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "AffineGrid": [(20, convert_affine_grid)],
    "GridSample": [(16, convert_grid_sample)],
    "RoiAlign": [(10, convert_roi_align)],
    "MaxRoiPool": [(1, convert_max_roi_pool)],
    "DeformConv": [(19, convert_deform_conv)],
}
