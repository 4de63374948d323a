"""Helpers that several operator families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilestitch.compiler.ir import Value

from ..builder import dtype_of, normalize_axis
from ..context import Context, Converted

HALVES = ("float16", "bfloat16")


def unary(op: str) -> Callable[[Context], Value]:
    """Return a converter to one primitive of the first operand."""

    def convert(ctx: Context) -> Value:
        return ctx.emit(op, ctx.input(0))

    return convert


def legacy_pair(ctx: Context) -> tuple[Value, Value]:
    """Return two operands; before opset 7 the attributes `broadcast` and `axis` align the second one."""
    a, b = ctx.input(0), ctx.input(1)
    if ctx.opset >= 7 or not ctx.attr("broadcast", 0) or not ctx.has_attr("axis"):
        return a, b
    axis = ctx.axis(a, ctx.attr("axis"))
    trailing = ctx.rank(a) - axis - ctx.rank(b)
    if trailing < 0:
        raise ctx.fail(f"operand 1 ({b.type}) does not fit operand 0 ({a.type}) from axis {axis} on")
    return a, ctx.reshape(b, (*ctx.shape(b), *(1,) * trailing))


def binary(op: str, *, swapped: bool = False) -> Callable[[Context], Value]:
    """Return a converter to one primitive of two operands; `swapped` exchanges them."""

    def convert(ctx: Context) -> Value:
        a, b = legacy_pair(ctx)
        return ctx.emit(op, b, a) if swapped else ctx.emit(op, a, b)

    return convert


def axes_of(ctx: Context, since: int, rank: int) -> tuple[int, ...] | None:
    """Return the axes from the attribute `axes`, or since opset `since` from the second operand; normalised, None if
    not given.
    """
    if ctx.opset < since:
        axes = ctx.attr("axes", None)
    else:
        axes = ctx.optional_ints(1)
    return None if axes is None else tuple(normalize_axis(a, rank) for a in axes)


def channel_shape(ctx: Context, x: Value, value: Value) -> Value:
    """Return a per-channel vector shaped so that it broadcasts against x[N, C, ...]."""
    (count,) = ctx.shape(value)
    return ctx.reshape(value, (count, *(1,) * (ctx.rank(x) - 2)))


def widened(ctx: Context, x: Value, dtype: str = "float32") -> Value:
    """Return half floats as `dtype`, other values as they are."""
    return ctx.cast(x, dtype) if dtype_of(x) in HALVES else x


def outputs_named(ctx: Context, values: Sequence[Value | None]) -> Converted:
    """Return as many outputs as the node names."""
    return list(values[: ctx.num_outputs])
