"""ONNX operators that change shapes, with the shapes, axes and bounds as run-time tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .common import (
    Attrs,
    HostError,
    HostFn,
    ints,
    normalized_axes,
    normalized_axis,
    numpy_dtype,
    optional_operand,
    scalar_int,
)
from .movement import broadcast_array, pad_array, reshape_array

ALIASING = frozenset({"Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators of this module whose results may share memory with their first operand."""


def _shape(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [np.array(inputs[0].shape[attrs.get("start", 0) : attrs.get("end")], np.int64)]


def _size(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [np.asarray(inputs[0].size, np.int64)]


def _reshape(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, shape = inputs
    target = list(ints(shape))
    if not attrs.get("allowzero", 0):
        if any(d == 0 and i >= x.ndim for i, d in enumerate(target)):
            raise HostError(f"shape {tuple(target)} copies a dimension that a tensor of shape {x.shape} does not have")
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    known = prod(d for d in target if d != -1)
    if target.count(-1) == 1 and known == 0:
        raise HostError(f"-1 in shape {tuple(target)} has no value, because another dimension is 0")
    return [reshape_array(x, target)]


def _flatten(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    axis = attrs.get("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise HostError(f"axis {axis} is out of range for a tensor of rank {x.ndim}")
    axis = axis + x.ndim if axis < 0 else axis
    return [x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))]


def _expand(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, shape = inputs
    try:
        target = np.broadcast_shapes(x.shape, ints(shape))
    except ValueError as error:
        raise HostError(f"a tensor of shape {x.shape} and the shape {ints(shape)} do not broadcast") from error
    return [broadcast_array(x, target)]


def _tile(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, repeats = inputs
    if len(ints(repeats)) != x.ndim:
        raise HostError(f"{len(ints(repeats))} repeats for a tensor of rank {x.ndim}")
    return [np.array(np.tile(x, ints(repeats)))]


def slice_index(shape: Sequence[int], starts: Any, ends: Any, axes: Any, steps: Any) -> tuple[slice, ...]:
    """Return the Python index of an ONNX Slice: bounds are clamped to the dimension, steps may be negative. One that
    goes backwards from before the dimension starts at its first element, unlike Python's.
    """
    firsts, lasts = ints(starts), ints(ends)
    where = normalized_axes(range(len(firsts)) if axes is None else axes, len(shape))
    strides = (1,) * len(firsts) if steps is None else ints(steps)
    if not len(firsts) == len(lasts) == len(where) == len(strides):
        raise HostError(f"starts {firsts}, ends {lasts}, axes {where} and steps {strides} are not equally many")
    index = [slice(None)] * len(shape)
    for axis, first, last, step in zip(where, firsts, lasts, strides, strict=True):
        if step == 0:
            raise HostError(f"the step along axis {axis} is 0")
        size = shape[axis]
        first = first + size if first < 0 else first
        last = last + size if last < 0 else last
        if step > 0:
            index[axis] = slice(min(max(first, 0), size), min(max(last, 0), size), step)
        else:
            last = min(max(last, -1), size - 1)
            first = min(max(first, 0), size - 1)
            index[axis] = slice(first, None if last < 0 else last, step) if first >= 0 else slice(0, 0)
    return tuple(index)


def _slice(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, starts, ends = inputs[:3]
    return [x[slice_index(x.shape, starts, ends, optional_operand(inputs, 3), optional_operand(inputs, 4))]]


def _pad(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, pads = inputs[:2]
    given = optional_operand(inputs, 3)
    axes = normalized_axes(range(x.ndim) if given is None else given, x.ndim)
    amounts = ints(pads)
    if len(amounts) != 2 * len(axes):
        raise HostError(f"{len(amounts)} pads for {len(axes)} axes")
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(axes):
        before[axis], after[axis] = amounts[i], amounts[len(axes) + i]
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        if x.shape[axis] + min(b, 0) + min(a, 0) < 0:
            raise HostError(f"pads {b} and {a} remove more than the {x.shape[axis]} elements of axis {axis}")
    # Negative pads crop.
    inner = x[tuple(slice(max(-b, 0), d - max(-a, 0)) for d, b, a in zip(x.shape, before, after, strict=True))]
    value = optional_operand(inputs, 2)
    return [
        pad_array(inner, [max(b, 0) for b in before], [max(a, 0) for a in after], attrs.get("mode", "constant"), value)
    ]


def _squeeze(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, given = inputs[0], optional_operand(inputs, 1)
    axes = [i for i, d in enumerate(x.shape) if d == 1] if given is None else normalized_axes(given, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise HostError(f"axes {tuple(axes)} of a tensor of shape {x.shape} are not all of size 1")
    return [x.reshape([d for i, d in enumerate(x.shape) if i not in axes])]


def _unsqueeze(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, given = inputs
    axes = normalized_axes(given, x.ndim + len(ints(given)))
    shape = list(x.shape)
    for axis in sorted(axes):
        shape.insert(axis, 1)
    return [x.reshape(shape)]


def _split(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, given = inputs[0], optional_operand(inputs, 1)
    axis = normalized_axis(attrs.get("axis", 0), x.ndim)
    sizes = _even_sizes(x.shape[axis], attrs["num_outputs"]) if given is None else ints(given)
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise HostError(f"sizes {tuple(sizes)} do not add up to the {x.shape[axis]} elements of axis {axis}")
    starts = np.cumsum((0, *sizes)).tolist()
    return [np.take(x, np.arange(start, start + size), axis) for start, size in zip(starts, sizes)]


def _even_sizes(size: int, parts: int) -> list[int]:
    """Return the sizes of `parts` equal chunks, the last one smaller if need be."""
    chunk = -(-size // parts)
    return [max(0, min(chunk, size - i * chunk)) for i in range(parts)]


def _concat(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    try:
        return [np.concatenate(inputs, axis=normalized_axis(attrs["axis"], inputs[0].ndim))]
    except ValueError as error:
        shapes = ", ".join(str(x.shape) for x in inputs)
        raise HostError(f"tensors of shapes {shapes} do not join along axis {attrs['axis']}") from error


def _transpose(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    perm = attrs.get("perm")
    if perm is not None and sorted(perm) != list(range(x.ndim)):
        raise HostError(f"perm {tuple(perm)} is no permutation of the axes of a tensor of rank {x.ndim}")
    return [x.transpose(perm)]


def _range(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    start, limit, delta = (np.asarray(v).reshape(()) for v in inputs)
    if delta == 0:
        raise HostError("the delta of a Range is 0")
    if start.dtype.kind in "iu":
        count = max(0, -((int(start) - int(limit)) // int(delta)))
    else:
        count = max(0, int(np.ceil((np.float64(limit) - np.float64(start)) / np.float64(delta))))
    steps = np.arange(count)
    if start.dtype.kind in "iu":
        return [(int(start) + steps * int(delta)).astype(start.dtype)]
    return [(np.float64(start) + steps * np.float64(delta)).astype(start.dtype)]


def _constant_of_shape(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute ConstantOfShape. Operands: the shape, and the value as a tensor of one element."""
    shape, value = inputs
    return [np.full(ints(shape), np.asarray(value).reshape(-1)[0], np.asarray(value).dtype)]


def _center_crop_pad(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, shape = inputs
    axes = normalized_axes(range(x.ndim) if attrs.get("axes") is None else attrs["axes"], x.ndim)
    result = np.array(x)
    for axis, size in zip(axes, ints(shape), strict=True):
        result = _crop_or_pad(result, axis, size)
    return [np.ascontiguousarray(result)]


def _crop_or_pad(x: np.ndarray, axis: int, size: int) -> np.ndarray:
    have = x.shape[axis]
    if size <= have:
        start = (have - size) // 2
        return x[tuple(slice(start, start + size) if i == axis else slice(None) for i in range(x.ndim))]
    before = [(size - have) // 2 if i == axis else 0 for i in range(x.ndim)]
    after = [size - have - b if i == axis else 0 for i, b in enumerate(before)]
    return pad_array(x, before, after, "constant")


def _eye_like(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    if x.ndim != 2:
        raise HostError(f"EyeLike needs a matrix, got a tensor of shape {x.shape}")
    return [
        np.eye(x.shape[0], x.shape[1], k=attrs.get("k", 0), dtype=np.int8).astype(
            numpy_dtype(attrs["dtype"]) if attrs.get("dtype") else x.dtype
        )
    ]


def _trilu(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, given = inputs[0], optional_operand(inputs, 1)
    k = 0 if given is None else scalar_int(given)
    if x.ndim < 2:
        raise HostError(f"Trilu needs at least a matrix, got a tensor of shape {x.shape}")
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    kept = columns - rows >= k if attrs.get("upper", 1) else columns - rows <= k
    return [np.where(kept, x, np.zeros((), x.dtype))]


def _one_hot(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    indices, depth_operand, values = inputs
    depth = scalar_int(depth_operand)
    axis = normalized_axis(attrs.get("axis", -1), indices.ndim + 1)
    off, on = values.reshape(-1)[:2]
    # A float index is truncated; one outside [-depth, depth) selects nothing.
    index = indices.astype(np.int64)
    index = np.expand_dims(np.where(index < 0, index + depth, index), axis)
    classes = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return [np.where(classes == index, on, off).astype(values.dtype, copy=False)]


TABLE: Mapping[str, HostFn] = {
    "Shape": _shape, "Size": _size, "Reshape": _reshape, "Flatten": _flatten, "Expand": _expand, "Tile": _tile,
    "Slice": _slice, "Pad": _pad, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Split": _split, "Concat": _concat,
    "Transpose": _transpose, "Range": _range, "ConstantOfShape": _constant_of_shape, "CenterCropPad": _center_crop_pad,
    "EyeLike": _eye_like, "Trilu": _trilu, "OneHot": _one_hot,
}  # fmt: skip
