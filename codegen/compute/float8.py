"""8-bit floats, e4m3fn and e5m2, converted from and to float32 by bit arithmetic, alike on every target.

e4m3fn has no infinities: out of range is NaN. Rounding is to nearest, ties to even.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

Expr = Any
MANTISSA, BIAS = 23, 127
"""Mantissa bits and exponent bias of float32."""
INFINITY = 0x7F800000
"""Bits of float32's infinity."""


@dataclass(frozen=True)
class Small:
    """An 8-bit float format. `mantissa`: its bits. `bias`: of the exponent. `largest`: the bits of the largest finite
    number; `limit`: that number. `beyond`: the bits of larger numbers; `nan`: those of NaN.
    """

    mantissa: int
    bias: int
    largest: int
    limit: float
    beyond: int
    nan: int

    @property
    def shift(self) -> int:
        """Bits of float32's mantissa that are lost."""
        return MANTISSA - self.mantissa


SMALL: Mapping[str, Small] = {
    "float8_e4m3fn": Small(3, 7, 0x7E, 448.0, 0x7F, 0x7F), "float8_e5m2": Small(2, 15, 0x7B, 57344.0, 0x7C, 0x7E),
}  # fmt: skip


def clamped(value: Expr, dtype: str) -> Expr:
    """Return a float32 clamped to the finite range of `dtype`, infinities too; NaN stays."""
    limit = tirx.FloatImm("float32", SMALL[dtype].limit)
    return tirx.Select(value > limit, limit, tirx.Select(value < -limit, -limit, value))


def to_bits(value: Expr, dtype: str) -> Expr:
    """Return the uint8 that is nearest to a float32."""
    small = SMALL[dtype]
    bits = T.reinterpret("uint32", value)
    size = T.bitwise_and(bits, T.uint32(0x7FFFFFFF))
    least = (BIAS + 1 - small.bias) << MANTISSA  # of the normal numbers
    odd = T.bitwise_and(T.shift_right(size, T.uint32(small.shift)), T.uint32(1))
    normal = T.shift_right(size + odd + T.uint32((1 << (small.shift - 1)) - 1), T.uint32(small.shift))
    normal = normal - T.uint32((BIAS - small.bias) << small.mantissa)
    # Adding a number whose last bit is that of the subnormal ones rounds to these.
    unit = (BIAS + 1 - small.bias + small.shift) << MANTISSA
    sum_ = T.reinterpret("float32", size) + T.reinterpret("float32", T.uint32(unit))
    subnormal = T.reinterpret("uint32", sum_) - T.uint32(unit)
    found = tirx.Select(size < T.uint32(least), subnormal, normal)
    beyond = tirx.Select(size > T.uint32(INFINITY), T.uint32(small.nan), T.uint32(small.beyond))
    found = tirx.Select(found > T.uint32(small.largest), beyond, found)
    sign = T.bitwise_and(T.shift_right(bits, T.uint32(24)), T.uint32(0x80))
    return T.cast(T.bitwise_or(found, sign), "uint8")


def from_bits(bits: Expr, dtype: str) -> Expr:
    """Return the float32 value of a uint8."""
    small = SMALL[dtype]
    wide = T.cast(bits, "uint32")
    size = T.bitwise_and(wide, T.uint32(0x7F))
    moved = T.shift_left(size, T.uint32(small.shift))
    factor = tirx.FloatImm("float32", 2.0 ** (BIAS - small.bias))
    value = T.reinterpret("uint32", T.reinterpret("float32", moved) * factor)
    special = T.bitwise_or(moved, T.uint32(INFINITY))
    found = tirx.Select(size > T.uint32(small.largest), special, value)
    sign = T.shift_left(T.bitwise_and(wide, T.uint32(0x80)), T.uint32(24))
    return T.reinterpret("float32", T.bitwise_or(found, sign))
