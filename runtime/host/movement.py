"""Views and data movement: reshape, transpose, broadcast, slice, concat, pad, iota and the gathers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, check_indices, numpy_dtype

ALIASING = frozenset({"reshape", "transpose", "broadcast_to", "slice"})
"""Operators of this module whose result may share memory with their operand."""


def reshape_array(x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return `x` with another shape, one entry of which may be -1. Raises `HostError` if the elements do not fit."""
    try:
        return x.reshape(tuple(shape))
    except ValueError as error:
        raise HostError(f"cannot reshape a tensor of shape {x.shape} to {tuple(shape)}") from error


def _reshape(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [reshape_array(inputs[0], attrs["shape"])]


def _transpose(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [inputs[0].transpose(tuple(attrs["perm"]))]


def broadcast_array(x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return a read-only view of `x` broadcast to `shape`. Raises `HostError` if it does not broadcast."""
    try:
        return np.broadcast_to(x, tuple(shape))
    except ValueError as error:
        raise HostError(f"a tensor of shape {x.shape} does not broadcast to {tuple(shape)}") from error


def _broadcast_to(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [broadcast_array(inputs[0], attrs["shape"])]


def _with_index(attrs: Attrs) -> Attrs:
    """Return the attributes of a slice with what numpy takes."""
    entries = zip(attrs["starts"], attrs["steps"], attrs["sizes"], strict=True)
    return {**attrs, "index": tuple(_slice_of(*entry) for entry in entries), "shape": tuple(attrs["sizes"])}


def _slice(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    if "index" not in attrs:
        attrs = _with_index(attrs)
    result = x[attrs["index"]]
    if result.shape != attrs["shape"]:
        raise HostError(
            f"a slice of sizes {tuple(attrs['sizes'])} from {tuple(attrs['starts'])} leaves a tensor of shape {x.shape}"
        )
    return [result]


def _slice_of(start: int, step: int, size: int) -> slice:
    if size == 0:
        return slice(0, 0)
    stop = start + step * size
    return slice(start, stop if stop >= 0 else None, step)


def _concat(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    try:
        return [np.concatenate(inputs, axis=attrs["axis"])]
    except ValueError as error:
        shapes = ", ".join(str(x.shape) for x in inputs)
        raise HostError(f"tensors of shapes {shapes} do not join along axis {attrs['axis']}") from error


def pad_array(x: np.ndarray, before: Sequence[int], after: Sequence[int], mode: str, value: Any = None) -> np.ndarray:
    """Return `x` with `before` and `after` elements added per dimension (all >= 0); `value` (zero) is for mode
    constant.
    """
    widths = list(zip(before, after, strict=True))
    if mode == "constant":
        shape = tuple(b + d + a for d, (b, a) in zip(x.shape, widths, strict=True))
        fill = ("" if x.dtype.kind == "O" else 0) if value is None else np.asarray(value).reshape(-1)[0]
        result = np.full(shape, fill, x.dtype)
        result[tuple(slice(b, b + d) for d, (b, _) in zip(x.shape, widths, strict=True))] = x
        return result
    if any(d == 0 and b + a > 0 for d, (b, a) in zip(x.shape, widths, strict=True)):
        raise HostError(f"mode {mode} cannot pad an empty dimension of a tensor of shape {x.shape}")
    result = x
    for axis, (b, a) in enumerate(widths):
        if b or a:
            result = np.take(result, _source_index(x.shape[axis], b, a, mode), axis=axis)
    return np.array(result) if result is x else result


def _source_index(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Return, for each position along a padded axis, its position in the unpadded one."""
    position = np.arange(-before, size + after)
    if mode == "edge":
        return np.clip(position, 0, size - 1)
    if mode == "wrap":
        return position % size
    if mode != "reflect":
        raise HostError(f"unknown padding mode {mode!r}")
    period = max(2 * (size - 1), 1)
    position = position % period
    return np.where(position < size, position, period - position)


def _pad(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    value = inputs[1] if len(inputs) > 1 else None
    return [pad_array(inputs[0], attrs["before"], attrs["after"], attrs["mode"], value)]


def _iota(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    shape, axis = tuple(attrs["shape"]), attrs["axis"]
    line = np.arange(shape[axis]).astype(numpy_dtype(attrs["dtype"]))
    return [np.array(np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape))]


def _sizes(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [np.array(attrs["values"], numpy_dtype(attrs["dtype"])).reshape(tuple(attrs["shape"]))]


def _gather(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, indices = inputs
    axis = attrs["axis"]
    picked = np.take(x, check_indices(indices, x.shape[axis], axis), axis=axis)
    return [np.asarray(picked, x.dtype)]  # for one element numpy gives no array, and for a text no object array


def _gather_elements(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, indices = inputs
    axis = attrs["axis"]
    positions = check_indices(indices, x.shape[axis], axis)
    # Along the other axes, indices may be shorter than x.
    window = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(indices.shape))
    try:
        return [np.take_along_axis(x[window], positions, axis)]
    except (ValueError, IndexError) as error:
        raise HostError(
            f"indices of shape {indices.shape} do not fit a tensor of shape {x.shape}, axis {axis}"
        ) from error


def _gather_nd(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, indices = inputs
    batch, depth = attrs["batch_dims"], indices.shape[-1]
    if x.shape[:batch] != indices.shape[:batch]:
        raise HostError(f"the first {batch} dimensions of {x.shape} and of the indices {indices.shape} differ")
    if batch + depth > x.ndim:
        raise HostError(f"indices of {depth} coordinates do not fit a tensor of shape {x.shape}")
    count = prod(x.shape[:batch])
    flat = (
        indices.reshape(count, -1, depth)
        if indices.size
        else indices.reshape(count, prod(indices.shape[batch:-1]), depth)
    )
    coordinates = [check_indices(flat[..., i], x.shape[batch + i], batch + i) for i in range(depth)]
    rows = np.arange(count)[:, None]
    where = (np.broadcast_to(rows, flat.shape[:2]), *coordinates)
    picked = x.reshape(count, *x.shape[batch:])[where]
    return [picked.reshape(indices.shape[:-1] + x.shape[batch + depth :])]


TABLE: Mapping[str, HostFn] = {
    "reshape": _reshape, "transpose": _transpose, "broadcast_to": _broadcast_to, "slice": _slice,
    "concat": _concat, "pad": _pad, "iota": _iota, "sizes": _sizes,
    "gather": _gather, "gather_elements": _gather_elements, "gather_nd": _gather_nd,
}  # fmt: skip

PREPARE: Mapping[str, Callable[[Attrs], Attrs]] = {"slice": _with_index}
"""By operator, the function that computes once, for all runs, what depends on its attributes alone."""
