"""Normalisations as means, deviations and scales, so that they fuse with their neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilestitch.compiler.ir import Value

from ..builder import Builder, dtype_of
from ..context import Context, Converted, Versioned
from ..onnx_types import dtype_of as elem_dtype
from .common import HALVES, channel_shape, outputs_named, widened


def inverse_deviation(b: Builder, variance: Value, epsilon: float) -> Value:
    return b.div(1.0, b.emit("sqrt", b.add(variance, epsilon)))


def centred(b: Builder, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """Return the mean, x - mean, and the mean of its square."""
    mean = b.mean(x, axes)
    deviation = b.sub(x, mean)
    return mean, deviation, b.mean(b.mul(deviation, deviation), axes)


def _stash(ctx: Context, x: Value) -> Value:
    """Return the operand in the dtype of the statistics (`stash_type`, by default float32); wider floats stay."""
    stash = elem_dtype(ctx.attr("stash_type", 1))
    return ctx.cast(x, stash) if dtype_of(x) in HALVES else x


# -- batch normalisation -------------------------------------------------------------------------------------------


def convert_batch_norm(ctx: Context) -> Converted:
    """Convert BatchNormalization: for inference, one multiply-add per channel; for training (`training_mode`, or the
    old extra outputs), with batch statistics.
    """
    x = ctx.input(0)
    params = [ctx.input(i) for i in range(1, 5)]
    legacy_training = 7 <= ctx.opset < 14 and any(ctx.has_output(i) for i in range(1, 5))
    if (
        ctx.attr("training_mode", 0)
        or legacy_training
        or (ctx.opset < 7 and not ctx.attr("is_test", 0) and ctx.has_output(1))
    ):
        return _training(ctx, x, params)
    scale, shift = _scale_and_shift(ctx, params)
    return ctx.cast(ctx.add(ctx.mul(widened(ctx, x), scale), shift), dtype_of(x))


def _scale_and_shift(ctx: Context, params: Sequence[Value]) -> tuple[Value, Value]:
    x = ctx.input(0)
    scale, bias, mean, variance = (widened(ctx, p) for p in params)
    factor = ctx.mul(scale, inverse_deviation(ctx, variance, ctx.attr("epsilon", 1e-5)))
    shift = ctx.sub(bias, ctx.mul(mean, factor))
    if dtype_of(factor) != dtype_of(x) and dtype_of(x) not in HALVES:
        factor, shift = ctx.cast(factor, dtype_of(x)), ctx.cast(shift, dtype_of(x))
    return _aligned(ctx, factor), _aligned(ctx, shift)


def _aligned(ctx: Context, param: Value) -> Value:
    """Return a parameter aligned with axis 1; with `spatial` 0 (opset < 9) parameters have the shape of one sample."""
    if ctx.opset < 9 and not ctx.attr("spatial", 1):
        return param
    return channel_shape(ctx, ctx.input(0), param)


def _training(ctx: Context, x: Value, params: Sequence[Value]) -> Converted:
    scale, bias, mean, variance = params
    momentum = ctx.attr("momentum", 0.9)
    spatial = ctx.opset >= 9 or ctx.attr("spatial", 1)
    axes = tuple(a for a in range(ctx.rank(x)) if a != 1) if spatial else (0,)
    batch_mean, deviation, batch_variance = centred(ctx, widened(ctx, x), axes)
    factor = ctx.mul(
        inverse_deviation(ctx, batch_variance, ctx.attr("epsilon", 1e-5)), _aligned(ctx, widened(ctx, scale))
    )
    y = ctx.cast(ctx.add(ctx.mul(deviation, factor), _aligned(ctx, widened(ctx, bias))), dtype_of(x))

    def running(old: Value, new: Value) -> Value:
        flat = ctx.reshape(new, ctx.shape(old))
        mixed = ctx.add(ctx.mul(widened(ctx, old), momentum), ctx.mul(flat, 1.0 - momentum))
        return ctx.cast(mixed, dtype_of(old))

    saved = [ctx.cast(ctx.reshape(v, ctx.shape(mean)), dtype_of(mean)) for v in (batch_mean, batch_variance)]
    return outputs_named(ctx, [y, running(mean, batch_mean), running(variance, batch_variance), *saved])


# -- the others ----------------------------------------------------------------------------------------------------


def convert_instance_norm(ctx: Context) -> Value:
    x = ctx.input(0)
    wide = widened(ctx, x)
    _, deviation, variance = centred(ctx, wide, range(2, ctx.rank(x)))
    normal = ctx.mul(deviation, inverse_deviation(ctx, variance, ctx.attr("epsilon", 1e-5)))
    scale, bias = (channel_shape(ctx, x, widened(ctx, ctx.input(i))) for i in (1, 2))
    return ctx.cast(ctx.add(ctx.mul(normal, scale), bias), dtype_of(x))


def convert_layer_norm(ctx: Context) -> Converted:
    x, scale, bias = ctx.input(0), ctx.input(1), ctx.optional(2)
    axes = tuple(range(ctx.axis(x, ctx.attr("axis", -1)), ctx.rank(x)))
    mean, deviation, variance = centred(ctx, _stash(ctx, x), axes)
    inverse = inverse_deviation(ctx, variance, ctx.attr("epsilon", 1e-5))
    y = ctx.mul(ctx.cast(ctx.mul(deviation, inverse), dtype_of(x)), scale)
    y = y if bias is None else ctx.add(y, bias)
    return outputs_named(ctx, [y, mean, inverse])


def convert_rms_norm(ctx: Context) -> Value:
    return _rms_norm(ctx)[0]


def convert_simplified_layer_norm(ctx: Context) -> Converted:
    """Convert RMS normalisation under ONNX Runtime's name, which its tools write into ONNX's own domain."""
    return outputs_named(ctx, _rms_norm(ctx))


def _rms_norm(ctx: Context) -> tuple[Value, Value]:
    """Return the result and the inverse of the root mean square."""
    x, scale = ctx.input(0), ctx.input(1)
    axes = tuple(range(ctx.axis(x, ctx.attr("axis", -1)), ctx.rank(x)))
    wide = _stash(ctx, x)
    inverse = inverse_deviation(ctx, ctx.mean(ctx.mul(wide, wide), axes), ctx.attr("epsilon", 1e-5))
    return ctx.mul(ctx.cast(ctx.mul(wide, inverse), dtype_of(x)), ctx.cast(scale, dtype_of(x))), inverse


def convert_group_norm(ctx: Context) -> Value:
    """Convert GroupNormalization: statistics over groups of channels; scale and bias per channel (the form of opset 18
    is deprecated).
    """
    x = ctx.input(0)
    shape, groups = ctx.shape(x), ctx.attr("num_groups")
    if groups <= 0 or shape[1] % groups:
        raise ctx.fail(f"{shape[1]} channels cannot be divided into num_groups={groups}")
    grouped = ctx.reshape(_stash(ctx, x), (shape[0], groups, shape[1] // groups, prod(shape[2:])))
    _, deviation, variance = centred(ctx, grouped, (2, 3))
    normal = ctx.mul(deviation, inverse_deviation(ctx, variance, ctx.attr("epsilon", 1e-5)))
    # All arithmetic is in the grouped shape, so that what follows the statistics iterates over the same rows.
    scale, bias = (ctx.reshape(ctx.input(i), (groups, shape[1] // groups, 1)) for i in (1, 2))
    return ctx.reshape(ctx.add(ctx.mul(ctx.cast(normal, dtype_of(x)), scale), bias), shape)


def convert_lp_norm(ctx: Context) -> Value:
    x, p = ctx.input(0), ctx.attr("p", 2)
    axis = ctx.axis(x, ctx.attr("axis", -1))
    if p == 1:
        norm = ctx.reduce("sum", ctx.emit("abs", x), (axis,))
    elif p == 2:
        norm = ctx.emit("sqrt", ctx.reduce("sum", ctx.mul(x, x), (axis,)))
    else:
        raise ctx.fail(f"p is {p}; only 1 and 2 are defined")
    # A zero vector stays zero.
    return ctx.div(x, ctx.select(ctx.equal(norm, 0.0), 1.0, norm))


def convert_mean_variance(ctx: Context) -> Value:
    x = ctx.input(0)
    axes = [ctx.axis(x, a) for a in ctx.attr("axes", (0, 2, 3))]
    _, deviation, variance = centred(ctx, widened(ctx, x), axes)
    return ctx.cast(ctx.div(deviation, ctx.add(ctx.emit("sqrt", variance), 1e-9)), dtype_of(x))


def convert_lrn(ctx: Context) -> Value:
    """Return x / (bias + alpha/size * sum of squares over neighbouring channels) ** beta."""
    x, size = ctx.input(0), ctx.attr("size")
    shape = ctx.shape(x)
    # The window slides over the channels; image positions are independent, like channels of a pooling.
    squares = ctx.reshape(ctx.mul(x, x), (shape[0], shape[1], prod(shape[2:])))
    before = (size - 1) // 2
    total = ctx.emit(
        "window_reduce", squares, reducer="sum", kernel=(size,), strides=(1,), before=(before,),
        after=(size - 1 - before,), dilations=(1,), layout="NXC",
    )  # fmt: skip
    scaled = ctx.add(ctx.mul(ctx.reshape(total, shape), ctx.attr("alpha", 1e-4) / size), ctx.attr("bias", 1.0))
    return ctx.div(x, _positive_power(ctx, scaled, ctx.attr("beta", 0.75)))


def _positive_power(ctx: Context, base: Value, exponent: float) -> Value:
    """Return base ** exponent for a positive base; the usual exponents need square roots only."""
    if exponent not in (0.5, 0.75):
        return ctx.pow(base, exponent)
    root = ctx.emit("sqrt", base)
    return root if exponent == 0.5 else ctx.mul(root, ctx.emit("sqrt", root))


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "BatchNormalization": [(1, convert_batch_norm)],
    "InstanceNormalization": [(1, convert_instance_norm)],
    "LayerNormalization": [(1, convert_layer_norm)],  # before 17, ONNX Runtime's own
    "SimplifiedLayerNormalization": [(1, convert_simplified_layer_norm)],
    "RMSNormalization": [(23, convert_rms_norm)],
    "GroupNormalization": [(21, convert_group_norm)],
    "LpNormalization": [(1, convert_lp_norm)],
    "MeanVarianceNormalization": [(9, convert_mean_variance)],
    "LRN": [(1, convert_lrn)],
}
