"""Expressions of sizes: they mean what they mean in Python, survive printing, and refuse what is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilestitch.runtime.sizes import MAX_DEPTH, MAX_LENGTH, MAX_SIZE, SizeError, evaluate, names, parse, to_text
from tilestitch.runtime.sizes import value_of as value

NAMES = ("a", "b", "seq_len")


def _extended(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operator = st.sampled_from(["+", "-", "*", "//", " % ", " - "])
    return st.one_of(
        st.tuples(inner, operator, inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
        st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        ),
    )


TEXTS = st.recursive(st.sampled_from([*NAMES, "0", "1", "2", "7", "64"]), _extended, max_leaves=12)
VALUES = st.fixed_dictionaries({name: st.integers(-5, 70) for name in NAMES})


@given(TEXTS, VALUES)
def test_an_expression_means_what_it_means_in_python(text: str, values: dict[str, int]) -> None:
    try:
        expected = eval(text, {"max": max, "min": min}, values)  # the texts are made above
    except ZeroDivisionError:
        with pytest.raises(SizeError, match="divides by zero"):
            evaluate(parse(text), values)
        return
    assert evaluate(parse(text), values) == expected


@given(TEXTS)
def test_an_expression_survives_printing(text: str) -> None:
    assert parse(to_text(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (" a+ 2*(b) ", "a + 2*b"), ("a-(b-1)", "a - (b - 1)"), ("(a*b)//2*3", "a*b//2*3"), ("a*(b//2)", "a*(b//2)"),
        ("-(a+b)", "-(a + b)"), ("max(a,(b+1),0)", "max(a, b + 1, 0)"), ("(a)%8", "a % 8"),
    ],
)  # fmt: skip
def test_expressions_are_printed_with_few_parentheses(text: str, printed: str) -> None:
    assert to_text(parse(text)) == printed


def test_names_come_in_the_order_of_their_first_use() -> None:
    assert names(parse("b + max(a, b)*seq_len // 4")) == ("b", "a", "seq_len")


@pytest.mark.parametrize(
    "text",
    ["", " ", "1+", "(", "(a", "a)", "a b", "a$", "007", "1.5", "1e3", "0x10", "max(a)", "max", "min()", "a**2", "a/2",
     "a\t", "a\n", "é", "²", "a.b", "a[0]", "f(a)", "__import__('os')", str(MAX_SIZE + 1), "9" * 5000, "a,b", "+a",
     "~a"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(SizeError):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ["-" * 100_000 + "a", "(" * 8000 + "a" + ")" * 8000, "max(1," * 2000 + "1" + ")" * 2000, "a" + "//2" * 5000,
     "a" * (MAX_LENGTH + 1), "-" * (MAX_DEPTH + 1) + "a"],
    ids=["signs", "parentheses", "calls", "divisions", "length", "one too deep"],
)  # fmt: skip
def test_texts_that_are_too_long_or_too_deep_are_refused(text: str) -> None:
    with pytest.raises(SizeError):
        parse(text)


def test_long_chains_are_not_deep() -> None:
    assert value("+".join(["a"] * 5000), {"a": 3}) == 15000
    assert value("*".join(["a"] * 5000), {"a": 1}) == 1


@pytest.mark.parametrize("text", ["a*a", "*".join(["a"] * 8000), "a + a*a - a*a", "-a - a - a"])
def test_numbers_that_are_too_large_are_refused(text: str) -> None:
    with pytest.raises(SizeError, match="too large"):
        value(text, {"a": 2**61})


def test_a_name_needs_a_value() -> None:
    with pytest.raises(SizeError, match="'b' is not known"):
        value("a + b", {"a": 1})


@pytest.mark.parametrize(("size", "expected"), [(5, 5), ("5", 5), ("a", 1)])
def test_a_size_is_a_number_or_a_text(size: Any, expected: int) -> None:
    assert value(size, {"a": 1}) == expected
