"""Element-wise arithmetic, comparisons, logic, bits and casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import is_float, to_numpy_dtype

from ..builder import dtype_of
from ..compared_sizes import are_exclusive
from ..context import Context, Converted, Versioned
from ..errors import NotStatic
from .common import binary, legacy_pair, unary


def convert_reciprocal(ctx: Context) -> Value:
    return ctx.div(1.0, ctx.input(0))


def convert_mod(ctx: Context) -> Value:
    return ctx.emit("fmod" if ctx.attr("fmod", 0) else "mod", ctx.input(0), ctx.input(1))


def convert_variadic(op: str) -> Callable[[Context], Value]:
    def convert(ctx: Context) -> Value:
        values = [ctx.input(i) for i in range(len(ctx.inputs))]
        return reduce(lambda a, b: ctx.emit(op, a, b), values)

    return convert


def convert_mean(ctx: Context) -> Value:
    values = [ctx.input(i) for i in range(len(ctx.inputs))]
    total = reduce(ctx.add, values)
    return total if len(values) == 1 else ctx.mul(total, 1.0 / len(values))


def convert_greater_or_equal(ctx: Context) -> Value:
    return ctx.emit("less_equal", ctx.input(1), ctx.input(0))


def convert_bit_shift(ctx: Context) -> Value:
    direction = ctx.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise ctx.fail(f"direction {direction!r} is neither LEFT nor RIGHT")
    return ctx.emit("shift_left" if direction == "LEFT" else "shift_right", ctx.input(0), ctx.input(1))


def convert_is_inf(ctx: Context) -> Value:
    positive, negative = bool(ctx.attr("detect_positive", 1)), bool(ctx.attr("detect_negative", 1))
    return ctx.emit("is_inf", ctx.input(0), positive=positive, negative=negative)


def convert_clip_attributes(ctx: Context) -> Value:
    x = ctx.input(0)
    limit = float(np.finfo(np.float32).max)
    low, high = ctx.attr("min", -limit), ctx.attr("max", limit)
    x = ctx.maximum(x, low) if low > -limit else x
    return ctx.minimum(x, high) if high < limit else x


def convert_clip(ctx: Context) -> Value:
    x, low, high = ctx.input(0), ctx.optional(1), ctx.optional(2)
    x = ctx.maximum(x, low) if low is not None else x
    return ctx.minimum(x, high) if high is not None else x


def convert_where(ctx: Context) -> Value:
    return ctx.emit("select", ctx.input(0), ctx.input(1), ctx.input(2))


def _cast(ctx: Context, x: Value, to: str) -> Value:
    if dtype_of(x) == to:
        return x
    attrs: dict[str, object] = {"to": to}
    if to.startswith("float8"):
        attrs["saturate"] = bool(ctx.attr("saturate", 1))
    if to == "float8_e8m0fnu":
        attrs["round_mode"] = ctx.attr("round_mode", "up")
    return ctx.emit("cast", x, **attrs)


_LEGACY_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}


def convert_cast(ctx: Context) -> Value:
    if ctx.opset < 6:
        name = str(ctx.attr("to")).upper()
        return _cast(ctx, ctx.input(0), _LEGACY_NAMES.get(name, name.lower()))
    return _cast(ctx, ctx.input(0), ctx.dtype_attr("to"))


def convert_cast_like(ctx: Context) -> Value:
    return _cast(ctx, ctx.input(0), dtype_of(ctx.input(1)))


def convert_bit_cast(ctx: Context) -> Value:
    to = ctx.dtype_attr("to")
    x = ctx.input(0)
    return x if dtype_of(x) == to else ctx.emit("bit_cast", x, to=to)


def convert_identity(ctx: Context) -> Value:
    return ctx.input(0)


def convert_dropout(ctx: Context) -> Converted:
    """Return the identity: dropout is for training. With training_mode it draws random numbers at run time."""
    x = ctx.input(0)
    training = ctx.optional(2) if ctx.opset >= 12 else None
    if training is not None and bool(ctx.constant_of(2).reshape(())):
        ratio = ctx.optional(1)
        if ratio is None or ratio.data is None or float(ratio.data.reshape(())) != 0.0:
            raise NotStatic("a training-mode Dropout draws random numbers at run time")
    if not ctx.has_output(1):
        return x
    dtype = "bool" if ctx.opset >= 10 else dtype_of(x)
    return [x, ctx.full(ctx.shape(x), 1, dtype)]


def convert_and(ctx: Context) -> Value:
    both = binary("logical_and")(ctx)
    return ctx.full(ctx.shape(both), False, "bool") if are_exclusive([ctx.input(0), ctx.input(1)]) else both


def convert_pow(ctx: Context) -> Value:
    base, exponent = legacy_pair(ctx)
    return ctx.emit("pow", base, exponent)


def convert_div(ctx: Context) -> Value:
    a, b = legacy_pair(ctx)
    # Division of a float by a constant power of two equals multiplication by its reciprocal exactly, which is far
    # cheaper.
    if b.data is not None and b.data.size == 1 and is_float(dtype_of(b)):
        divisor = float(b.data.reshape(()))
        if (
            divisor
            and np.isfinite(divisor)
            and abs(np.frexp(divisor)[0]) == 0.5
            and 2.0**-14 <= abs(divisor) <= 2.0**14
        ):
            return ctx.mul(a, ctx.constant((1.0 / b.data.astype(np.float64)).astype(to_numpy_dtype(dtype_of(b)))))
    return ctx.emit("div", a, b)


_UNARY = {
    "Neg": "neg", "Abs": "abs", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Round": "round",
    "Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Erf": "erf",
    "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan",
    "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
    "IsNaN": "is_nan", "Not": "logical_not", "BitwiseNot": "bitwise_not",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Or": "logical_or", "Xor": "logical_xor",
    "Equal": "equal", "Less": "less", "LessOrEqual": "less_equal",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip

CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    **{name: [(1, unary(op))] for name, op in _UNARY.items()},
    **{name: [(1, binary(op))] for name, op in _BINARY.items()},
    "And": [(1, convert_and)],
    "Div": [(1, convert_div)],
    "Pow": [(1, convert_pow)],
    "Reciprocal": [(1, convert_reciprocal)],
    "Mod": [(10, convert_mod)],
    "Sum": [(1, convert_variadic("add"))],
    "Max": [(1, convert_variadic("maximum"))],
    "Min": [(1, convert_variadic("minimum"))],
    "Mean": [(1, convert_mean)],
    "Greater": [(1, binary("less", swapped=True))],
    "GreaterOrEqual": [(12, convert_greater_or_equal)],
    "BitShift": [(11, convert_bit_shift)],
    "IsInf": [(10, convert_is_inf)],
    "Clip": [(1, convert_clip_attributes), (11, convert_clip)],
    "Where": [(9, convert_where)],
    "Cast": [(1, convert_cast)],
    "CastLike": [(15, convert_cast_like)],
    "BitCast": [(26, convert_bit_cast)],
    "Identity": [(1, convert_identity)],
    "Dropout": [(1, convert_dropout)],
}
