"""Elementary functions on CUDA: the CUDA math library's accurate ones, never the fast approximations.

Half floats are computed in float32, as on the CPU.
"""

from collections.abc import Mapping

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import elementwise, reducers
from tilestitch.codegen.compute.dtypes import Expr, dtype_of, immediate, round_half
from tilestitch.codegen.compute.elementwise import Operation, Rule, convert
from tilestitch.compiler.ir.graph import Value
from tilestitch.compiler.ir.magnitudes import divides_by_one_more_than_exp, divides_by_softmax_sum
from tilestitch.compiler.ir.types import dtype_kind, is_float

LEAST_DIVISOR = 2.0**-100
"""Least constant divisor, and the inverse of the largest one, for which no intermediate result leaves float32's range
unless the quotient does.
"""


def call(name: str, *operands: Expr) -> Expr:
    """Return a call of `name` of C's math library, with the suffix `f` for float32."""
    dtype = dtype_of(operands[0])
    return T.call_pure_extern(dtype, name + ("f" if dtype == "float32" else ""), *operands)


def _function(name: str) -> Rule:
    return lambda op: call(name, *op.operands)


def _exactly(name: str) -> Rule:
    """Return the rule of a discontinuous function: it applies to the operand as it is stored."""
    return lambda op: call(name, *(op.bind(round_half(x, op.dtype)) for x in op.operands))


def _fmod(op: Operation) -> Expr:
    return _exactly("fmod")(op) if is_float(op.dtype) else elementwise.RULES["fmod"](op)


def _mod(op: Operation) -> Expr:
    """Return the remainder with the divisor's sign, also where it is zero."""
    if not is_float(op.dtype):
        return elementwise.RULES["mod"](op)
    y, zero = op.bind(round_half(op.operands[1], op.dtype)), op.constant(0)
    rest = op.bind(_fmod(op))
    opposite = tirx.Or(tirx.And(rest < zero, y > zero), tirx.And(rest > zero, y < zero))
    return tirx.Select(opposite, rest + y, tirx.Select(tirx.EQ(rest, zero), call("copysign", zero, y), rest))


def _mul(op: Operation) -> Expr:
    if not elementwise.is_rounded(op):
        return elementwise.RULES["mul"](op)
    return product(*op.operands)


def product(a: Expr, b: Expr) -> Expr:
    """Return the product of two floats, rounded before anything is added."""
    return T.call_pure_extern(dtype_of(a), "__dmul_rn" if dtype_of(a) == "float64" else "__fmul_rn", a, b)


def _sub(op: Operation) -> Expr:
    """Return the difference, without contracting a product with the subtraction of its maximum."""
    if op.compute not in ("float32", "float64") or not elementwise.subtracts_maximum(op.node):
        return elementwise.RULES["sub"](op)
    return T.call_pure_extern(op.compute, "__dsub_rn" if op.compute == "float64" else "__fsub_rn", *op.operands)


def combine(reducer: str, dtype: str, a: Expr, b: Expr) -> Expr:
    """Return `reducers.combine` of scalars, in fewer instructions where there are."""
    if reducer in ("max", "min") and dtype_of(a) == "float32":
        return _extreme(reducer, a, b)
    return reducers.combine(reducer, dtype, a, b)


def _extreme(reducer: str, a: Expr, b: Expr) -> Expr:
    return T.call_pure_extern("float32", f"ts_float_{reducer}", a, b)


def _largest_or_least(op: Operation) -> Expr:
    if op.compute == "float32":
        return _extreme("max" if op.node.op == "maximum" else "min", *op.operands)
    return elementwise.RULES[op.node.op](op)


def _div(op: Operation) -> Expr:
    """Return a quotient; without the branch of a division where the divisor's range is known."""
    if op.compute != "float32":
        return elementwise.RULES["div"](op)
    x, divisor = op.operands
    if divides_by_softmax_sum(op.node):
        return T.call_pure_extern("float32", "ts_float_over", x, divisor)
    if divides_by_one_more_than_exp(op.node):
        if _is_within_one(op.node.inputs[0]):
            return T.call_pure_extern("float32", "ts_float_over", x, divisor)
        quarter = immediate(0.25, "float32")
        return T.call_pure_extern("float32", "ts_float_over", x * quarter, divisor * quarter)
    return _over_constant(op)


def _over_constant(op: Operation) -> Expr:
    x, constant = op.operands[0], op.node.inputs[1].data
    if constant is not None and constant.size == 1:
        by = np.float32(constant.reshape(()))
        if LEAST_DIVISOR <= abs(by) <= 1 / LEAST_DIVISOR:
            positive = abs(by)
            numbers = (immediate(float(number), "float32") for number in (positive, np.float32(1) / positive))
            negated = x if by > 0 else x * immediate(-1.0, "float32")
            return T.call_pure_extern("float32", "ts_float_quotient", negated, *numbers)
    return elementwise.RULES["div"](op)


def _is_within_one(value: Value) -> bool:
    """Return whether a number's quotients by more than 2^126 are below the least normal number, which may be 0."""
    return value.data is not None and value.data.size == 1 and bool(abs(value.data.reshape(())) <= 1)


def _pow(op: Operation) -> Expr:
    base, exponent = op.operands
    source = op.node.inputs[1]
    if is_float(op.dtype):
        number = source.data.reshape(()) if source.data is not None and source.data.size == 1 else None
        if number is not None and number in (-1, -0.5, 0, 0.5, 1, 2, 3, 4):
            return elementwise.RULES["pow"](op)
        return call("pow", base, op.bind(convert(exponent, source.dtype, op.compute, op.bind)))
    if dtype_kind(source.dtype) in ("int", "uint", "bool"):
        return elementwise.RULES["pow"](op)
    wide = op.bind(T.cast(base, "float64"))
    return convert(op.bind(call("pow", wide, op.bind(T.cast(exponent, "float64")))), "float64", op.dtype, op.bind)


_SAME_NAME = (
    "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
)  # fmt: skip

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **{name: _function(name) for name in _SAME_NAME},
    "sqrt": _function("sqrt"),
    **{name: _exactly(name) for name in ("floor", "ceil", "trunc")},
    "round": _exactly("rint"),
    "mul": _mul,
    "sub": _sub,
    "div": _div,
    "maximum": _largest_or_least,
    "minimum": _largest_or_least,
    "fmod": _fmod,
    "mod": _mod,
    "pow": _pow,
}
"""The rule of every element-wise primitive."""
