"""Activation functions, as chains of element-wise primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import pi, sqrt

from tilestitch.compiler.ir import Value

from ..builder import Builder
from ..context import Context, Versioned


def relu(b: Builder, x: Value) -> Value:
    return b.maximum(x, 0)


def leaky_relu(b: Builder, x: Value, alpha: float) -> Value:
    return b.select(b.less(x, 0.0), b.mul(x, alpha), x)


def elu(b: Builder, x: Value, alpha: float) -> Value:
    return b.select(b.less(x, 0.0), b.mul(b.sub(b.emit("exp", x), 1.0), alpha), x)


def softplus(b: Builder, x: Value) -> Value:
    """Return log(1 + exp(x)), in a form in which exp does not overflow."""
    tail = b.emit("log", b.add(b.emit("exp", b.emit("neg", b.emit("abs", x))), 1.0))
    return b.add(b.maximum(x, 0.0), tail)


def softsign(b: Builder, x: Value) -> Value:
    return b.div(x, b.add(b.emit("abs", x), 1.0))


def hard_sigmoid(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.clamp(b.add(b.mul(x, alpha), beta), 0.0, 1.0)


def scaled_tanh(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.mul(b.emit("tanh", b.mul(x, beta)), alpha)


def thresholded_relu(b: Builder, x: Value, alpha: float) -> Value:
    return b.select(b.less(b.like(alpha, x), x), x, 0.0)


def swish(b: Builder, x: Value, alpha: float) -> Value:
    return b.mul(x, b.sigmoid(x if alpha == 1.0 else b.mul(x, alpha)))


def gelu(b: Builder, x: Value) -> Value:
    """Return x times the cumulative normal distribution at x."""
    return _gated(b, x, b.emit("erf", b.mul(x, sqrt(0.5))))


def tanh_gelu(b: Builder, x: Value) -> Value:
    """Return the approximation of `gelu` by a hyperbolic tangent."""
    cubic = b.add(x, b.mul(b.mul(b.mul(x, x), x), 0.044715))
    return _gated(b, x, b.emit("tanh", b.mul(cubic, sqrt(2.0 / pi))))


def _gated(b: Builder, x: Value, curve: Value) -> Value:
    return b.mul(b.mul(x, 0.5), b.add(curve, 1.0))


def convert_prelu(ctx: Context) -> Value:
    x, slope = ctx.input(0), ctx.input(1)
    if ctx.opset < 7 and ctx.rank(slope) == 1 and ctx.rank(x) > 2:
        slope = ctx.reshape(slope, (*ctx.shape(slope), *(1,) * (ctx.rank(x) - 2)))
    return ctx.select(ctx.less(x, 0), ctx.mul(x, slope), x)


def convert_celu(ctx: Context) -> Value:
    x, alpha = ctx.input(0), ctx.attr("alpha", 1.0)
    decay = ctx.mul(ctx.sub(ctx.emit("exp", ctx.div(x, alpha)), 1.0), alpha)
    return ctx.add(ctx.maximum(x, 0.0), ctx.minimum(decay, 0.0))


def convert_selu(ctx: Context) -> Value:
    since6 = ctx.opset >= 6
    alpha = ctx.attr("alpha", 1.67326319217681884765625 if since6 else 1.6732)
    gamma = ctx.attr("gamma", 1.05070102214813232421875 if since6 else 1.0507)
    return ctx.mul(elu(ctx, ctx.input(0), alpha), gamma)


def convert_gelu(ctx: Context) -> Value:
    approximate = ctx.attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise ctx.fail(f"approximate is {approximate!r}, neither none nor tanh")
    return (tanh_gelu if approximate == "tanh" else gelu)(ctx, ctx.input(0))


def convert_hard_swish(ctx: Context) -> Value:
    x = ctx.input(0)
    return ctx.mul(x, hard_sigmoid(ctx, x, 1.0 / 6.0, 0.5))


def convert_mish(ctx: Context) -> Value:
    x = ctx.input(0)
    return ctx.mul(x, ctx.emit("tanh", softplus(ctx, x)))


def convert_shrink(ctx: Context) -> Value:
    x, lambd, bias = ctx.input(0), ctx.attr("lambd", 0.5), ctx.attr("bias", 0.0)
    positive = ctx.select(ctx.less(ctx.like(lambd, x), x), ctx.sub(x, bias), 0.0)
    return ctx.select(ctx.less(x, -lambd), ctx.add(x, bias), positive)


def convert_swiglu(ctx: Context) -> Value:
    return ctx.mul(swish(ctx, ctx.input(0), ctx.attr("alpha", 1.0)), ctx.input(1))


Activation = tuple[Callable[..., Value], tuple[float, ...]]
"""A function of a builder, a value, and alpha and beta as far as it has them; and ONNX's defaults for these."""

_SIMPLE: Mapping[str, Activation] = {
    "Relu": (relu, ()),
    "Sigmoid": (Builder.sigmoid, ()),
    "LeakyRelu": (leaky_relu, (0.01,)),
    "Elu": (elu, (1.0,)),
    "HardSigmoid": (hard_sigmoid, (0.2, 0.5)),
    "Softplus": (softplus, ()),
    "Softsign": (softsign, ()),
    "ThresholdedRelu": (thresholded_relu, (1.0,)),
}
_RECURRENT: Mapping[str, Activation] = {
    **{name.lower(): activation for name, activation in _SIMPLE.items()},
    "tanh": (lambda b, x: b.emit("tanh", x), ()),
    "affine": (lambda b, x, alpha, beta: b.add(b.mul(x, alpha), beta), (1.0, 0.0)),
    "scaledtanh": (scaled_tanh, (1.0, 1.0)),
}


def recurrent_activation(
    b: Builder, name: str, alpha: float | None, beta: float | None
) -> Callable[[Value], Value] | None:
    """Return an activation of RNN, LSTM and GRU by its (lower-case) name, with ONNX's defaults for alpha and beta."""
    if name not in _RECURRENT:
        return None
    function, defaults = _RECURRENT[name]
    given = [default if value is None else value for value, default in zip((alpha, beta), defaults)]
    return lambda x: function(b, x, *given)


def of_first(function: Callable[..., Value], *defaults: float) -> Callable[[Context], Value]:
    """Return a converter to a function of the first operand and of the attributes alpha and beta, as far as there are
    defaults for them.
    """

    def convert(ctx: Context) -> Value:
        return function(ctx, ctx.input(0), *(ctx.attr(*each) for each in zip(("alpha", "beta"), defaults)))

    return convert


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    **{name: [(1, of_first(function, *defaults))] for name, (function, defaults) in _SIMPLE.items()},
    "PRelu": [(1, convert_prelu)],
    "Celu": [(12, convert_celu)],
    "Selu": [(1, convert_selu)],
    "Gelu": [(20, convert_gelu)],
    "HardSwish": [(14, convert_hard_swish)],
    "Mish": [(18, convert_mish)],
    "Shrink": [(9, convert_shrink)],
    "Swish": [(24, of_first(swish, 1.0))],
    "SwiGLU": [(28, convert_swiglu)],
}
