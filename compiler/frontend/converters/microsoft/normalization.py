"""Layer, RMS and group normalisation of a sum with a residual and a bias, followed by an activation."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilestitch.compiler.ir import Value

from ...builder import Builder, dtype_of
from ...context import Context, Converted
from ..activations import swish
from ..common import outputs_named, widened
from ..normalization import centred, inverse_deviation
from .convolution import channels_first, channels_last
from .operator import Operator

NORM_OUTPUTS = "output mean? inv_std_var? input_skip_bias_sum?"


def scaled(b: Builder, normal: Value, scale: Value, shift: Value | None) -> Value:
    """Return normal * scale + shift, in the dtype of `normal`."""
    y = b.mul(normal, b.cast(scale, dtype_of(normal)))
    return y if shift is None else b.add(y, b.cast(shift, dtype_of(normal)))


def skip_layer_norm(ctx: Context) -> Converted:
    gamma, beta = ctx.input(2), ctx.optional(3)
    total = _total(ctx, ctx.optional(4))
    mean, deviation, variance = centred(ctx, total, (ctx.rank(total) - 1,))
    inverse = inverse_deviation(ctx, variance, ctx.attr("epsilon", 1e-12))
    y = scaled(ctx, ctx.mul(deviation, inverse), gamma, beta)
    return _outputs(ctx, y, mean, inverse, total)


def skip_rms_norm(ctx: Context) -> Converted:
    total = _total(ctx, ctx.optional(3))
    inverse = _inverse_rms(ctx, total)
    return _outputs(ctx, scaled(ctx, ctx.mul(total, inverse), ctx.input(2), None), None, inverse, total)


def _inverse_rms(ctx: Context, x: Value) -> Value:
    square = ctx.mean(ctx.mul(x, x), (ctx.rank(x) - 1,))
    return inverse_deviation(ctx, square, ctx.attr("epsilon", 1e-12))


def _total(ctx: Context, bias: Value | None) -> Value:
    """Return the sum of operand, residual (which may lack the batch) and bias in float32 or wider."""
    x, skip = widened(ctx, ctx.input(0)), widened(ctx, ctx.input(1))
    if ctx.rank(skip) > ctx.rank(x):
        raise ctx.fail(f"skip {skip.type} has more axes than input {x.type}; correct the model")
    total = ctx.add(x, skip)
    return total if bias is None else ctx.add(total, widened(ctx, bias))


def _outputs(ctx: Context, y: Value, mean: Value | None, inverse: Value, total: Value) -> Converted:
    dtype = dtype_of(ctx.input(0))
    statistics = [None if v is None else ctx.cast(v, "float32") for v in (mean, inverse)]
    return outputs_named(ctx, [ctx.cast(y, dtype), *statistics, ctx.cast(total, dtype)])


# -- group normalisation -------------------------------------------------------------------------------------------


def group_norm(ctx: Context) -> Value:
    return _grouped(ctx, ctx.input(0))


def skip_group_norm(ctx: Context) -> Converted:
    x, skip, bias = ctx.input(0), ctx.input(3), ctx.optional(4)
    if ctx.rank(skip) == 2:
        skip = ctx.expand_dims(skip, (1, 2)) if _has_channels_last(ctx) else ctx.expand_dims(skip, (2, 3))
    total = ctx.add(widened(ctx, x), widened(ctx, skip))
    if bias is not None:
        across = bias if _has_channels_last(ctx) else ctx.expand_dims(bias, tuple(range(1, ctx.rank(x) - 1)))
        total = ctx.add(total, widened(ctx, across))
    return outputs_named(ctx, [_grouped(ctx, total), ctx.cast(total, dtype_of(x))])


def _has_channels_last(ctx: Context) -> bool:
    return bool(ctx.attr("channels_last", 1))


def _grouped(ctx: Context, x: Value) -> Value:
    """Normalise over groups of channels, with a scale and a shift per channel, and SiLU if requested."""
    moved = channels_first(ctx, x) if _has_channels_last(ctx) else x
    shape, groups = ctx.shape(moved), ctx.attr("groups")
    if groups <= 0 or shape[1] % groups:
        raise ctx.fail(f"{shape[1]} channels cannot be divided into groups={groups}; correct the model")
    wide = ctx.reshape(widened(ctx, moved), (shape[0], groups, shape[1] // groups, prod(shape[2:])))
    _, deviation, variance = centred(ctx, wide, (2, 3))
    normal = ctx.mul(deviation, inverse_deviation(ctx, variance, ctx.attr("epsilon", 1e-5)))
    gamma, beta = (ctx.reshape(ctx.input(i), (groups, shape[1] // groups, 1)) for i in (1, 2))
    y = scaled(ctx, normal, gamma, beta)
    activation = ctx.attr("activation")
    if activation not in (0, 1):
        raise ctx.fail(f"activation is {activation}, neither 0 (none) nor 1 (SiLU); correct the model")
    y = ctx.reshape(swish(ctx, y, 1.0) if activation else y, shape)
    return ctx.cast(channels_last(ctx, y) if _has_channels_last(ctx) else y, dtype_of(ctx.input(0)))


GROUPED = "activation channels_last epsilon groups"

OPERATORS: Mapping[str, Operator] = {
    "SkipLayerNormalization": Operator(
        skip_layer_norm, "input skip gamma beta? bias?", "epsilon", NORM_OUTPUTS
    ),
    "SkipSimplifiedLayerNormalization": Operator(
        skip_rms_norm, "input skip gamma bias?", "epsilon", NORM_OUTPUTS,
        refused={"mean": "an RMS normalisation has no mean"},
    ),
    "GroupNorm": Operator(group_norm, "X gamma beta", GROUPED),
    "SkipGroupNorm": Operator(skip_group_norm, "X gamma beta skip bias?", GROUPED, "Y S?"),
}  # fmt: skip
