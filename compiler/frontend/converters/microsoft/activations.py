"""Activation functions with a bias, a residual or a scale before or after them."""

from collections.abc import Callable, Mapping

from tilestitch.compiler.ir import Value

from ...builder import Builder, dtype_of
from ...context import Context
from ..activations import gelu, hard_sigmoid, of_first, recurrent_activation, swish, tanh_gelu
from ..common import widened
from ..reductions import softmax
from .operator import Operator


def activation(
    ctx: Context, name: str, alpha: float | None = None, beta: float | None = None
) -> Callable[[Value], Value]:
    """Return an activation that ONNX Runtime fuses into a matmul or convolution, by ONNX's name for it."""
    if name == "Clip":
        if alpha is None or beta is None:
            raise ctx.fail("the activation Clip takes two parameters; correct the model")
        low, high = alpha, beta
        return lambda x: ctx.clamp(x, low, high)
    if name == "HardSwish":
        return lambda x: ctx.mul(x, hard_sigmoid(ctx, x, 1.0 / 6.0, 0.5))
    found = recurrent_activation(ctx, name.lower(), alpha, beta)
    if found is None:
        raise ctx.fail(f"activation {name!r} is not supported; write it as an operator after this one")
    return found


def bias_gelu(ctx: Context) -> Value:
    return gelu(ctx, ctx.add(ctx.input(0), ctx.input(1)))


def fast_gelu(ctx: Context) -> Value:
    x, bias = ctx.input(0), ctx.optional(1)
    return tanh_gelu(ctx, x if bias is None else ctx.add(x, bias))


def bias_add(ctx: Context) -> Value:
    return ctx.add(ctx.add(ctx.input(0), ctx.input(1)), ctx.input(2))


def bias_split_gelu(ctx: Context) -> Value:
    x = ctx.add(ctx.input(0), ctx.input(1))
    left, right = halves(ctx, x)
    return ctx.mul(left, gelu(ctx, right))


def halves(ctx: Context, x: Value) -> tuple[Value, ...]:
    """Return the two halves of the last axis."""
    width, axis = ctx.dim(x, -1), ctx.rank(x) - 1
    if width % 2:
        raise ctx.fail(f"the last axis of {x.type} cannot be halved; correct the model")
    return ctx.split(x, axis, (width // 2, width // 2))


def bias_softmax(ctx: Context) -> Value:
    """Convert BiasSoftmax. Whatever `is_inner_broadcast` says, a bias that fits has size one on broadcast axes or lacks
    them.
    """
    x = ctx.input(0)
    axes = range(ctx.axis(x, ctx.attr("axis", 1)), ctx.rank(x))
    return ctx.cast(softmax(ctx, widened(ctx, ctx.add(x, ctx.input(1))), axes), dtype_of(x))


def swiglu(ctx: Context) -> Value:
    """Convert SwiGLU in float32; rounded to the operands' dtype at the end, and optionally once before the product."""
    gate, up = (ctx.input(0), ctx.optional(1)) if ctx.optional(1) is not None else halves(ctx, ctx.input(0))
    dtype = dtype_of(gate)
    assert up is not None
    wide = clamped_swiglu(
        ctx, widened(ctx, gate), widened(ctx, up),
        alpha=ctx.attr("activation_alpha", 1.0), beta=ctx.attr("activation_beta", 0.0),
        limit=limit if (limit := ctx.attr("limit", 0.0)) > 0 else None,
        rounded=dtype if ctx.attr("round_activation", 0) else None,
    )  # fmt: skip
    return ctx.cast(wide, dtype)


def clamped_swiglu(
    b: Builder, gate: Value, up: Value, *, alpha: float, beta: float, limit: float | None, rounded: str | None = None
) -> Value:
    """Return swish(min(gate, limit)) * (clamp(up) + beta); the first factor is rounded to the dtype `rounded` first."""
    if limit is not None:
        gate, up = b.minimum(gate, limit), b.clamp(up, -limit, limit)
    active = swish(b, gate, alpha)
    if rounded is not None:
        active = b.cast(b.cast(active, rounded), dtype_of(gate))
    return b.mul(active, up if beta == 0.0 else b.add(up, beta))


def scaled_silu(ctx: Context) -> Value:
    """Convert the scaled SiLU; the scaled operand and its sigmoid are each rounded to the operand's dtype."""
    x, scale = ctx.input(0), ctx.optional(1)
    dtype, wide = dtype_of(x), widened(ctx, ctx.input(0))
    factor = ctx.attr("alpha", 1.0) if scale is None else ctx.cast(ctx.reshape(scale, ()), dtype_of(wide))
    scaled = ctx.cast(ctx.mul(wide, factor), dtype)
    return ctx.mul(scaled, ctx.cast(ctx.sigmoid(widened(ctx, scaled)), dtype))


OPERATORS: Mapping[str, Operator] = {
    "BiasGelu": Operator(bias_gelu, "A B", outputs="C"),
    "FastGelu": Operator(fast_gelu, "X bias?"),
    "QuickGelu": Operator(of_first(swish, 1.702), "X", "alpha"),
    "Gelu": Operator(of_first(gelu), "X"),
    "BiasAdd": Operator(bias_add, "X bias skip"),
    "BiasSplitGelu": Operator(bias_split_gelu, "X bias"),
    "BiasSoftmax": Operator(bias_softmax, "data bias", "axis is_inner_broadcast", "output"),
    "SwiGLU": Operator(swiglu, "gate up?", "activation_alpha activation_beta limit round_activation", "output"),
    "ScaledSiLU": Operator(scaled_silu, "X scale?", "alpha"),
}
