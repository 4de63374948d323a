"""Matmuls of 8-bit integers with float results, and of 16-bit ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tilestitch.compiler.ir import Value

from ...builder import Builder, dtype_of
from ...context import Context, Converted
from ..common import widened
from ..matmul import matmul_any_rank
from ..quantization import dynamic_quantize, integer_matmul, is_zero, saturating_cast
from .operator import Operator

Quantised: TypeAlias = "tuple[Value, Value, Value | None]"
"""An 8-bit integer operand, its scale and its zero point, if it has one."""


def scaled_integer_matmul(ctx: Builder, a: Quantised, b: Quantised) -> Value:
    """Return (a - zero) @ (b - zero) in int32, times both scales; those of a are per row, those of b per column."""
    (x, x_scale, x_zero), (w, w_scale, w_zero) = a, b
    zeros = [None if zero is None else scalar(ctx, zero) for zero in (x_zero, w_zero)]
    total = integer_matmul(ctx, x, w, zeros[0], zeros[1])
    return ctx.mul(ctx.cast(total, "float32"), ctx.mul(scalar(ctx, x_scale), scalar(ctx, w_scale)))


def scalar(b: Builder, parameter: Value) -> Value:
    """Return a parameter of one element as a scalar, so that it does not add axes."""
    return b.reshape(parameter, ()) if b.shape(parameter) == (1,) else parameter


def matmul_integer_to_float(ctx: Context) -> Value:
    a, b, a_scale, b_scale = (ctx.input(i) for i in range(4))
    dtype = dtype_of(a_scale)
    y = scaled_integer_matmul(
        ctx, (a, widened(ctx, a_scale), ctx.optional(4)), (b, widened(ctx, b_scale), ctx.optional(5))
    )
    bias = ctx.optional(6)
    return ctx.cast(y if bias is None else ctx.add(y, widened(ctx, bias)), dtype)


def dynamic_quantize_matmul(ctx: Context) -> Value:
    """Convert DynamicQuantizeMatMul: the first operand is quantised to uint8 by its range, and the result is
    float32.
    """
    quantised, scale, zero = dynamic_quantize(ctx, ctx.input(0))
    y = scaled_integer_matmul(ctx, (quantised, scale, zero), (ctx.input(1), ctx.input(2), ctx.optional(3)))
    bias = ctx.optional(4)
    return y if bias is None else ctx.add(y, bias)


def quantised_gemm(ctx: Context) -> Value:
    """Convert QGemm: the result is float32 without a scale of its own, else integers."""
    a, a_scale, a_zero, b, b_scale, b_zero = (ctx.input(i) for i in range(6))
    bias, y_scale, y_zero = (ctx.optional(i) for i in (6, 7, 8))
    a = ctx.swap_axes(a, 0, 1) if ctx.attr("transA", 0) else a
    b = ctx.swap_axes(b, 0, 1) if ctx.attr("transB", 0) else b
    total = integer_matmul(ctx, a, b, scalar(ctx, a_zero), scalar(ctx, b_zero))
    total = total if bias is None else ctx.add(total, bias)
    factor = ctx.mul(scalar(ctx, a_scale), scalar(ctx, b_scale))
    factor = ctx.mul(factor, ctx.attr("alpha", 1.0))
    if y_scale is None:
        return ctx.mul(ctx.cast(total, "float32"), factor)
    if y_zero is None:
        raise ctx.fail("y_scale is given without y_zero_point, which says the result's dtype; correct the model")
    scaled = ctx.mul(ctx.cast(total, "float32"), ctx.div(factor, scalar(ctx, y_scale)))
    return saturating_cast(ctx, scaled, None if is_zero(y_zero) else scalar(ctx, y_zero), dtype_of(y_zero))


def matmul_integer16(ctx: Context) -> Value:
    operands = [ctx.input(i) for i in (0, 1)]
    wide = "int32" if "int16" in [dtype_of(x) for x in operands] else "uint32"
    a, b = (ctx.cast(x, wide) for x in operands)
    return matmul_any_rank(ctx, a, b)


def mul_integer(ctx: Context) -> Value:
    a, b = (_without_zero_point(ctx, 2 * i) for i in (0, 1))
    return ctx.mul(a, b)


def _without_zero_point(ctx: Context, index: int) -> Value:
    """Return the operand minus the zero point that follows it, as int32."""
    x, zero = ctx.cast(ctx.input(index), "int32"), ctx.optional(index + 1)
    return x if zero is None else ctx.sub(x, ctx.cast(zero, "int32"))


def reduce_sum_integer(ctx: Context) -> Converted:
    x = ctx.input(0)
    wide = ctx.cast(x, "uint32" if dtype_of(x) == "uint8" else "int32")
    axes = [ctx.axis(x, axis) for axis in ctx.attr("axes")] or range(ctx.rank(x))
    return ctx.reduce("sum", wide, axes, bool(ctx.attr("keepdims")))


OPERATORS: Mapping[str, Operator] = {
    "MatMulIntegerToFloat": Operator(
        matmul_integer_to_float, "A B a_scale b_scale a_zero_point? b_zero_point? bias?"
    ),
    "DynamicQuantizeMatMul": Operator(dynamic_quantize_matmul, "A B b_scale b_zero_point? bias?"),
    "QGemm": Operator(
        quantised_gemm, "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?",
        "alpha transA transB",
    ),
    "MatMulInteger16": Operator(matmul_integer16, "A B"),
    "MulInteger": Operator(mul_integer, "A A_zero_point? B B_zero_point?", outputs="C"),
    "ReduceSumInteger": Operator(reduce_sum_integer, "data", "axes keepdims", "reduced"),
}  # fmt: skip
