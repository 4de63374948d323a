"""ONNX reductions, cumulative sums, sorts, gathers and scatters whose axes or rank are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import movement, reductions
from .common import (
    Attrs,
    HostError,
    HostFn,
    computing,
    ints,
    narrow,
    normalized_axes,
    normalized_axis,
    optional_operand,
    scalar_int,
    widen,
)
from .reductions import cumulative_array, sum_of
from .scatter import scatter_elements_array, scatter_nd_array
from .selection import top_k_arrays

Axes = tuple[int, ...]


def _mean(x: np.ndarray, axes: Axes, keepdims: bool) -> Any:
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64)) if axes else 1
    total = np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype)
    if x.dtype.kind in "iu":
        return np.trunc(np.true_divide(total, count)) if count else np.zeros_like(total)
    return np.true_divide(total, count)


def _log_sum_exp(x: np.ndarray, axes: Axes, keepdims: bool) -> Any:
    if x.dtype.kind in "iu":
        x = x.astype(np.float64)
    peak = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    peak = np.where(np.isfinite(peak), peak, 0)
    total = np.log(np.sum(np.exp(x - peak), axis=axes, keepdims=True)) + peak
    return total if keepdims else np.squeeze(total, axis=axes)


_REDUCERS: Mapping[str, Callable[[np.ndarray, Axes, bool], Any]] = {
    "ReduceMean": _mean,
    "ReduceL1": lambda x, axes, keepdims: sum_of(np.abs(x), axes, keepdims),
    "ReduceL2": lambda x, axes, keepdims: np.sqrt(sum_of(x * x, axes, keepdims)),
    "ReduceLogSum": lambda x, axes, keepdims: np.log(sum_of(x, axes, keepdims)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": lambda x, axes, keepdims: sum_of(x * x, axes, keepdims),
    **{f"Reduce{name.capitalize()}": function for name, function in reductions.REDUCERS.items()},
}  # fmt: skip


def _reduction(function: Callable[[np.ndarray, Axes, bool], Any]) -> HostFn:
    def run(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
        x, given = inputs[0], optional_operand(inputs, 1)
        axes = () if given is None else normalized_axes(given, x.ndim)
        if not axes and not attrs.get("noop_with_empty_axes", 0):
            axes = tuple(range(x.ndim))
        with computing():
            return [narrow(function(widen(x), axes, bool(attrs.get("keepdims", 1))), x.dtype)]

    return run


def _arg_extreme(name: str) -> HostFn:
    primitive = reductions.TABLE[name]

    def run(inputs: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
        axis = normalized_axis(attrs.get("axis", 0), inputs[0].ndim)
        settled = {"axis": axis, "keepdims": attrs.get("keepdims", 1), "select_last": attrs.get("select_last_index", 0)}
        return primitive(inputs, settled)

    return run


def _cumulative(reducer: str) -> HostFn:
    def run(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
        x, axis = inputs
        where = normalized_axis(scalar_int(axis), x.ndim)
        return [cumulative_array(x, where, reducer, bool(attrs.get("exclusive", 0)), bool(attrs.get("reverse", 0)))]

    return run


def _softmax_parts(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return shifted, np.sum(np.exp(shifted), axis=axis, keepdims=True)


def _softmax(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    with computing():
        shifted, total = _softmax_parts(widen(x), normalized_axis(attrs.get("axis", -1), x.ndim))
        return [narrow(np.exp(shifted) / total, x.dtype)]


def _log_softmax(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    with computing():
        shifted, total = _softmax_parts(widen(x), normalized_axis(attrs.get("axis", -1), x.ndim))
        return [narrow(shifted - np.log(total), x.dtype)]


def _mat_mul(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    a, b = inputs
    try:
        with computing():
            return [narrow(np.matmul(widen(a), widen(b)), a.dtype)]
    except ValueError as error:
        raise HostError(f"tensors of shapes {a.shape} and {b.shape} cannot be multiplied") from error


def _top_k(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, k = inputs
    return list(
        top_k_arrays(x, scalar_int(k), normalized_axis(attrs.get("axis", -1), x.ndim), bool(attrs.get("largest", 1)))
    )


def _gather(name: str, attribute: str = "axis") -> HostFn:
    primitive = movement.TABLE[name]

    def run(inputs: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
        given = attrs.get(attribute, 0)
        return primitive(inputs, {attribute: normalized_axis(given, inputs[0].ndim) if attribute == "axis" else given})

    return run


def _scatter_elements(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, indices, updates = inputs
    axis = normalized_axis(attrs.get("axis", 0), x.ndim)
    return [scatter_elements_array(x, indices, updates, axis, attrs.get("reduction", "none"))]


def _scatter_nd(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, indices, updates = inputs
    return [scatter_nd_array(x, indices, updates, attrs.get("reduction", "none"))]


def _reverse_sequence(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, lengths = inputs
    time, batch = attrs.get("time_axis", 0), attrs.get("batch_axis", 1)
    result = np.array(np.moveaxis(x, (batch, time), (0, 1)))
    for row, length in zip(result, ints(lengths), strict=True):
        row[:length] = row[:length][::-1].copy()
    return [np.ascontiguousarray(np.moveaxis(result, (0, 1), (batch, time)))]


TABLE: Mapping[str, HostFn] = {
    **{name: _reduction(function) for name, function in _REDUCERS.items()},
    "ArgMax": _arg_extreme("arg_max"), "ArgMin": _arg_extreme("arg_min"),
    "CumSum": _cumulative("sum"), "CumProd": _cumulative("prod"),
    "Softmax": _softmax, "LogSoftmax": _log_softmax, "MatMul": _mat_mul, "TopK": _top_k,
    "Gather": _gather("gather"), "GatherElements": _gather("gather_elements"),
    "GatherND": _gather("gather_nd", "batch_dims"),
    "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd, "ReverseSequence": _reverse_sequence,
}  # fmt: skip
