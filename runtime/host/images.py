"""ONNX operators on images with run-time sizes: Resize, AffineGrid, Col2Im, MaxUnpool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .common import (
    Attrs,
    HostError,
    HostFn,
    check_indices,
    computing,
    ints,
    narrow,
    normalized_axes,
    optional_operand,
    widen,
)
from .contraction import taps

# --- Resize ----------------------------------------------------------------------------------------------------------


def _resize(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute Resize. Operands: x, roi, scales, sizes (one of the last two is absent or empty)."""
    x = inputs[0]
    axes = normalized_axes(range(x.ndim) if attrs.get("axes") is None else attrs["axes"], x.ndim)
    scales, sizes = _scales_and_sizes(x.shape, axes, _given(inputs, 2), _given(inputs, 3), attrs)
    mode = attrs.get("mode", "nearest")
    roi = _given(inputs, 1)
    result = x if mode == "nearest" or x.dtype.kind == "O" else widen(x).astype(np.float64)
    outside = np.zeros((1,) * x.ndim, bool)
    for i, axis in enumerate(axes):
        bounds = (0.0, 1.0) if roi is None else (float(roi[i]), float(roi[len(axes) + i]))
        position = _source_position(attrs, x.shape[axis], scales[i], sizes[i], bounds)
        if attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            beyond = (position < 0) | (position > x.shape[axis] - 1)
            outside = outside | beyond.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        elif sizes[i] == x.shape[axis] and abs(scales[i] - 1) < 1e-9:
            continue
        result = _resample(result, axis, position, scales[i], mode, attrs)
    if outside.any():
        result = np.where(outside, attrs.get("extrapolation_value", 0.0), result)
    return [_rounded(result, x.dtype)]


def _given(inputs: Sequence[Any], index: int) -> Any:
    """Return an operand, or None if it is absent or empty."""
    value = optional_operand(inputs, index)
    return None if value is None or np.asarray(value).size == 0 else np.asarray(value)


def _scales_and_sizes(
    shape: Sequence[int], axes: Sequence[int], scales: Any, sizes: Any, attrs: Attrs
) -> tuple[list[float], list[int]]:
    """Return scale and output size for each of `axes`."""
    if (scales is None) == (sizes is None):
        raise HostError("Resize needs either scales or sizes")
    given = scales if sizes is None else sizes
    if len(given) != len(axes):
        raise HostError(f"Resize of {len(axes)} axes was given {len(given)} scales or sizes")
    if sizes is None:
        factors = [float(s) for s in scales]
        return factors, [int(np.float32(f) * np.float32(shape[a])) for f, a in zip(factors, axes, strict=True)]
    factors = [s / shape[a] if shape[a] else 1.0 for s, a in zip(ints(sizes), axes, strict=True)]
    policy = attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return factors, list(ints(sizes))
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [factor] * len(axes), [int(factor * shape[a] + 0.5) for a in axes]


def _source_position(attrs: Attrs, size: int, scale: float, output: int, roi: tuple[float, float]) -> np.ndarray:
    """Return the position in the input of each output element, by `coordinate_transformation_mode`."""
    mode = attrs.get("coordinate_transformation_mode", "half_pixel")
    nearest = attrs.get("mode", "nearest") == "nearest" and attrs.get("nearest_mode") != "before_11"
    dtype = np.float64 if nearest else np.float32  # as in kernels and other runtimes
    index, exact = np.arange(output, dtype=dtype), scale * size
    if np.float32(exact) == output:  # but for rounding: 1 / 49 * 49 is less than 1
        exact = output

    def scaled(at: np.ndarray) -> np.ndarray:
        """Scale by the ratio of the sizes where rounding of the scale must not decide which element is nearest."""
        return at * size / exact if nearest else at / dtype(scale)

    if mode == "asymmetric":
        return scaled(index)
    if mode == "align_corners":
        return index * dtype(size - 1) / dtype(exact - 1) if exact != 1 else np.zeros(output)
    if mode == "tf_crop_and_resize":
        start, step = dtype(roi[0] * (size - 1)), dtype((roi[1] - roi[0]) * (size - 1))
        return start + (index * step / dtype(exact - 1) if exact != 1 else np.full(output, step / 2))
    if mode == "pytorch_half_pixel" and exact == 1:
        return np.zeros(output)
    middle = scaled(index + dtype(0.5))
    if mode == "tf_half_pixel_for_nn":
        return middle
    centre = middle - dtype(0.5)
    if mode == "half_pixel_symmetric":
        return centre + dtype(size / 2 * (1 - output / exact))
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return centre
    raise HostError(f"unknown coordinate_transformation_mode {mode!r}")


_NEAREST: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda position: np.ceil(position - 0.5),
    "round_prefer_ceil": lambda position: np.floor(position + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _nearest(mode: str, position: np.ndarray, scale: float) -> np.ndarray:
    if mode != "before_11":
        return _NEAREST[mode](position)
    return np.ceil(position) if scale < 1 else np.floor(position)


def _resample(x: np.ndarray, axis: int, position: np.ndarray, scale: float, mode: str, attrs: Attrs) -> np.ndarray:
    size = x.shape[axis]
    if mode == "nearest":
        nearest = _nearest(attrs.get("nearest_mode", "round_prefer_floor"), position, scale).astype(np.int64)
        return np.take(x, np.clip(nearest, 0, size - 1), axis)
    weights = _weights(position, size, scale, mode, attrs)
    return np.moveaxis(np.tensordot(x, weights, axes=([axis], [1])), -1, axis)


def _weights(position: np.ndarray, size: int, scale: float, mode: str, attrs: Attrs) -> np.ndarray:
    """Return the matrix [outputs, size] that interpolates along one axis; beyond the edges the edge element is used."""
    if mode not in ("linear", "cubic"):
        raise HostError(f"unknown mode {mode!r} of Resize")
    antialias = bool(attrs.get("antialias", 0))
    squeeze = min(scale, 1.0) if antialias else 1.0
    reach = (1 if mode == "linear" else 2) / squeeze
    first = np.floor(position - reach).astype(np.int64) + 1
    taps = first[:, None] + np.arange(int(np.ceil(2 * reach)) + 1)
    distance = np.abs(taps - position[:, None]) * squeeze
    weights = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(distance, attrs.get("cubic_coeff_a", -0.75))
    if attrs.get("exclude_outside", 0):
        weights = np.where((taps < 0) | (taps >= size), 0, weights)
    if antialias or attrs.get("exclude_outside", 0):
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    matrix = np.zeros((len(position), size))
    np.add.at(matrix, (np.arange(len(position))[:, None], np.clip(taps, 0, size - 1)), weights)
    return matrix


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Return Keys' cubic convolution kernel at these distances."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return interpolated values as `dtype`; integers are rounded and clamped."""
    if dtype.kind in "iu" and x.dtype.kind == "f":
        limits = np.iinfo(dtype)
        x = np.clip(np.rint(x), limits.min, limits.max)
    with computing():
        return np.array(x, dtype, order="C")


# --- the others ------------------------------------------------------------------------------------------------------


def _affine_grid(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute AffineGrid. Operands: theta [N, 2, 3] or [N, 3, 4], and the output size (N, C, [D,] H, W)."""
    theta, size = inputs
    spatial = ints(size)[2:]
    if theta.ndim != 3 or theta.shape[1:] != (len(spatial), len(spatial) + 1):
        raise HostError(f"theta of shape {theta.shape} does not fit {len(spatial)} spatial dimensions")
    lines = [_grid_line(n, bool(attrs.get("align_corners", 0))) for n in spatial]
    grids = np.meshgrid(*lines, indexing="ij")
    # x comes first: the last axis varies fastest.
    points = np.stack([*reversed(grids), np.ones(spatial)], -1).reshape(-1, len(spatial) + 1)
    result = np.matmul(points, widen(theta).transpose(0, 2, 1).astype(np.float64))
    return [narrow(result.reshape(len(theta), *spatial, len(spatial)), theta.dtype)]


def _grid_line(size: int, align_corners: bool) -> np.ndarray:
    return np.linspace(-1, 1, size) if align_corners else (2 * np.arange(size) + 1) / max(size, 1) - 1


def _col2im(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute Col2Im. Operands: columns [N, C * prod(block), L], image shape, block shape."""
    x, image, block = inputs[0], ints(inputs[1]), ints(inputs[2])
    rank = len(image)
    strides, dilations = attrs.get("strides") or (1,) * rank, attrs.get("dilations") or (1,) * rank
    pads = attrs.get("pads") or (0,) * (2 * rank)
    before, after = pads[:rank], pads[rank:]
    padded = [n + b + a for n, b, a in zip(image, before, after, strict=True)]
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(padded, block, strides, dilations, strict=True)]
    if x.ndim != 3 or x.shape[1] % prod(block) or x.shape[2] != prod(counts):
        raise HostError(
            f"columns of shape {x.shape} are not those of {prod(counts)} blocks {block} of an image {image}"
        )
    columns = widen(x).reshape(len(x), -1, *block, *counts)
    result = np.zeros((len(x), columns.shape[1], *padded), columns.dtype)
    for offset in product(*[range(k) for k in block]):
        block_element: Any = (slice(None), slice(None), *offset)
        result[taps(offset, dilations, counts, strides)] += columns[block_element]
    inner: Any = (..., *[slice(b, b + n) for b, n in zip(before, image, strict=True)])
    return [np.ascontiguousarray(narrow(result[inner], x.dtype))]


def _max_unpool(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute MaxUnpool. Operands: x, the flat indices from MaxPool, and the output shape (absent: inferred)."""
    x, indices, wanted = inputs[0], inputs[1], optional_operand(inputs, 2)
    kernel = attrs["kernel_shape"]
    strides, pads = attrs.get("strides") or (1,) * len(kernel), attrs.get("pads") or (0,) * (2 * len(kernel))
    spatial = [
        (n - 1) * s - pads[i] - pads[len(kernel) + i] + k
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    inferred = (*x.shape[:2], *spatial)
    flat = np.zeros(prod(inferred), x.dtype)
    flat[check_indices(indices.reshape(-1), flat.size, 0)] = x.reshape(-1)
    pooled = flat.reshape(inferred)
    if wanted is None:
        return [pooled]
    # The indices refer to the inferred shape; a larger output is padded with zeros at the end.
    result = np.zeros(ints(wanted), x.dtype)
    if len(result.shape) != len(inferred) or any(n > m for n, m in zip(inferred, result.shape, strict=True)):
        raise HostError(f"output shape {result.shape} is smaller than {inferred}, which kernel, strides and pads give")
    result[tuple(slice(n) for n in inferred)] = pooled
    return [result]


TABLE: Mapping[str, HostFn] = {
    "Resize": _resize, "AffineGrid": _affine_grid, "Col2Im": _col2im, "MaxUnpool": _max_unpool,
}  # fmt: skip
