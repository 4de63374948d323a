"""Storage dtypes of elements, and the dtypes in which kernels compute with them.

bool is stored as bytes 0 and 1, bfloat16 as the upper half of a float32; half floats and those of 8 bits are computed
in float32 and rounded to nearest-even where they are stored.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import StringImm
from tvm.ir.prim.expr import LShift
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import float8
from tilestitch.codegen.compute.float8 import SMALL
from tilestitch.compiler.ir.types import HALVES, to_numpy_dtype
from tilestitch.compiler.ir.types import compute_dtype as compute_dtype

Expr = Any
"""A TIR expression or a Python number. TVM builds expressions by overloaded operators, which mypy cannot follow."""

Bind = Callable[[Expr], Expr]
"""Function that binds an expression to a variable, so that it is computed once."""

_DATA = "data"
_ROUNDED = {dtype: f"{_DATA}_{dtype}" for dtype in HALVES}
DATA_VARIABLES = frozenset([_DATA, *_ROUNDED.values()])
"""Names of variables that hold elements, as opposed to loop bounds. Those that hold what was read or rounded as a half
float have names of their own: rounding them again changes nothing, but compilers do not see it.
"""


def named(expr: Expr) -> Expr:
    """Return a variable that holds an element. Its value must not change when memory that `expr` reads is written
    later: TVM's passes substitute other variables; see `codegen.variables`.
    """
    return T.bind(expr, var=tirx.Var(_ROUNDED.get(_read_as(expr), _DATA), expr.ty))


def _read_as(expr: Expr) -> str:
    """Return the dtype of half floats as which an expression reads an element, as `from_storage` does; else ""."""
    if isinstance(expr, tirx.Cast):
        return "float16" if dtype_of(expr) == "float32" and dtype_of(expr.value) == "float16" else ""
    if getattr(getattr(expr, "op", None), "name", "") != "tirx.reinterpret" or dtype_of(expr) != "float32":
        return ""
    match expr.args[0]:
        case LShift(a=tirx.Cast() as bits, b=tirx.IntImm(value=16)) if dtype_of(bits.value) == "uint16":
            return "bfloat16"
    return ""


HIDDEN = "tilestitch_hidden"
"""Name of calls that stand for their operand until `codegen.variables.show` removes them."""


def widen(value: Expr, dtype: str, acc_dtype: str) -> Expr:
    """Return `value`, an element of `dtype` in its compute dtype, in the dtype of the sum."""
    return value if compute_dtype(dtype) == acc_dtype else T.cast(value, acc_dtype)


def literal(number: Any, dtype: str) -> Expr:
    """Return the element `number` of dtype `dtype`, as `immediate` gives it, but hidden from TVM's arithmetic.

    TVM folds expressions as they are built: x * 0.0 to 0.0 for any x, 0.0 / x likewise, x + 0.0 to x; and it refuses
    constant integer arithmetic that overflows. The compilers of the generated text or LLVM code fold by IEEE 754 and
    two's complement.
    """
    return opaque(immediate(number, dtype))


def opaque(expr: Expr) -> Expr:
    """Return an element that TVM does not fold: a constant as a call that is removed in the end; others unchanged."""
    if not isinstance(expr, (tirx.IntImm, tirx.FloatImm)) or dtype_of(expr) == "bool":
        return expr
    return tirx.call_pure_extern(dtype_of(expr), HIDDEN, expr)


def revealed(expr: Expr) -> Expr:
    """Return the constant that `opaque` hides, or `expr` itself."""
    return hidden_operand(expr) if is_hidden(expr) else expr


def is_hidden(expr: Expr, name: str = HIDDEN) -> bool:
    """Return whether an expression is a call of `name`, which stands for its operand."""
    if getattr(getattr(expr, "op", None), "name", "") not in ("tirx.call_extern", "tirx.call_pure_extern"):
        return False
    return isinstance(expr.args[0], StringImm) and expr.args[0].value == name


def hidden_operand(call: Expr) -> Expr:
    """Return the operand of a call that `is_hidden`."""
    return call.args[1]


native_dtypes = frozenset(
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
    ]
)
"""dtypes that kernels handle; values of any other dtype belong to host steps."""

_STORAGE = {"bool": "uint8", "bfloat16": "uint16", **dict.fromkeys(SMALL, "uint8")}


def storage_dtype(dtype: str) -> str:
    """Return the dtype of the TIR buffer for values of `dtype`."""
    return _STORAGE.get(dtype, dtype)


def from_storage(element: Expr, dtype: str) -> Expr:
    """Return an element as read from a buffer of `storage_dtype(dtype)`, in `compute_dtype(dtype)`."""
    if dtype == "bool":
        return tirx.NE(element, T.uint8(0))
    if dtype == "bfloat16":
        return T.reinterpret("float32", T.shift_left(T.cast(element, "uint32"), T.uint32(16)))
    if dtype == "float16":
        return T.cast(element, "float32")
    return float8.from_bits(element, dtype) if dtype in SMALL else element


def to_storage(value: Expr, dtype: str) -> Expr:
    """Return what to store into a buffer of `storage_dtype(dtype)` for a value in `compute_dtype(dtype)`."""
    if dtype == "bool":
        return T.cast(value, "uint8")
    if dtype == "float16":
        return T.cast(value, "float16")
    if dtype == "bfloat16":
        return _bfloat16_bits(value)
    return _small_bits(value, dtype) if dtype in SMALL else value


def _small_bits(value: Expr, dtype: str) -> Expr:
    known = revealed(value)
    if isinstance(known, tirx.FloatImm):  # C cannot take the address of a constant to reinterpret it
        return T.uint8(int(np.float32(known.value).astype(to_numpy_dtype(dtype)).view(np.uint8)))
    return float8.to_bits(value, dtype)


def _bfloat16_bits(value: Expr) -> Expr:
    known = revealed(value)
    if isinstance(known, tirx.FloatImm):  # finite; C cannot take the address of a constant to reinterpret it
        whole = int(np.float32(known.value).view(np.uint32))
        return T.uint16((whole + 0x7FFF + (whole >> 16 & 1)) >> 16)
    bits = T.reinterpret("uint32", value)
    upper = T.shift_right(bits, T.uint32(16))
    rounded = T.shift_right(bits + T.uint32(0x7FFF) + T.bitwise_and(upper, T.uint32(1)), T.uint32(16))
    quiet_nan = T.bitwise_or(upper, T.uint32(0x40))
    return T.cast(tirx.Select(is_nan(value), quiet_nan, rounded), "uint16")


def round_half(value: Expr, dtype: str) -> Expr:
    """Return `value` after a round trip through storage as `dtype`; unchanged except for floats below float32, and
    unless it is known to have been rounded.
    """
    if isinstance(value, tirx.Var) and value.name == _ROUNDED.get(dtype):
        return value
    return from_storage(to_storage(value, dtype), dtype) if dtype in HALVES or dtype in SMALL else value


def not_equal(a: Expr, b: Expr) -> Expr:
    """Return a != b, true if either is NaN, unlike TVM's own NE of floats."""
    return tirx.Not(tirx.EQ(a, b))


def is_nan(x: Expr) -> Expr:
    """Return whether a float is NaN."""
    return not_equal(x, x)


def immediate(number: Any, dtype: str) -> Expr:
    """Return the constant `number` (a numpy or Python scalar) in `compute_dtype(dtype)`."""
    compute = compute_dtype(dtype)
    if compute == "bool":
        return T.bool(bool(number))
    if compute.startswith("float"):
        return _float_immediate(float(number), compute)
    return _integer_immediate(int(number), compute)


def _float_immediate(number: float, dtype: str) -> Expr:
    # TIR's printer and simplifier handle finite numbers only.
    if number != number:
        bits = 0x7FC00000 if dtype == "float32" else 0x7FF8000000000000
        return T.reinterpret(dtype, _integer_immediate(bits, "uint32" if dtype == "float32" else "uint64"))
    if number in (float("inf"), float("-inf")):
        infinity = T.reinterpret(
            dtype, T.uint32(0x7F800000) if dtype == "float32" else _integer_immediate(0x7FF0000000000000, "uint64")
        )
        return infinity if number > 0 else -infinity
    return tirx.FloatImm(dtype, number)


def _integer_immediate(number: int, dtype: str) -> Expr:
    if dtype == "uint64" and number >= 1 << 63:
        high = T.shift_left(tirx.IntImm("uint64", number >> 32), tirx.IntImm("uint64", 32))
        return T.bitwise_or(high, tirx.IntImm("uint64", number & 0xFFFFFFFF))
    return tirx.IntImm(dtype, number)


def dtype_of(value: Expr) -> str:
    """Return the scalar dtype of a TIR expression."""
    return str(value.ty.dtype)


def storage_bits(dtype: str) -> int:
    """Return the width in bits of an element in memory."""
    return int("".join(c for c in storage_dtype(dtype) if c.isdigit()))
