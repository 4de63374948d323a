"""Gates, and branches of a residual stream side by side (hyper-connections), with RMS normalisation of each."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size

from ...builder import dtype_of
from ...context import Context, Converted
from ..activations import swish
from ..common import outputs_named, widened
from ..normalization import inverse_deviation
from .operator import Operator

LEAST_SQUARE = 1e-6
"""What EngramGate takes the root of at least."""


def gated_rms_norm(ctx: Context) -> Value:
    """Convert GatedRMSNorm: groups of as many elements as `scale` has, normalised, times an activation of the gate."""
    x, scale, activation = ctx.input(0), ctx.input(1), ctx.attr("activation", "silu")
    if activation not in ("silu", "swish", "sigmoid"):
        raise ctx.fail(f"activation is {activation!r}, none of silu, swish and sigmoid; correct the model")
    gate, shape = widened(ctx, ctx.input(2)), ctx.shape(x)
    curve = ctx.sigmoid(gate) if activation == "sigmoid" else swish(ctx, gate, 1.0)
    parts = _parts(ctx, x, _groups(ctx, x, ctx.dim(scale, 0)))
    normal = ctx.mul(_unit(ctx, parts, ctx.attr("epsilon", 1e-5)), widened(ctx, scale))
    return ctx.cast(ctx.mul(ctx.reshape(normal, shape), curve), dtype_of(x))


def branchwise_rms_norm(ctx: Context) -> Value:
    """Convert BranchwiseRMSNorm of [.., C, H], or of [.., C * H] with `num_branches` C."""
    x, scale = ctx.input(0), ctx.optional(1)
    parts = _branches(ctx, x)
    normal = _unit(ctx, parts, ctx.attr("epsilon", 1e-5))
    if scale is not None:
        count, width = ctx.shape(parts)[-2:]
        shared = scale.tensor_type.num_elements == width
        normal = ctx.mul(normal, ctx.reshape(widened(ctx, scale), (width,) if shared else (count, width)))
    return ctx.cast(ctx.reshape(normal, ctx.shape(x)), dtype_of(x))


def gated_add(ctx: Context) -> Value:
    """Convert GatedAdd: X + Y * gate, each rounded to their dtype."""
    return ctx.add(ctx.input(0), ctx.mul(ctx.input(1), ctx.input(2)))


def pre_mix(ctx: Context) -> Value:
    """Convert HyperConnectionPreMix: the weighted sum of the branches."""
    x = ctx.input(0)
    parts = widened(ctx, _branches(ctx, x))
    total = ctx.reduce("sum", ctx.mul(parts, _spread(ctx, 1, parts)), (ctx.rank(parts) - 2,), keepdims=False)
    return ctx.cast(ctx.mul(total, ctx.attr("reduction_scale", 1.0)), dtype_of(x))


def post_mix(ctx: Context) -> Value:
    """Convert HyperConnectionPostMix: branches mixed by a matrix, plus a result that each of them takes a share of."""
    x, mix = ctx.input(0), ctx.optional(3)
    parts = widened(ctx, _branches(ctx, x))
    result = ctx.expand_dims(widened(ctx, ctx.input(1)), (ctx.rank(parts) - 2,))
    if mix is None:
        mixed = parts
    else:
        rank = ctx.rank(parts)
        mixed = ctx.matmul(ctx.swap_axes(widened(ctx, mix), rank - 2, rank - 1), parts)
    y = ctx.add(mixed, ctx.mul(_spread(ctx, 2, parts), result))
    return ctx.cast(ctx.reshape(y, ctx.shape(x)), dtype_of(x))


def engram_gate(ctx: Context) -> Converted:
    """Convert EngramGate: a value that all branches share, times a gate of each branch's key and query."""
    epsilon, dtype = ctx.attr("epsilon", 1e-5), dtype_of(ctx.input(0))
    key, query = (ctx.mul(_unit(ctx, ctx.input(i), epsilon), widened(ctx, ctx.input(i + 3))) for i in (0, 1))
    dot = ctx.reduce("sum", ctx.mul(key, query), (3,))
    dot = ctx.mul(dot, 1 / sqrt(max(ctx.dim(key, 3), 1)))
    root = ctx.emit("sqrt", ctx.maximum(ctx.emit("abs", dot), LEAST_SQUARE))
    gate = ctx.sigmoid(ctx.mul(ctx.emit("sign", dot), root))
    y = ctx.mul(gate, ctx.expand_dims(widened(ctx, ctx.input(2)), (2,)))
    if not ctx.has_output(1):
        return ctx.cast(y, dtype)
    normal = ctx.mul(_unit(ctx, y, epsilon), widened(ctx, ctx.input(5)))
    return outputs_named(ctx, [ctx.cast(y, dtype), ctx.cast(normal, dtype)])


def _unit(ctx: Context, x: Value, epsilon: float) -> Value:
    """Return x divided by the root mean square of its last axis, in float32."""
    wide = widened(ctx, x)
    square = ctx.mean(ctx.mul(wide, wide), (ctx.rank(wide) - 1,))
    return ctx.mul(wide, inverse_deviation(ctx, square, epsilon))


def _groups(ctx: Context, x: Value, width: Size) -> Size:
    groups, left = divmod(ctx.dim(x, -1), width)
    if left:
        raise ctx.fail(
            f"the last axis of {x.type} is no multiple of the {width} elements of a group; correct the model"
        )
    return groups


def _parts(ctx: Context, x: Value, count: Size) -> Value:
    """Return x [.., count * H] as [.., count, H]."""
    *front, width = ctx.shape(x)
    return ctx.reshape(x, (*front, count, width // count))


def _branches(ctx: Context, x: Value) -> Value:
    """Return [.., C, H]: as it is, or the last axis divided into `num_branches`."""
    count = ctx.attr("num_branches", 0)
    if count == 0:
        return x
    if count < 0 or ctx.dim(x, -1) % count:
        raise ctx.fail(f"the last axis of {x.type} cannot be divided into num_branches={count}; correct the model")
    return _parts(ctx, x, count)


def _spread(ctx: Context, index: int, parts: Value) -> Value:
    """Return the operand, a factor for each branch or each of its elements, to broadcast against [.., C, H]."""
    factor = widened(ctx, ctx.input(index))
    if ctx.rank(factor) == ctx.rank(parts):
        return factor
    count = ctx.dim(parts, -2)
    if ctx.dim(factor, -1) == count:
        return ctx.expand_dims(factor, (ctx.rank(factor),))
    return _parts(ctx, factor, count)


OPERATORS: Mapping[str, Operator] = {
    "GatedRMSNorm": Operator(gated_rms_norm, "X scale gate", "activation epsilon"),
    "BranchwiseRMSNorm": Operator(branchwise_rms_norm, "X scale?", "epsilon num_branches"),
    "GatedAdd": Operator(
        gated_add, "X Y gate gate_weight?", "", "output",
        refused={"gate_weight": "ONNX Runtime has a kernel for it on GPUs only"},
    ),
    "HyperConnectionPreMix": Operator(pre_mix, "streams pre_mix", "num_branches reduction_scale", "output"),
    "HyperConnectionPostMix": Operator(
        post_mix, "streams block_output post_mix stream_mix?", "num_branches", "output"
    ),
    "EngramGate": Operator(
        engram_gate, "key query value key_norm_scale query_norm_scale conv_norm_scale?", "epsilon",
        "output gated_value_normed?",
    ),
}  # fmt: skip
