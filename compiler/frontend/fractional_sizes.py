"""Shape arithmetic in floats: `ceil((time - 7 + 6) / 2.0 + 1.0)`, for frames of audio and sides of images.

A quotient of sizes by `denominator` that is not an integer is at least `1 / denominator` away from one, so its floor
and ceiling are exact if the rounding error is smaller than that: as long as sizes are not too large, which is claimed.
Integer quotients are exact, as only integers are added to rounded values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, lcm

from tilestitch.compiler.ir.claims import may_be_natural
from tilestitch.compiler.ir.sizes import Size, bounds_of, divisor_of, is_open

EXACT: Mapping[str, int] = {"float32": 1 << 24, "float64": 1 << 53}
"""Integers up to this are exact in each float type."""
LARGEST_DENOMINATOR = 1 << 12


@dataclass(frozen=True)
class Fraction:
    """`numerator / denominator`, and all intermediate results.

    `roundings`: most roundings of the floats; none if all denominators are powers of two.
    """

    numerator: Size
    denominator: int = 1
    parts: tuple[Fraction, ...] = ()
    roundings: int = 0

    def __str__(self) -> str:
        return str(self.numerator) if self.denominator == 1 else f"({self.numerator}) / {self.denominator}"

    def plus(self, other: Fraction) -> Fraction | None:
        """Return the sum; None for rounded operands, since it may miss an integer."""
        if (self.roundings or other.roundings) and 1 not in (self.denominator, other.denominator):
            return None
        common = lcm(self.denominator, other.denominator)
        total = self.numerator * (common // self.denominator) + other.numerator * (common // other.denominator)
        roundings = self.roundings + other.roundings
        return _made(total, common, (self, other), roundings, roundings > 0)

    def negated(self) -> Fraction:
        return Fraction(-self.numerator, self.denominator, (self,), self.roundings)

    def times(self, other: Fraction) -> Fraction | None:
        """Return the product; None unless one factor is constant."""
        size, factor = (self, other) if is_open(self.numerator) else (other, self)
        return None if is_open(factor.numerator) else size._scaled(factor.numerator, factor.denominator)

    def over(self, other: Fraction) -> Fraction | None:
        """Return the quotient; None unless the divisor is constant and nonzero."""
        if is_open(other.numerator) or other.numerator == 0:
            return None
        sign = 1 if other.numerator > 0 else -1
        return self._scaled(sign * other.denominator, sign * other.numerator)

    def _scaled(self, factor: int, divisor: int) -> Fraction | None:
        numerator, denominator = self.numerator * factor, self.denominator * divisor
        shared = gcd(divisor_of(numerator), denominator)
        scales = _is_power_of_two(abs(factor)) and _is_power_of_two(divisor)
        if self.roundings and not scales:
            return None
        rounds = not scales and not _is_power_of_two(denominator // shared)
        return _made(numerator // shared, denominator // shared, (self,), self.roundings, rounds)

    def floor(self, dtype: str) -> Size | None:
        return self.numerator // self.denominator if self._is_near(dtype) else None

    def ceil(self, dtype: str) -> Size | None:
        return -(-self.numerator // self.denominator) if self._is_near(dtype) else None

    def truncated(self, dtype: str) -> Size | None:
        """Return the truncated value; None where it may be of either sign."""
        low, high = bounds_of(self.numerator)
        return self.floor(dtype) if low >= 0 else self.ceil(dtype) if high <= 0 else None

    def _is_near(self, dtype: str) -> bool:
        """Return whether floats round to the same integers, given the claims on sizes."""
        most, sizes = EXACT[dtype] // (self.roundings + 1), dict.fromkeys(self._in_parts(self.denominator))
        return all(bounds_of(s)[0] >= -most and may_be_natural(most - s) for s in sizes)

    def _in_parts(self, denominator: int) -> list[Size]:
        """Return all intermediate results in units of `denominator` or smaller."""
        own = self.numerator * -(-denominator // self.denominator)
        return [own, *(size for part in self.parts for size in part._in_parts(denominator))]


def _made(
    numerator: Size, denominator: int, parts: tuple[Fraction, ...], roundings: int, rounds: bool
) -> Fraction | None:
    return Fraction(numerator, denominator, parts, roundings + rounds) if denominator <= LARGEST_DENOMINATOR else None


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
