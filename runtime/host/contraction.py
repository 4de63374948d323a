"""Matmuls, convolutions and pooling. Small floats accumulate in float32, integers wrap around in their own width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .common import Attrs, HostError, HostFn, computing, narrow, numpy_dtype, widen
from .reductions import lowest


def _multiply(a: np.ndarray, b: np.ndarray, terms: int) -> np.ndarray:
    """Return `a @ b`. For integers float64 is used where it is exact, since numpy's integer matmul is slow."""
    if a.dtype.kind not in "iub":
        return np.matmul(a, b)
    if _largest(a) * _largest(b) * max(terms, 1) < 2**53:
        return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    return np.matmul(a, b)


def _largest(x: np.ndarray) -> int:
    return max(abs(int(x.max())), abs(int(x.min()))) if x.size else 0


def _operands(a: np.ndarray, b: np.ndarray, attrs: Attrs) -> tuple[np.ndarray, np.ndarray, np.dtype]:
    """Return both operands in the dtype to compute in, and the result's dtype."""
    result = numpy_dtype(attrs["out_dtype"]) if attrs.get("out_dtype") else a.dtype
    if result.kind in "iu":
        return a.astype(result, copy=False), b.astype(result, copy=False), result
    wide_a, wide_b = widen(a), widen(b)
    common = np.result_type(wide_a, wide_b, widen(np.zeros((), result)))
    return wide_a.astype(common, copy=False), wide_b.astype(common, copy=False), result


def _matmul(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    a, b, dtype = _operands(inputs[0], inputs[1], attrs)
    if attrs.get("trans_a"):
        a = np.swapaxes(a, -1, -2)
    if attrs.get("trans_b"):
        b = np.swapaxes(b, -1, -2)
    try:
        with computing():
            return [narrow(_multiply(a, b, a.shape[-1]), dtype)]
    except ValueError as error:
        raise HostError(f"matrices of shapes {a.shape} and {b.shape} cannot be multiplied") from error


# --- convolutions ----------------------------------------------------------------------------------------------------


def channels_first(x: np.ndarray, layout: str) -> np.ndarray:
    return x if layout == "NCX" else np.moveaxis(x, -1, 1)


def taps(offset: Sequence[int], dilations: Sequence[int], counts: Sequence[int], strides: Sequence[int]) -> Any:
    """Return the index, over the last axes, of the input elements that kernel element `offset` meets as the window
    takes `counts` positions.
    """
    spans = zip(offset, dilations, counts, strides, strict=True)
    return (..., *[slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, n, s in spans])


def channels_last(x: np.ndarray, layout: str) -> np.ndarray:
    return x if layout == "NCX" else np.ascontiguousarray(np.moveaxis(x, 1, -1))


def pad_spatial(x: np.ndarray, before: Sequence[int], after: Sequence[int], fill: Any) -> np.ndarray:
    """Return `x` [N, C, spatial..] with `fill` around its spatial axes."""
    if not any(before) and not any(after):
        return x
    widths = [(0, 0), (0, 0), *zip(before, after, strict=True)]
    return np.pad(x, widths, constant_values=fill)


def _check_groups(x: np.ndarray, w: np.ndarray, channels: int, groups: int, outputs: int) -> None:
    if x.ndim != w.ndim or x.shape[1] != channels or outputs % groups or x.shape[1] % groups:
        raise HostError(f"an input of shape {x.shape} does not fit a weight of shape {w.shape} in {groups} groups")


def _conv(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, w, dtype = _operands(inputs[0], inputs[1], attrs)
    layout, groups = attrs["layout"], attrs["groups"]
    x = channels_first(x, layout)
    if layout == "NXC":
        w = np.moveaxis(w, (-1, -2), (0, 1))
    outputs, per_group, *kernel = w.shape
    _check_groups(x, w, per_group * groups, groups, outputs)
    x = pad_spatial(x, attrs["before"], attrs["after"], 0)
    windows = _windows(x, kernel, attrs["strides"], attrs["dilations"])
    spatial = windows.shape[2 : 2 + len(kernel)]
    terms, places = per_group * prod(kernel), prod(spatial)
    weight = w.reshape(groups, outputs // groups, terms)
    result = np.empty((len(x), groups, outputs // groups, places), np.int64 if x.dtype.kind in "iu" else x.dtype)
    order = (0, *range(1 + len(kernel), 1 + 2 * len(kernel)), *range(1, 1 + len(kernel)))
    with computing():
        for i, sample in enumerate(windows):  # one sample at a time bounds the memory that the columns take
            columns = sample.transpose(order).reshape(groups, terms, places)
            result[i] = _multiply(weight, columns, terms)
        return [channels_last(narrow(result.reshape(len(x), outputs, *spatial), dtype), layout)]


def _windows(x: np.ndarray, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> np.ndarray:
    """Return a view [N, C, positions.., kernel..] of the windows of padded `x`."""
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(span > size for span, size in zip(spans, x.shape[2:], strict=True)):
        raise HostError(f"a window that spans {tuple(spans)} does not fit a padded input of shape {x.shape}")
    axes = tuple(range(2, x.ndim))
    view = sliding_window_view(x, spans, axis=axes)
    every: Any = (..., *[slice(None, None, step) for step in (*strides, *dilations)])
    return view[every]


def _conv_transpose(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, w, dtype = _operands(inputs[0], inputs[1], attrs)
    layout, groups = attrs["layout"], attrs["groups"]
    strides, dilations = attrs["strides"], attrs["dilations"]
    x = channels_first(x, layout)
    if layout == "NXC":
        w = np.moveaxis(w, (-2, -1), (0, 1))
    channels, per_group, *kernel = w.shape
    _check_groups(x, w, channels, groups, per_group * groups)
    batch, spatial = len(x), x.shape[2:]
    full = [
        (n - 1) * s + (k - 1) * d + 1 + o
        for n, s, k, d, o in zip(spatial, strides, kernel, dilations, attrs["output_padding"], strict=True)
    ]
    columns = x.reshape(batch, groups, channels // groups, prod(spatial))
    weight = w.reshape(groups, channels // groups, per_group, prod(kernel))
    result = np.zeros((batch, groups * per_group, *[max(n, 0) for n in full]), x.dtype)
    with computing():
        for number, offset in enumerate(product(*[range(k) for k in kernel])):
            part = _multiply(weight[..., number].transpose(0, 2, 1), columns, channels // groups)
            part = part.reshape(batch, groups * per_group, *spatial).astype(x.dtype, copy=False)
            if part.size:
                result[taps(offset, dilations, spatial, strides)] += part
    bounds = zip(attrs["before"], attrs["after"], full, strict=True)
    inner: Any = (..., *[slice(b, n - a) for b, a, n in bounds])
    return [channels_last(np.ascontiguousarray(narrow(result[inner], dtype)), layout)]


def _window_reduce(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x = channels_first(widen(inputs[0]), attrs["layout"])
    kernel, strides, dilations = attrs["kernel"], attrs["strides"], attrs["dilations"]
    identity, combine = (0, np.add) if attrs["reducer"] == "sum" else (lowest(x.dtype), np.maximum)
    x = pad_spatial(x, attrs["before"], attrs["after"], identity)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [(n - span) // s + 1 for n, span, s in zip(x.shape[2:], spans, strides, strict=True)]
    if any(size < 1 for size in sizes):
        raise HostError(f"a window that spans {tuple(spans)} does not fit a padded input of shape {x.shape}")
    result = np.full((*x.shape[:2], *sizes), identity, x.dtype)
    with computing():
        for offset in product(*[range(k) for k in kernel]):
            combine(result, x[taps(offset, dilations, sizes, strides)], out=result)
    return [channels_last(narrow(result, inputs[0].dtype), attrs["layout"])]


TABLE: Mapping[str, HostFn] = {
    "matmul": _matmul, "conv": _conv, "conv_transpose": _conv_transpose, "window_reduce": _window_reduce,
}  # fmt: skip
