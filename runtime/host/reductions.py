"""Reductions over whole axes, cumulative sums and products, and arg-max and arg-min."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, computing, narrow, widen


def lowest(dtype: np.dtype) -> Any:
    """Return the identity of max in a dtype that numpy computes in: -inf, False, or the least integer."""
    if dtype.kind == "f":
        return -np.inf
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    """Return the identity of min: inf, True, or the greatest integer."""
    if dtype.kind == "f":
        return np.inf
    return True if dtype.kind == "b" else np.iinfo(dtype).max


def sum_of(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


def _prod(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


def _max(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.max(x, axis=axes, keepdims=keepdims, initial=lowest(x.dtype))


def _min(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.min(x, axis=axes, keepdims=keepdims, initial=highest(x.dtype))


def _and(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
    fold: Any = np.bitwise_and.reduce
    return fold(x, axis=axes, keepdims=keepdims)


REDUCERS: Mapping[str, Callable[[np.ndarray, tuple[int, ...], bool], Any]] = {
    "sum": sum_of, "prod": _prod, "max": _max, "min": _min, "and": _and,
}  # fmt: skip


def reduce_array(reducer: str, x: np.ndarray, axes: Sequence[int], keepdims: bool) -> np.ndarray:
    """Return `x` reduced over `axes` (none: a copy). Small floats accumulate in float32, integers wrap around."""
    with computing():
        return narrow(REDUCERS[reducer](widen(x), tuple(axes), bool(keepdims)), x.dtype)


def _reduction(reducer: str) -> HostFn:
    def run(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
        return [reduce_array(reducer, inputs[0], attrs["axes"], attrs["keepdims"])]

    return run


def _arg_extreme(function: Callable[..., Any]) -> HostFn:
    def run(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
        x, axis = widen(inputs[0]), attrs["axis"]
        size = x.shape[axis]
        if size == 0:
            raise HostError(f"axis {axis} of a tensor of shape {x.shape} is empty and has no extreme element")
        if attrs["select_last"]:
            position = size - 1 - function(np.flip(x, axis), axis=axis, keepdims=bool(attrs["keepdims"]))
        else:
            position = function(x, axis=axis, keepdims=bool(attrs["keepdims"]))
        return [narrow(position, np.dtype(np.int64))]

    return run


def cumulative_array(x: np.ndarray, axis: int, reducer: str, exclusive: bool, reverse: bool) -> np.ndarray:
    """Return the cumulative sum or product along `axis`; `exclusive` leaves out the element itself, `reverse` runs from
    the end.
    """
    wide = widen(x)
    if reverse:
        wide = np.flip(wide, axis)
    with computing():
        function = np.cumsum if reducer == "sum" else np.cumprod
        result = function(wide, axis=axis, dtype=wide.dtype)
    if exclusive and x.shape[axis] > 0:
        first = np.full_like(np.take(result, [0], axis), 0 if reducer == "sum" else 1)
        rest = np.take(result, np.arange(x.shape[axis] - 1), axis)
        result = np.concatenate([first, rest], axis)
    if reverse:
        result = np.flip(result, axis)
    return np.ascontiguousarray(narrow(result, x.dtype))


def _cumulative(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [cumulative_array(inputs[0], attrs["axis"], attrs["reducer"], attrs["exclusive"], attrs["reverse"])]


TABLE: Mapping[str, HostFn] = {
    **{f"reduce_{reducer}": _reduction(reducer) for reducer in REDUCERS},
    "arg_max": _arg_extreme(np.argmax), "arg_min": _arg_extreme(np.argmin), "cumulative": _cumulative,
}  # fmt: skip
