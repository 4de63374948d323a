"""Convolutions with a residual and an activation, and those with channels-last images."""

from collections.abc import Mapping

from tilestitch.compiler.ir import Value

from ...builder import Builder
from ...context import Context
from ..convolution import conv_window, with_bias
from ..pooling import max_pool
from .activations import activation
from .operator import Operator

WINDOW = "auto_pad dilations group kernel_shape pads strides"
FUSED = f"{WINDOW} activation activation_params"


def channels_first(b: Builder, x: Value) -> Value:
    """Return [N, spatial.., C] as [N, C, spatial..]."""
    rank = b.rank(x)
    return b.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(b: Builder, x: Value) -> Value:
    rank = b.rank(x)
    return b.transpose(x, (0, *range(2, rank), 1))


def fused_conv(ctx: Context) -> Value:
    return _convolved(ctx, ctx.input(0), ctx.input(1), ctx.optional(3))


def nhwc_fused_conv(ctx: Context) -> Value:
    """Images and the residual have their channels last; filters are [M, C/group, spatial..]."""
    residual = ctx.optional(3)
    moved = None if residual is None else channels_first(ctx, residual)
    return channels_last(ctx, _convolved(ctx, channels_first(ctx, ctx.input(0)), ctx.input(1), moved))


def nhwc_conv(ctx: Context) -> Value:
    """Filters are [M, spatial.., C/group], as ONNX Runtime's optimiser and kernel have them."""
    x, w = (channels_first(ctx, ctx.input(index)) for index in (0, 1))
    return channels_last(ctx, _convolved(ctx, x, w, None))


def _convolved(ctx: Context, x: Value, w: Value, residual: Value | None) -> Value:
    y = with_bias(ctx, conv_window(ctx, x, w).conv(ctx, x, w), ctx.optional(2))
    y = y if residual is None else ctx.add(y, residual)
    name, parameters = ctx.attr("activation", ""), ctx.attr("activation_params", ())
    if len(parameters) > 2:
        raise ctx.fail(f"activation_params are {parameters}, but no activation takes more than two; correct the model")
    return activation(ctx, name, *parameters)(y) if name else y


def nhwc_max_pool(ctx: Context) -> Value:
    return channels_last(ctx, max_pool(ctx, channels_first(ctx, ctx.input(0))))


OPERATORS: Mapping[str, Operator] = {
    "FusedConv": Operator(fused_conv, "X W B? Z?", FUSED),
    "NhwcFusedConv": Operator(nhwc_fused_conv, "X W B? Z?", FUSED),
    "NhwcConv": Operator(nhwc_conv, "X W B?", WINDOW),
    "NhwcMaxPool": Operator(
        nhwc_max_pool, "x", "auto_pad ceil_mode dilations kernel_shape pads strides", "y"
    ),
}  # fmt: skip
