"""Element-wise operators, pools and convolutions from 8-bit integers to 8-bit integers.

Results are computed in float32 of dequantised operands and rounded once, so that they fuse with what follows.
"""

from collections.abc import Callable, Mapping, Sequence

from tilestitch.compiler.ir import Value

from ...builder import dtype_of
from ...context import Context
from ..activations import leaky_relu
from ..pooling import average_pool
from ..quantization import convert_dequantize, convert_quantize, is_zero, qlinear_conv, saturating_cast
from ..reductions import softmax
from .convolution import WINDOW, channels_first, channels_last
from .integer_matmul import scalar
from .operator import Operator


def dequantised(ctx: Context, index: int) -> Value:
    """Return the operand at `index`, with the scale and the zero point that follow it, as float32."""
    return dequantised_by(ctx, ctx.input(index), ctx.input(index + 1), ctx.optional(index + 2))


def dequantised_by(ctx: Context, x: Value, scale: Value, zero: Value | None) -> Value:
    wide = ctx.cast(x, "float32")
    if not is_zero(zero) and zero is not None:
        wide = ctx.sub(wide, ctx.cast(scalar(ctx, zero), "float32"))
    return ctx.mul(wide, scalar(ctx, scale))


def quantised(ctx: Context, y: Value, index: int, dtype: str) -> Value:
    """Return y quantised to integer `dtype` by the scale at `index` and the zero point after it."""
    zero = ctx.optional(index + 1)
    offset = None if is_zero(zero) or zero is None else scalar(ctx, zero)
    return saturating_cast(ctx, ctx.div(y, scalar(ctx, ctx.input(index))), offset, dtype)


def unary(compute: Callable[[Context, Value], Value]) -> Callable[[Context], Value]:
    """Return a converter of `X scale zero scale zero` that computes with the dequantised operand."""

    def convert(ctx: Context) -> Value:
        return quantised(ctx, compute(ctx, dequantised(ctx, 0)), 3, dtype_of(ctx.input(0)))

    return convert


def binary(op: str) -> Callable[[Context], Value]:
    def convert(ctx: Context) -> Value:
        y = ctx.emit(op, dequantised(ctx, 0), dequantised(ctx, 3))
        return quantised(ctx, y, 6, dtype_of(ctx.input(0)))

    return convert


def where(ctx: Context) -> Value:
    y = ctx.select(ctx.input(0), dequantised(ctx, 1), dequantised(ctx, 4))
    return quantised(ctx, y, 7, dtype_of(ctx.input(1)))


def concat(ctx: Context) -> Value:
    """Convert QLinearConcat; operands that have the result's scale and zero point already stay unchanged."""
    count = len(ctx.inputs) - 2
    if count <= 0 or count % 3:
        raise ctx.fail(f"{count} operands after the zero point are no tensors, each with scale and zero point")
    axis = ctx.axis(ctx.input(2), ctx.attr("axis"))
    dtype = dtype_of(ctx.input(1))
    return ctx.concat([quantised(ctx, dequantised(ctx, i), 0, dtype) for i in range(2, len(ctx.inputs), 3)], axis)


def _leaky_relu(ctx: Context, x: Value) -> Value:
    return leaky_relu(ctx, x, ctx.attr("alpha", 0.01))


def _sigmoid(ctx: Context, x: Value) -> Value:
    return ctx.sigmoid(x)


def _softmax(ctx: Context, x: Value) -> Value:
    """Return the softmax, before operator set 13 over all axes from `axis` on; the attribute `opset` selects the
    definition.
    """
    axis = ctx.axis(x, ctx.attr("axis", -1))
    return softmax(ctx, x, (axis,) if ctx.attr("opset") >= 13 else range(axis, ctx.rank(x)))


def _pooled(pool: Callable[[Context, Value], Value]) -> Callable[[Context, Value], Value]:
    """Return `pool`, which needs channels first, adapted to images that may have them last."""

    def compute(ctx: Context, x: Value) -> Value:
        if not ctx.attr("channels_last", 0):
            return pool(ctx, x)
        return channels_last(ctx, pool(ctx, channels_first(ctx, x)))

    return compute


def _global_average(ctx: Context, x: Value) -> Value:
    return ctx.mean(x, range(2, ctx.rank(x)))


def _reduce_mean(ctx: Context, x: Value) -> Value:
    axes: Sequence[int] = [ctx.axis(x, axis) for axis in ctx.attr("axes", ())] or range(ctx.rank(x))
    return ctx.mean(x, axes, bool(ctx.attr("keepdims", 1)))


def conv(ctx: Context) -> Value:
    x = ctx.input(0)
    if not ctx.attr("channels_last", 0):
        return qlinear_conv(ctx, x)
    return channels_last(ctx, qlinear_conv(ctx, channels_first(ctx, x)))


PAIR = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"
POOL = "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides"

OPERATORS: Mapping[str, Operator] = {
    "QuantizeLinear": Operator(convert_quantize, "x y_scale y_zero_point?", "axis", "y"),
    "DequantizeLinear": Operator(convert_dequantize, "x x_scale x_zero_point?", "axis", "y"),
    "QLinearAdd": Operator(binary("add"), PAIR, outputs="C"),
    "QLinearMul": Operator(binary("mul"), PAIR, outputs="C"),
    "QLinearWhere": Operator(
        where, "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point", outputs="Z"
    ),
    "QLinearConcat": Operator(concat, "Y_scale Y_zero_point inputs*", "axis"),
    "QLinearSigmoid": Operator(unary(_sigmoid), "X X_scale X_zero_point? Y_scale Y_zero_point?"),
    "QLinearLeakyRelu": Operator(unary(_leaky_relu), "X X_scale X_zero_point? Y_scale Y_zero_point?", "alpha"),
    "QLinearSoftmax": Operator(unary(_softmax), "X X_scale x_zero_point? y_scale y_zero_point", "axis opset"),
    "QLinearReduceMean": Operator(
        unary(_reduce_mean), "data data_scale data_zero_point? reduced_scale reduced_zero_point?", "axes keepdims",
        "reduced",
    ),
    "QLinearAveragePool": Operator(
        unary(_pooled(average_pool)), "X x_scale x_zero_point? y_scale y_zero_point?", POOL
    ),
    "QLinearGlobalAveragePool": Operator(
        unary(_pooled(_global_average)), "X x_scale x_zero_point y_scale y_zero_point", "channels_last"
    ),
    "QLinearConv": Operator(
        conv, "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?", f"{WINDOW} channels_last", "y"
    ),
}  # fmt: skip
