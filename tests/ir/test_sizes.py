"""Sizes as expressions over symbols: one normal form, order by proof only, and text that reads back."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tilestitch.compiler.ir.errors import IRError, UndecidedError
from tilestitch.compiler.ir.sizes import (
    Symbol,
    at,
    bounds_of,
    ceil_div,
    if_any,
    is_open,
    largest,
    over,
    parse_size,
    size_of,
    smallest,
    symbols_of,
    typical,
    where_zero,
)  # fmt: skip

SYMBOLS = {name: Symbol(name, low, high) for name, low, high in (("b", 1, 64), ("s", 1, 512), ("p", 0, 100))}
B, S, P = (size_of(symbol) for symbol in SYMBOLS.values())
NAMES = {name: size_of(symbol) for name, symbol in SYMBOLS.items()}
VALUES = st.fixed_dictionaries({n: st.integers(s.low, s.high) for n, s in SYMBOLS.items()})

_BINARY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "max": largest, "min": smallest}
_LEAVES = st.one_of(st.integers(-8, 8), st.sampled_from(sorted(NAMES)))


def _trees() -> st.SearchStrategy[Any]:
    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        binary = st.tuples(st.sampled_from(sorted(_BINARY)), inner, inner)
        return st.one_of(binary, st.tuples(st.sampled_from(["//", "%"]), inner, st.integers(1, 9)))

    return st.recursive(_LEAVES, grown, max_leaves=8)


def _made(tree: Any, names: Any) -> Any:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return names[tree]
    op, left, right = tree
    a, b = _made(left, names), _made(right, names)
    if op in ("//", "%"):
        return a // b if op == "//" else a % b
    return _BINARY[op](a, b)


@given(_trees(), VALUES)
def test_an_expression_has_the_value_of_its_arithmetic(tree: Any, values: dict[str, int]) -> None:
    size = _made(tree, NAMES)
    expected = _made(tree, values)
    assert typical(size, values) == expected
    low, high = bounds_of(size)
    assert low <= expected <= high


@given(_trees())
@example(("//", ("//", ("-", 0, "b"), 2), 2))
def test_its_text_reads_back(tree: Any) -> None:
    size = _made(tree, NAMES)
    assert parse_size(str(size), NAMES) == size


NARROW = {n: Symbol(n, low, high, or_empty=True) for n, low, high in (("b", 1, 1), ("s", 1, 9), ("p", 50, 60))}


@given(_trees())
@example(("-", "s", ("min", "b", "s")))
@example(("//", ("max", "b", "p"), 3))
def test_its_text_reads_back_over_ranges_that_were_narrowed_later(tree: Any) -> None:
    """These would simplify it, which a reader of what was printed must not do."""
    size = _made(tree, NAMES)
    narrowed = over(size, NARROW) if is_open(size) else size
    names = {name: size_of(symbol) for name, symbol in NARROW.items()}
    assert parse_size(str(narrowed), names, as_written=True) == narrowed


def test_other_sizes_are_not_simplified_where_some_become_known() -> None:
    """The minimum is not `n` where `m` is 0, which it may be although its range was narrowed."""
    n, m = Symbol("n", 0, 9), Symbol("m", 0, 9)
    size = smallest(size_of(n), size_of(m)) // 2 * B
    narrow = {"n": Symbol("n", 1, 1, or_empty=True), "m": Symbol("m", 1, 9, or_empty=True)}
    assert str(at(over(size, narrow), {"b": 3})) == "3 * ((min(m, n)) // 2)"


def test_whether_there_is_any_is_told_from_a_minimum() -> None:
    n = Symbol("n", 1, 9, or_empty=True)
    assert str(if_any(n)) != str(smallest(size_of(Symbol("n", 0, 9)), 1))


@given(_trees(), _trees(), VALUES)
def test_what_is_decided_of_an_order_holds_for_all_values(one: Any, other: Any, values: dict[str, int]) -> None:
    a, b = _made(one, NAMES), _made(other, NAMES)
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            decided = compare(a, b)
        except UndecidedError:
            continue
        assert decided == compare(_made(one, values), _made(other, values))


@given(_trees(), VALUES)
@example(("-", "s", ("max", 0, ("-", "b", "p"))), {"b": 60, "s": 20, "p": 40})
def test_what_is_left_of_a_sum_is_0_where_the_sum_is(tree: Any, values: dict[str, int]) -> None:
    size = _made(tree, NAMES) - _made(tree, values)
    assert not is_open(size) or typical(where_zero(size), values) == 0


def test_equal_expressions_compare_equal() -> None:
    assert B * (S + P) == P * B + S * B
    assert B * S * 768 // 64 == B * S * 12
    assert (B * S + B * P) // (S + P) == B
    assert S // 2 * 2 + S % 2 == S
    assert (4 * S + 3) // 4 == S
    assert (2 * ceil_div(S, 2) + 2) // 4 == ceil_div(ceil_div(S, 2), 2) == (S + 3) // 4
    assert (6 * S) % 3 == 0
    assert S != B
    assert hash(B * S) == hash(S * B)


def test_what_is_constant_is_an_integer() -> None:
    assert type(S - S) is int
    assert type(S * 0) is int
    assert size_of(Symbol("one", 5, 5)) == 5
    assert largest(S, 0) == S
    assert smallest(S, 600) == S
    assert (P + 100) // 400 == 0


def test_an_open_order_raises_instead_of_being_guessed() -> None:
    assert S < 513
    with pytest.raises(UndecidedError, match="s < 5"):
        bool(S < 5)
    with pytest.raises(UndecidedError, match="p != 0"):
        bool(P)
    assert bool(S)


def test_a_window_over_an_image_that_is_large_enough_has_results() -> None:
    """Whatever the normal form makes of the number: no term of it is always larger than the others."""
    h, w = (size_of(Symbol(name, 3, 99)) for name in "hw")
    assert bounds_of(B * (h - 2) * (w - 2) + P) == (1, 64 * 97 * 97 + 100)
    assert bounds_of(-(h - 3) * (w - 3) - P * B) == (-(96 * 96 + 6400), 0)
    assert bounds_of((h - 3) * (h - 3) + P) == (0, 96 * 96 + 100)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("16 * ((s + 15) // 16) - s", (0, 15)),
        ("s - 4 * (s // 4) + 4", (4, 7)),
        ("4 * ((s + 12) // 16) - s // 4", (0, 3)),
        ("4 * ((s + 28) // 32) * b - b * ((s + 4) // 8)", (0, 192)),
        ("(16 - s % 16) % 16 - p % 3", (-2, 15)),
        ("2 * (s // 2) - 3 * (s // 3)", (-1, 2)),
    ],
)
def test_what_is_missing_to_a_multiple_is_small(text: str, bounds: tuple[int, int]) -> None:
    assert bounds_of(parse_size(text, NAMES)) == bounds


def test_a_quotient_by_an_open_size_with_a_small_remainder() -> None:
    assert (4 * S + 1) // (4 * S) == (4 * S + 3) // (4 * S) == 1
    assert (3 * S * B + B) // (3 * B * S + B) == 1 and (6 * B * S + 1) // (2 * B * S) == 3
    assert (4 * S - 1) // (2 * S) == 1 and (4 * S - 2) // (2 * S) == 1
    assert is_open((4 * S + 4) // (4 * S)) and is_open((4 * S - 3) // (2 * S))


def test_bounds_see_what_a_minimum_shares_with_the_rest_of_a_sum() -> None:
    """How many of `s` rows are kept, of which there may be 100 at most."""
    dropped = largest(0, S - 100)
    assert bounds_of(S - smallest(S, dropped)) == (1, 100)
    assert largest(0, S - dropped) == S - dropped


def test_bounds_are_values_of_a_sum_of_multiples() -> None:
    """Memory of blocks of 64 bytes holds counts of 8 bytes, of as many blocks of rows."""
    rows = 3 * (S - largest(0, S - P))
    assert bounds_of(64 * ceil_div(rows, 8192) - 8 * ceil_div(rows, 1024)) == (0, 56)
    assert bounds_of(4 * (S % 2) - 6 * (P % 3) + 1) == (-11, 5)


def test_division_by_what_may_be_0_raises() -> None:
    with pytest.raises(UndecidedError, match="p > 0"):
        S // P


@pytest.mark.parametrize(
    "take",
    [
        range,
        int,
        lambda size: np.empty((size,)),
        lambda size: [0, 1][size],
        lambda size: size * 0.5,
        lambda size: size < 0.5,
    ],
)
def test_no_number_is_taken_from_an_expression_unseen(take: Any) -> None:
    with pytest.raises(UndecidedError, match="value of s"):
        take(S)


def test_a_quotient_whose_parts_are_negative_at_their_heads_whichever_way_it_is_rounded() -> None:
    """Halves, rounded up, in a part of as many again: neither way of writing it has an end of its own."""
    half = S - S // 2
    size = (2 * half) // (8 * half + 3)
    for s in (1, 2, 3, 7, 8):
        assert at(size, {"s": s}) == (2 * (s - s // 2)) // (8 * (s - s // 2) + 3) == 0
    size = (6 * half) // (4 * half + B)
    for b, s in ((1, 1), (1, 8), (2, 5), (7, 3)):
        assert at(size, {"b": b, "s": s}) == 6 * (s - s // 2) // (4 * (s - s // 2) + b)


@pytest.mark.parametrize("divide", [lambda size: size / 2, lambda size: 2 / size, lambda size: np.arange(size)])
def test_a_true_quotient_is_no_size(divide: Any) -> None:
    with pytest.raises(UndecidedError, match="known only at run time"):
        divide(S)


def test_symbols_are_replaced_by_sizes() -> None:
    assert at(B * ceil_div(S, 16), {"s": 17, "b": 3}) == 6
    assert at(B * (S + P), {"p": S}) == 2 * B * S
    assert symbols_of([B * S, 4, P + 1]) == set(SYMBOLS.values())
    with pytest.raises(IRError, match="symbols s have none"):
        typical(B * S, {"b": 1})


@pytest.mark.parametrize("text", ["s // 0", "4 // 0", "s // p", "s // (b - 2)"])
@pytest.mark.parametrize("as_written", [True, False])
def test_a_quotient_whose_divisor_may_be_0_is_refused(text: str, as_written: bool) -> None:
    with pytest.raises(IRError, match=r"is no size|> 0"):
        parse_size(text, NAMES, as_written=as_written)


@pytest.mark.parametrize(
    "text",
    ["", "s +", "t", "s / 2", "s ** 2", "abs(s)", "s.real", "1.5", "True and s", "max()", "True", "min(s, 1, key=b)"],
)
@pytest.mark.parametrize("as_written", [True, False])
def test_other_text_is_refused(text: str, as_written: bool) -> None:
    with pytest.raises(IRError, match="is no size"):
        parse_size(text, NAMES, as_written=as_written)


@pytest.mark.parametrize("text", ["(" * 9999 + "s" + ")" * 9999, "-" * 9999 + "s", "s" + " + s" * 9999, "s" * 9999])
def test_text_that_is_too_long_to_read_is_refused_in_short(text: str) -> None:
    with pytest.raises(IRError, match="is no size") as caught:
        parse_size(text, NAMES)
    assert len(str(caught.value)) < 500


def test_expressions_print_as_they_are_read() -> None:
    assert str(B * S + P * 2 - 1) == "b * s + 2 * p - 1"
    assert str(ceil_div(S, 16)) == "(s + 15) // 16"
    assert str(B * (S // 2)) == "b * (s // 2)"
    assert is_open(S) and not is_open(3)
