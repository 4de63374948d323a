"""Resize and Upsample: separable interpolation with constant tables, one axis after the other.

Every output position along an axis is a weighted sum of a few input positions, all known at compile time. Few taps
become gathers and multiply-adds, which fuse; many taps (antialiasing) become a matmul by a constant matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.compiler.ir.types import is_float, to_numpy_dtype

from ..builder import dtype_of, normalize_axis
from ..context import Context, Versioned
from ..errors import NotStatic
from .common import HALVES
from .indexing import along_axis
from .open_resize import BEFORE_11, OpenAxis, outside_crop, places_dtype, resampled, scaled_size
from .quantization import saturating_cast

MAX_GATHERED_TAPS = 4
MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip
"""Coordinate transformations. The last is of operator sets 11 and 12; ONNX Runtime accepts it in later ones, too."""
UPSAMPLE_MODES = ("nearest", "linear", "bilinear")


@dataclass(frozen=True)
class AxisTable:
    """For each output position, `indices` [out, taps] of input positions, their `weights`, and whether it lies
    `outside`.
    """

    indices: np.ndarray
    weights: np.ndarray
    outside: np.ndarray


Scale: TypeAlias = "float | Value | None"
"""Scale of an axis, as the model gives or computes it; None: the quotient of two sizes of which one is open."""


@dataclass(frozen=True)
class Sampling:
    """The mapping of output positions to input positions, in ONNX's terms."""

    mode: str
    coordinates: str
    nearest_mode: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool


def source_places(
    coordinates: str, size: int, out: int, scale: float, roi: tuple[float, float], dtype: type[np.floating[Any]]
) -> np.ndarray:
    """Return real-valued input positions of the output positions 0 .. out-1, as computed in a data type."""
    place, length = np.arange(out, dtype=dtype), scale * size
    if np.float32(length) == out:  # but for rounding: 1 / 49 * 49 is less than 1
        length = out

    def scaled(at: np.ndarray) -> np.ndarray:
        """Scale by the ratio of the sizes where rounding of the scale must not decide: a third of 9 columns are those
        at 0, 3, 6.
        """
        return at * size / length if dtype is np.float64 else at / dtype(scale)

    if coordinates == "align_corners":
        return np.zeros(out) if length == 1 else place * dtype(size - 1) / dtype(length - 1)
    if coordinates == "asymmetric":
        return scaled(place)
    if coordinates == "tf_crop_and_resize":
        start, end = roi
        if length == 1:
            return np.full(out, 0.5 * (start + end) * (size - 1))
        return dtype(start * (size - 1)) + place * dtype((end - start) * (size - 1)) / dtype(length - 1)
    if coordinates == "pytorch_half_pixel" and length == 1:
        return np.zeros(out)
    middle = scaled(place + dtype(0.5))
    if coordinates == "tf_half_pixel_for_nn":
        return middle
    half_pixel = middle - dtype(0.5)
    if coordinates == "half_pixel_symmetric":
        return half_pixel + dtype(size / 2 * (1 - out / length))
    return half_pixel


def axis_table(sampling: Sampling, size: int, out: int, scale: float, roi: tuple[float, float]) -> AxisTable:
    if out == 0:
        return AxisTable(np.zeros((0, 1), np.int64), np.ones((0, 1)), np.zeros(0, bool))
    dtype = to_numpy_dtype(places_dtype(sampling.mode, sampling.nearest_mode)).type
    places = source_places(sampling.coordinates, size, out, scale, roi, dtype)
    crops = sampling.coordinates == "tf_crop_and_resize"
    outside = (places < 0) | (places > size - 1) if crops else np.zeros(out, bool)
    if sampling.mode == "nearest":
        indices = _nearest(sampling, places, scale).astype(np.int64)[:, None]
        weights = np.ones((out, 1))
    else:
        indices, weights = _weighted(sampling, places, scale)
    if sampling.exclude_outside:
        weights = np.where((indices < 0) | (indices >= size), 0.0, weights)
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return AxisTable(np.clip(indices, 0, max(size - 1, 0)), weights, outside)


ROUNDINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _nearest(sampling: Sampling, places: np.ndarray, scale: float) -> np.ndarray:
    if sampling.nearest_mode != BEFORE_11:
        return ROUNDINGS[sampling.nearest_mode](places)
    return np.ceil(places) if scale < 1 else np.floor(places)


def _weighted(sampling: Sampling, places: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the taps of the linear or cubic kernel, widened by the inverse scale when downsampling with
    antialiasing.
    """
    shrink = min(scale, 1.0) if sampling.antialias else 1.0
    support = 1 if sampling.mode == "linear" else 2
    first = int(np.floor(-support / shrink)) + 1
    count = 2 - 2 * first
    indices = np.floor(places).astype(np.int64)[:, None] + np.arange(first, first + count)
    distance = np.abs(indices - places[:, None]) * shrink
    weights = _linear(distance) if sampling.mode == "linear" else _cubic(distance, sampling.cubic_a)
    return indices, weights / weights.sum(1, keepdims=True)


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.clip(1.0 - distance, 0.0, None)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


# -- emitting ------------------------------------------------------------------------------------------------------


def apply_axis(ctx: Context, x: Value, axis: int, table: AxisTable) -> Value:
    """Return x resampled along one axis."""
    if len(table.indices) == 0:
        return ctx.slice_axis(x, axis, 0, 0)
    used = np.any(table.weights != 0, axis=0)
    indices, weights = table.indices[:, used], table.weights[:, used]
    if indices.shape[1] == 1 and np.all(weights == 1):
        return _gather(ctx, x, axis, indices[:, 0])
    if indices.shape[1] <= MAX_GATHERED_TAPS:
        total: Value | None = None
        for tap in range(indices.shape[1]):
            weight = ctx.constant(weights[:, tap].astype(to_numpy_dtype(dtype_of(x))))
            term = ctx.mul(_gather(ctx, x, axis, indices[:, tap]), along_axis(ctx, weight, axis, ctx.rank(x)))
            total = term if total is None else ctx.add(total, term)
        assert total is not None
        return total
    matrix = np.zeros((len(indices), ctx.dim(x, axis)))
    np.add.at(matrix, (np.arange(len(indices))[:, None], indices), weights)
    last = ctx.rank(x) - 1
    moved = ctx.swap_axes(x, axis, last)
    return ctx.swap_axes(
        ctx.matmul(moved, ctx.constant(matrix.astype(to_numpy_dtype(dtype_of(x)))), trans_b=True), axis, last
    )


def _gather(ctx: Context, x: Value, axis: int, indices: np.ndarray) -> Value:
    if np.array_equal(indices, np.arange(ctx.dim(x, axis))):
        return x
    return ctx.gather(x, ctx.constant(indices, "int64"), axis)


def resample(
    ctx: Context,
    x: Value,
    sampling: Sampling,
    tables: Mapping[int, AxisTable],
    opened: Mapping[int, OpenAxis],
    extrapolation: float = 0.0,
) -> Value:
    """Return x resampled along the axes of `tables` and of `opened`; positions outside a crop get the extrapolation
    value. Results are rounded to the dtype of x once, after all axes.
    """
    if not tables and not opened:
        return x
    dtype = dtype_of(x)
    exact = sampling.mode == "nearest" or (is_float(dtype) and dtype not in HALVES)
    y = x if exact else ctx.cast(x, "float32")
    # Axes that shrink most first: every later axis then has fewer elements to work on.
    for axis in sorted(tables, key=lambda a: len(tables[a].indices) / max(ctx.dim(x, a), 1)):
        y = apply_axis(ctx, y, axis, tables[axis])
    for axis, how in opened.items():
        y = resampled(ctx, y, axis, how, vars(sampling))
    for axis, mask in _outside(ctx, sampling, tables, opened).items():
        y = ctx.select(along_axis(ctx, mask, axis, ctx.rank(x)), extrapolation, y)
    if dtype_of(y) == dtype:
        return y
    return ctx.cast(y, dtype) if is_float(dtype) else saturating_cast(ctx, y, None, dtype)


def _outside(
    ctx: Context, sampling: Sampling, tables: Mapping[int, AxisTable], opened: Mapping[int, OpenAxis]
) -> Mapping[int, Value]:
    """Return, of each axis with positions outside its crop, which ones are."""
    known = {axis: ctx.constant(table.outside) for axis, table in tables.items() if table.outside.any()}
    crops = {axis: how for axis, how in opened.items() if how.window is not None}
    return known | {axis: outside_crop(ctx, how, vars(sampling)) for axis, how in crops.items()}


# -- the operators ---------------------------------------------------------------------------------------------------


def _one_of(ctx: Context, name: str, default: str, known: Collection[str]) -> str:
    """Return an attribute that names one of `known`."""
    given: str = ctx.attr(name, default)
    if given not in known:
        raise ctx.fail(f"{name} is {given!r}, none of {', '.join(known)}")
    return given


def convert_resize(ctx: Context) -> Value:
    x = ctx.input(0)
    shape = ctx.shape(x)
    axes = [normalize_axis(a, len(shape)) for a in ctx.attr("axes", tuple(range(len(shape))))]
    sizes, scales = _sizes_and_scales(ctx, shape, axes)
    sampling = Sampling(
        _one_of(ctx, "mode", "nearest", MODES),
        _one_of(ctx, "coordinate_transformation_mode", "half_pixel" if ctx.opset >= 11 else "asymmetric", COORDINATES),
        _one_of(ctx, "nearest_mode", "round_prefer_floor", ROUNDINGS) if ctx.opset >= 11 else BEFORE_11,
        ctx.attr("cubic_coeff_a", -0.75),
        bool(ctx.attr("exclude_outside", 0)),
        bool(ctx.attr("antialias", 0)),
    )
    crops = sampling.coordinates == "tf_crop_and_resize"
    roi = _numbers_of(ctx, ctx.input(1)) if crops else [0.0] * len(axes) + [1.0] * len(axes)
    if len(roi) != 2 * len(axes):
        raise ctx.fail(f"roi has {len(roi)} entries for {len(axes)} axes")
    _check_scales(ctx, shape, axes, sizes, scales)
    tables, opened = dict[int, AxisTable](), dict[int, OpenAxis]()
    for i, axis in enumerate(axes):
        start, end, scale = roi[i], roi[i + len(axes)], scales[i]
        if sizes[i] == shape[axis] and scale == 1.0 and (start, end) == (0.0, 1.0):
            continue
        if _is_number(scale) and _is_number(start) and _is_number(end) and not is_open(shape[axis]):
            tables[axis] = axis_table(sampling, shape[axis], sizes[i], scale, (start, end))
        else:
            opened[axis] = OpenAxis(shape[axis], sizes[i], scale, (start, end) if crops else None)
    if opened and sampling.antialias:
        raise NotStatic(f"which places of {x.tensor_type} an antialiased window covers depends on open sizes")
    return resample(ctx, x, sampling, tables, opened, ctx.attr("extrapolation_value", 0.0))


def _is_number(value: Scale) -> TypeGuard[float]:
    return isinstance(value, float)


def _sizes_and_scales(ctx: Context, shape: Sequence[int], axes: Sequence[int]) -> tuple[list[int], list[Scale]]:
    """Return output size and scale of each axis, from whichever the node gives."""
    scales_at, sizes_at = (1, None) if ctx.opset < 11 else (2, 3)
    given = ctx.optional(scales_at)
    if given is not None and (sizes_at is None or ctx.optional(sizes_at) is None or ctx.constant_of(scales_at).size):
        scales = _scales(ctx, given)
        if len(scales) != len(axes):
            raise ctx.fail(f"{len(scales)} scales are given for {len(axes)} axes")
        return [_scaled(ctx, shape[a], s) for a, s in zip(axes, scales, strict=True)], scales
    if sizes_at is None or ctx.optional(sizes_at) is None:
        raise ctx.fail("neither scales nor sizes are given")
    sizes = list(ctx.sizes_of(sizes_at))
    if len(sizes) != len(axes):
        raise ctx.fail(f"{len(sizes)} sizes are given for {len(axes)} axes")
    policy = ctx.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch" and any(map(is_open, (*sizes, *(shape[a] for a in axes)))):
        return sizes, [_quotient(s, shape[a]) for a, s in zip(axes, sizes, strict=True)]
    quotients = [s / shape[a] if shape[a] else 1.0 for a, s in zip(axes, sizes, strict=True)]
    if policy == "stretch":
        return sizes, [*quotients]
    if policy not in ("not_larger", "not_smaller"):
        raise ctx.fail(f"keep_aspect_ratio_policy is {policy!r}, none of stretch, not_larger, not_smaller")
    scale = min(quotients) if policy == "not_larger" else max(quotients)
    return [int(shape[a] * scale + 0.5) for a in axes], [scale] * len(axes)


def _scales(ctx: Context, given: Value) -> list[Scale]:
    """Return the scales: positive numbers, and scalars for those that the model computes and concatenates."""
    scales = _numbers_of(ctx, given)
    known = [s for s in scales if isinstance(s, float)]
    if not all(np.isfinite(s) and s > 0 for s in known):
        raise ctx.fail(f"scales are {known}; each must be a positive number")
    return [*scales]


def _numbers_of(ctx: Context, given: Value) -> list[float | Value]:
    """Return the entries of a vector: numbers, and scalars for those that the model computes and concatenates."""
    if given.data is not None:
        return [float(s) for s in given.data.reshape(-1)]
    if given.producer is not None and given.producer.op == "concat":
        return [number for part in given.producer.inputs for number in _numbers_of(ctx, part)]
    places = (ctx.slice_axis(given, 0, i, i + 1) for i in range(ctx.dim(given, 0)))
    return [ctx.reshape(ctx.cast(place, "float32"), ()) for place in places]


def _scaled(ctx: Context, size: int, scale: Scale) -> int:
    """Return the floor of the product in float32, as in ONNX's shape inference: 3 times 40 / 3 is 40."""
    assert scale is not None
    if scale == 1.0:
        return size
    if isinstance(scale, Value) or is_open(size):
        return scaled_size(ctx, size, scale)
    return int(np.float32(size) * np.float32(scale))


def _quotient(out: Size, size: Size) -> float | None:
    if is_open(out) or is_open(size):
        return 1.0 if out == size else None
    return out / size if size else 1.0


def _check_scales(
    ctx: Context, shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int], scales: Sequence[Scale]
) -> None:
    for axis, size, scale in zip(axes, sizes, scales, strict=True):
        if is_open(size) or is_open(shape[axis]):
            continue
        if size < 0 or (size > 0 and shape[axis] == 0):
            raise ctx.fail(f"axis {axis} of {shape[axis]} elements cannot be resized to {size} (scale {scale})")


def convert_upsample(ctx: Context) -> Value:
    x = ctx.input(0)
    shape = ctx.shape(x)
    if ctx.opset >= 9:
        scales = _scales(ctx, ctx.input(1))
    elif ctx.opset >= 7:
        scales = list(ctx.attr("scales"))
    else:
        scales = [1.0, 1.0, ctx.attr("height_scale"), ctx.attr("width_scale")]
    if len(scales) != len(shape):
        raise ctx.fail(f"{len(scales)} scales are given for {len(shape)} axes")
    mode = "nearest" if _one_of(ctx, "mode", "nearest", UPSAMPLE_MODES) == "nearest" else "linear"
    sampling = Sampling(mode, "asymmetric", BEFORE_11, -0.75, False, False)
    tables, opened = dict[int, AxisTable](), dict[int, OpenAxis]()
    for axis, scale in enumerate(scales):
        if scale == 1.0:
            continue
        out = _scaled(ctx, shape[axis], scale)
        if isinstance(scale, float) and not is_open(shape[axis]):
            tables[axis] = axis_table(sampling, shape[axis], out, scale, (0.0, 1.0))
        else:
            opened[axis] = OpenAxis(shape[axis], out, scale)
    return resample(ctx, x, sampling, tables, opened)


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "Resize": [(10, convert_resize)],
    "Upsample": [(1, convert_upsample)],
}
