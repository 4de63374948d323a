"""Shape arithmetic in floats: what is rounded up and down as if it were exact, is so in floats, too."""

from __future__ import annotations

from fractions import Fraction as Exact
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilestitch.compiler.frontend.fractional_sizes import Fraction
from tilestitch.compiler.ir.claims import Claim, noting
from tilestitch.compiler.ir.sizes import Symbol, size_of, typical

N = size_of(Symbol("n", 1, 1 << 23))
NUMBERS = (1, 2, 3, 5, 7, 320, 16000, 0.5, 0.25, 1.5, -1, -3, 0.1)
STEPS = st.lists(st.tuples(st.sampled_from(["plus", "minus", "times", "over"]), st.sampled_from(NUMBERS)), max_size=4)
OPERATIONS: dict[str, Any] = {
    "plus": (lambda a, b: a + b, lambda a, b: a.plus(b)),
    "minus": (lambda a, b: b - a, lambda a, b: a.negated().plus(b)),
    "times": (lambda a, b: a * b, lambda a, b: a.times(b)),
    "over": (lambda a, b: a / b, lambda a, b: a.over(b)),
}


@given(steps=STEPS, size=st.integers(1, 1 << 23), dtype=st.sampled_from(["float32", "float64"]))
def test_rounding_is_that_of_floats(steps: list[tuple[str, float]], size: int, dtype: str) -> None:
    fraction: Fraction | None = Fraction(N)
    number = np.dtype(dtype).type(size)
    for name, operand in steps:
        on_floats, on_fractions = OPERATIONS[name]
        known = np.dtype(dtype).type(operand)
        number = on_floats(number, known)
        fraction = on_fractions(fraction, Fraction(*float(known).as_integer_ratio()))
        if fraction is None:
            return
    claims: list[Claim] = []
    for rounded, actual in ((fraction.floor, np.floor), (fraction.ceil, np.ceil), (fraction.truncated, np.trunc)):
        with noting(claims.append):
            result = rounded(dtype)
        if result is not None and all(claim.holds({"n": size}) for claim in claims):
            assert typical(result, {"n": size}) == int(actual(number))


def test_what_was_rounded_may_miss_an_integer() -> None:
    third = Fraction(N).over(Fraction(3))
    assert third is not None and third.plus(Fraction(1)) is not None
    assert third.plus(third) is None and third.times(Fraction(3)) is None
    assert Fraction(3 * N).over(Fraction(3)) == Fraction(N, 1, (Fraction(3 * N),))


@pytest.mark.parametrize("factor", [0.7, 1 / 3])
def test_factors_that_floats_do_not_have_are_not_followed(factor: float) -> None:
    exact = Exact(float(np.float32(factor)))
    assert Fraction(N).times(Fraction(exact.numerator, exact.denominator)) is None
