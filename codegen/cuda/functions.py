"""Elementary functions on CUDA: the CUDA math library's accurate ones, never the fast approximations.

Half floats are computed in float32, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import elementwise, reducers
from tilestitch.codegen.compute.dtypes import Expr, dtype_of, immediate, round_half
from tilestitch.codegen.compute.elementwise import Operation, Rule, convert
from tilestitch.compiler.ir.graph import Node, Value
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
    divisor = op.node.inputs[1]
    if op.compute != "float32":
        return elementwise.RULES["div"](op)
    if _is_above_one(divisor):
        return T.call_pure_extern("float32", "ts_float_over", *op.operands)
    if divisor.data is not None and divisor.data.size == 1:
        by = np.float32(divisor.data.reshape(()))
        if LEAST_DIVISOR <= abs(by) <= 1 / LEAST_DIVISOR:
            inverse = immediate(float(np.float32(1) / by), "float32")
            return T.call_pure_extern("float32", "ts_float_quotient", *op.operands, inverse)
    return elementwise.RULES["div"](op)


def _is_above_one(value: Value) -> bool:
    """Return whether a value is 1 + exp(x), as in sigmoids, or a sum of exp(x - max(x)), as in softmaxes."""
    node = value.producer
    if node is not None and node.op == "add":
        return any(_made_by("exp", x) is not None and _is_one(y) for x, y in (node.inputs, node.inputs[::-1]))
    weight = _made_by("exp", node.inputs[0]) if node is not None and node.op == "reduce_sum" else None
    below = weight and _made_by("sub", weight.inputs[0])
    largest = below and _made_by("reduce_max", below.inputs[1])
    if node is None or below is None or largest is None:
        return False
    return largest.inputs[0] is below.inputs[0] and largest.attrs["axes"] == node.attrs["axes"]


def _made_by(op: str, value: Value) -> Node | None:
    return value.producer if value.producer is not None and value.producer.op == op else None


def _is_one(value: Value) -> bool:
    return value.data is not None and value.data.size == 1 and bool(value.data.reshape(()) == 1)


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
    "div": _div,
    "maximum": _largest_or_least,
    "minimum": _largest_or_least,
    "fmod": _fmod,
    "mod": _mod,
    "pow": _pow,
}
"""The rule of every element-wise primitive."""
