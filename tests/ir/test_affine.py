"""Quasi-affine expressions against Python's own integer arithmetic, at every point of their variables' ranges."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilestitch.compiler.ir.affine import Affine, Integer, Quotient, Variable, bounds, linear_in, variable

EXTENTS = (3, 4, 5)


def evaluate(expr: Integer, point: dict[Variable, int]) -> int:
    if isinstance(expr, int):
        return expr
    return expr.constant + sum(
        c * (point[a] if isinstance(a, Variable) else evaluate(a.dividend, point) // a.divisor)
        for a, c in expr.terms.items()
    )


def atoms(variables: list[Integer]) -> list[Variable]:
    return [a for v in variables if isinstance(v, Affine) for a in v.terms if isinstance(a, Variable)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(-7, 13)),
        st.tuples(st.just("constant"), st.integers(-20, 20), st.just(0)),
        st.tuples(st.just("times"), st.integers(-3, 4), st.just(0)),
        st.tuples(st.just("div"), st.integers(1, 24), st.just(0)),
        st.tuples(st.just("mod"), st.integers(1, 24), st.just(0)),
    ),
    max_size=7,
)


@given(steps)
def test_every_operation_means_what_it_means_for_integers(program: list[tuple[str, int, int]]) -> None:
    variables = [variable(f"i{d}", extent) for d, extent in enumerate(EXTENTS)]
    known = atoms(variables)
    expr: Integer = 0
    values = dict.fromkeys(product(*map(range, EXTENTS)), 0)
    for what, a, b in program:
        for point in values:
            values[point] = apply(what, values[point], a, point[a] * b if what == "add" else b)
        expr = apply(what, expr, a, variables[a] * b if what == "add" else b)
    low, high = bounds(expr)
    for point, value in values.items():
        assert evaluate(expr, dict(zip(known, point, strict=True))) == value
        assert low <= value <= high


def apply(what: str, value, a: int, b):  # type: ignore[no-untyped-def]
    match what:
        case "add":
            return value + b
        case "constant":
            return value + a
        case "times":
            return value * a
        case "div":
            return value // a
    return value % a


@given(st.permutations([2, 3, 4, 5]))
def test_splitting_a_position_and_joining_it_again_gives_the_position(sizes: list[int]) -> None:
    whole = variable("i", 120)
    rest, parts = whole, []
    for size in sizes:
        parts.append(rest % size)
        rest = rest // size
    joined: Integer = 0
    for part, size in zip(reversed(parts), reversed(sizes), strict=True):
        joined = joined * size + part
    assert joined == whole


def test_a_quotient_drops_what_stays_below_the_divisor() -> None:
    i, j = variable("i", 7), variable("j", 4)
    assert (i * 4 + j) // 4 == i
    assert (i * 4 + j) % 4 == j
    assert (i * 12 + j * 3 + 2) // 6 == i * 2 + j // 2


def test_a_reversed_axis_needs_no_quotient() -> None:
    i = variable("i", 12)
    assert (11 - i) // 12 == 0
    assert (11 - i) % 12 == 11 - i


def test_quotients_of_quotients_are_one() -> None:
    i = variable("i", 1000)
    assert i // 4 // 5 == i // 20


def test_a_variable_with_one_value_is_that_value() -> None:
    assert variable("i", 1) == 0


@pytest.mark.parametrize("extent", [2**31, 2**40])
def test_large_extents_are_exact(extent: int) -> None:
    i = variable("i", extent)
    assert bounds(i * 3 + 1) == (1, 3 * (extent - 1) + 1)


def test_linear_coefficients_are_read_in_the_order_of_the_variables() -> None:
    i, j, one = variable("i", 4), variable("j", 5), variable("k", 1)
    assert linear_in(j * 3 - i + 2, [i, one, j]) == ((-1, 0, 3), 2)
    assert linear_in(7, [i, j]) == ((0, 0), 7)
    assert linear_in(i // 3 + j, [i, j]) is None


def test_expressions_that_are_equal_are_so_as_keys() -> None:
    i, j = variable("i", 4), variable("j", 5)
    assert {i + j: 1}[j + i] == 1
    assert {Quotient(i + 1, 3)} == {Quotient(1 + i, 3)}
