"""Elementary functions on CUDA: the CUDA math library's accurate ones, never the fast approximations.

Half floats are computed in float32, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import elementwise
from tilestitch.codegen.compute.dtypes import Expr, dtype_of, round_half
from tilestitch.codegen.compute.elementwise import Operation, Rule, convert
from tilestitch.compiler.ir.types import dtype_kind, is_float


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
    "fmod": _fmod,
    "mod": _mod,
    "pow": _pow,
}
"""The rule of every element-wise primitive."""
