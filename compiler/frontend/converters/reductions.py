"""Reductions, softmax and its relatives, cumulative sums, arg-reductions and TopK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import is_float

from ..builder import Builder, dtype_of
from ..context import Context, Converted, Versioned
from .common import axes_of

Reduction = Callable[[Builder, Value, tuple[int, ...], bool], Value]


def _reduction(reduction: Reduction, axes_input_since: int = 18) -> Callable[[Context], Value]:
    def convert(ctx: Context) -> Value:
        x = ctx.input(0)
        axes = axes_of(ctx, axes_input_since, ctx.rank(x))
        keepdims = bool(ctx.attr("keepdims", 1))
        if not axes:
            axes = () if ctx.attr("noop_with_empty_axes", 0) else tuple(range(ctx.rank(x)))
        return reduction(ctx, x, axes, keepdims)

    return convert


def _plain(reducer: str) -> Reduction:
    return lambda b, x, axes, keepdims: b.reduce(reducer, x, axes, keepdims)


def reduce_mean(b: Builder, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return b.mean(x, axes, keepdims) if axes else x


def reduce_l1(b: Builder, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return b.reduce("sum", b.emit("abs", x), axes, keepdims)


def reduce_sum_square(b: Builder, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return b.reduce("sum", b.mul(x, x), axes, keepdims)


def reduce_l2(b: Builder, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return _in_floats(b, "sqrt", reduce_sum_square(b, x, axes, keepdims))


def reduce_log_sum(b: Builder, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    return _in_floats(b, "log", b.reduce("sum", x, axes, keepdims))


def _in_floats(b: Builder, op: str, x: Value) -> Value:
    """Return the result for integers computed in float64 and truncated, as ONNX's function bodies do."""
    dtype = dtype_of(x)
    if is_float(dtype):
        return b.emit(op, x)
    return b.cast(b.emit(op, b.cast(x, "float64")), dtype)


def reduce_log_sum_exp(b: Builder, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    dtype = dtype_of(x)
    if not is_float(dtype):
        return b.cast(reduce_log_sum_exp(b, b.cast(x, "float64"), axes, keepdims), dtype)
    peak = b.reduce("max", x, axes)
    # Where everything is -inf (or empty), x - peak would be NaN.
    peak = b.select(b.emit("is_inf", peak, positive=True, negative=True), 0.0, peak)
    total = b.reduce("sum", b.emit("exp", b.sub(x, peak)), axes)
    result = b.add(b.emit("log", total), peak)
    return result if keepdims else b.squeeze(result, axes)


# -- softmax -------------------------------------------------------------------------------------------------------


def softmax(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """Return exp(x) / sum(exp(x)) over `axes`, in the dtype of x."""
    shifted = b.emit("exp", b.sub(x, b.reduce("max", x, axes)))
    return b.div(shifted, b.reduce("sum", shifted, axes))


def log_softmax(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    shifted = b.sub(x, b.reduce("max", x, axes))
    return b.sub(shifted, b.emit("log", b.reduce("sum", b.emit("exp", shifted), axes)))


def _softmax_axes(ctx: Context) -> tuple[int, ...]:
    """Return the axes of a softmax; before opset 13 all from `axis` on, as if flattened to a matrix."""
    x = ctx.input(0)
    if ctx.opset >= 13:
        return (ctx.axis(x, ctx.attr("axis", -1)),)
    return tuple(range(ctx.axis(x, ctx.attr("axis", 1)), ctx.rank(x)))


def _normalised(function: Callable[[Builder, Value, Sequence[int]], Value]) -> Callable[[Context], Value]:
    return lambda ctx: function(ctx, ctx.input(0), _softmax_axes(ctx))


def convert_hardmax(ctx: Context) -> Value:
    x, axes = ctx.input(0), _softmax_axes(ctx)
    if len(axes) == 1:
        return _hardmax(ctx, x, axes[0])
    shape = ctx.shape(x)
    rows = prod(shape[: axes[0]]) if axes else 1
    return ctx.reshape(_hardmax(ctx, ctx.reshape(x, (rows, prod(shape) // max(rows, 1))), 1), shape)


def _hardmax(ctx: Context, x: Value, axis: int) -> Value:
    size, rank = ctx.dim(x, axis), ctx.rank(x)
    if size == 0:
        return x
    place = ctx.emit("arg_max", x, axis=axis, keepdims=True, select_last=False)
    index = ctx.reshape(ctx.iota(size), tuple(size if i == axis else 1 for i in range(rank)))
    return ctx.cast(ctx.equal(index, place), dtype_of(x))


# -- order ---------------------------------------------------------------------------------------------------------


def _arg(op: str) -> Callable[[Context], Value]:
    def convert(ctx: Context) -> Value:
        x = ctx.input(0)
        axis = ctx.axis(x, ctx.attr("axis", 0))
        return ctx.emit(
            op, x, axis=axis, keepdims=bool(ctx.attr("keepdims", 1)), select_last=bool(ctx.attr("select_last_index", 0))
        )

    return convert


def convert_top_k(ctx: Context) -> Converted:
    x = ctx.input(0)
    k = ctx.attr("k") if ctx.opset < 10 else ctx.sizes_of(1)[0]
    axis = ctx.axis(x, ctx.attr("axis", -1))
    return ctx.emit_many("top_k", [x], {"k": k, "axis": axis, "largest": bool(ctx.attr("largest", 1))})


def _cumulative(reducer: str) -> Callable[[Context], Value]:
    def convert(ctx: Context) -> Value:
        x = ctx.input(0)
        axis = ctx.axis(x, int(ctx.constant_of(1).reshape(())))
        exclusive, reverse = bool(ctx.attr("exclusive", 0)), bool(ctx.attr("reverse", 0))
        return ctx.emit("cumulative", x, axis=axis, reducer=reducer, exclusive=exclusive, reverse=reverse)

    return convert


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "ReduceSum": [(1, _reduction(_plain("sum"), axes_input_since=13))],
    "ReduceMax": [(1, _reduction(_plain("max")))],
    "ReduceMin": [(1, _reduction(_plain("min")))],
    "ReduceProd": [(1, _reduction(_plain("prod")))],
    "ReduceMean": [(1, _reduction(reduce_mean))],
    "ReduceL1": [(1, _reduction(reduce_l1))],
    "ReduceL2": [(1, _reduction(reduce_l2))],
    "ReduceSumSquare": [(1, _reduction(reduce_sum_square))],
    "ReduceLogSum": [(1, _reduction(reduce_log_sum))],
    "ReduceLogSumExp": [(1, _reduction(reduce_log_sum_exp))],
    "Softmax": [(1, _normalised(softmax))],
    "LogSoftmax": [(1, _normalised(log_softmax))],
    "Hardmax": [(1, convert_hardmax)],
    "ArgMax": [(1, _arg("arg_max"))],
    "ArgMin": [(1, _arg("arg_min"))],
    "TopK": [(1, convert_top_k)],
    "CumSum": [(11, _cumulative("sum"))],
    "CumProd": [(26, _cumulative("prod"))],
}
