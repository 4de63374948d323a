"""Sizes that depend on symbols: integer expressions as text such as `4*batch*seq`, and their evaluation.

    sum    = term {("+" | "-") term}
    term   = factor {("*" | "//" | "%") factor}
    factor = "-" factor | atom
    atom   = number | name | ("max" | "min") "(" sum "," sum {"," sum} ")" | "(" sum ")"
    number = "0" | digit from 1 to 9 {digit}, at most 2**62
    name   = letter or "_" {letter, digit or "_"}, all ASCII, neither "max" nor "min"

There may be spaces between the parts. Operators mean what they mean in Python: `//` rounds down, and `%` has the sign
of its right operand. Every intermediate value must lie from -2**62 to 2**62, so that the sum of two lies in an int64. A
text has at most `MAX_LENGTH` characters and its tree is at most `MAX_DEPTH` deep, where a chain of sums, or one of
multiplications, counts as one level.

`parse` and `to_text` are inverse to each other up to spaces and needless parentheses: `parse(to_text(e)) == e` for all
that `parse` returned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

__all__ = [
    "MAX_DEPTH", "MAX_LENGTH", "MAX_SIZE", "MIN_SIZE", "Expression", "Name", "Number", "Operation", "Size", "SizeError",
    "evaluate", "is_symbol_name", "known", "multiplied", "names", "parse", "to_text", "value_of",
]  # fmt: skip

Size: TypeAlias = int | str
"""A size in a program: a number, or the text of an expression over the program's symbols."""

MAX_LENGTH = 16384
MAX_DEPTH = 50
MOST_SHOWN = 80
"""Most characters of an expression that a message shows."""
MIN_SIZE, MAX_SIZE = -(2**62), 2**62


class SizeError(ValueError):
    """A text is not an expression, or the expression has no value for the given symbols."""


@dataclass(frozen=True)
class Number:
    """A number of at least 0; negative ones are a negation."""

    value: int


@dataclass(frozen=True)
class Name:
    text: str


@dataclass(frozen=True)
class Operation:
    """`operator` is `+`, `*`, `max` or `min` with two operands or more, `//` or `%` with two, or `neg` with one.

    `a - b` is the sum of a and the negative of b.
    """

    operator: str
    operands: tuple[Expression, ...]


Expression: TypeAlias = Number | Name | Operation

_TOKEN = re.compile(r" *(?:(?P<number>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>//|[-+*%(),]))")
_FUNCTIONS = ("max", "min")


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Parse an expression. Raises `SizeError`."""
    if len(text) > MAX_LENGTH:
        raise SizeError(f"an expression of {len(text)} characters; at most {MAX_LENGTH}")
    expression = _Parser(text).read()
    if _depth(expression) > MAX_DEPTH:
        raise SizeError(f"{_shortened(text)!r} is nested more than {MAX_DEPTH} deep")
    return expression


def is_symbol_name(text: str) -> bool:
    """Return whether TEXT can be the name of a symbol."""
    return re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", text) is not None and text not in _FUNCTIONS


def names(expression: Expression) -> tuple[str, ...]:
    """Return the names in an expression, each once, in the order of their first use."""
    match expression:
        case Number():
            return ()
        case Name(text):
            return (text,)
        case Operation(_, operands):
            return tuple(dict.fromkeys(name for operand in operands for name in names(operand)))


def evaluate(expression: Expression, values: Mapping[str, int]) -> int:
    """Return the expression's value. Raises `SizeError` for a name without a value, a division by zero, and a value
    that is too large.
    """
    match expression:
        case Number(value):
            result = value
        case Name(text):
            if text not in values:
                raise SizeError(f"the size {text!r} is not known")
            result = values[text]
        case Operation(operator, operands):
            result = _applied(operator, [evaluate(operand, values) for operand in operands], expression)
    if not MIN_SIZE <= result <= MAX_SIZE:
        raise SizeError(f"{_shortened(to_text(expression))} is too large for a size")
    return result


def value_of(size: Size, values: Mapping[str, int]) -> int:
    """Return the value of a size, a number or a text. Raises `SizeError`."""
    return size if isinstance(size, int) else evaluate(parse(size), values)


def known(size: Size) -> int:
    """Return a size that is a number. Raises `ValueError` for a text: its program must be bound to values first."""
    if isinstance(size, str):
        raise ValueError(f"the size {size!r} depends on symbols")
    return size


def multiplied(sizes: Sequence[Size]) -> Size:
    """Return the product of sizes; a text if one of them is."""
    numbers = [size for size in sizes if isinstance(size, int)]
    texts = [f"({size})" for size in sizes if isinstance(size, str)]
    return "*".join([str(math.prod(numbers)), *texts]) if texts else math.prod(numbers)


def to_text(expression: Expression) -> str:
    """Return the expression as text with no more parentheses than it needs."""
    match expression:
        case Number(value):
            return str(value)
        case Name(text):
            return text
        case Operation("+", operands):
            return _sum_text(operands)
        case Operation("*", operands):
            first, *others = operands
            return "*".join([_in_parentheses(first, ("+", "*")), *map(_text_in_term, others)])
        case Operation("neg", (operand,)):
            return f"-{_text_in_term(operand)}"
        case Operation("//" | "%" as operator, (left, right)):
            sign = "//" if operator == "//" else " % "
            return f"{_in_parentheses(left, ('+',))}{sign}{_text_in_term(right)}"
        case Operation(operator, operands):
            return f"{operator}({', '.join(map(to_text, operands))})"


def _sum_text(operands: Sequence[Expression]) -> str:
    text = ""
    for operand in operands:
        match operand:
            case Operation("neg", (negated,)) if text:
                text += f" - {_in_parentheses(negated, ('+',))}"
            case _:
                text += f"{' + ' * bool(text)}{_in_parentheses(operand, ('+',))}"
    return text


def _text_in_term(operand: Expression) -> str:
    """Return the text of an operand that is negated or not the first of a term."""
    return _in_parentheses(operand, ("+", "*", "//", "%"))


def _in_parentheses(operand: Expression, operators: tuple[str, ...]) -> str:
    """Return the text of an operand, in parentheses if it is one of these operations."""
    is_one = isinstance(operand, Operation) and operand.operator in operators
    return f"({to_text(operand)})" if is_one else to_text(operand)


def _applied(operator: str, operands: list[int], expression: Expression) -> int:
    if operator in ("//", "%") and operands[1] == 0:
        raise SizeError(f"{_shortened(to_text(expression))} divides by zero")
    match operator:
        case "+":
            return sum(operands)
        case "*":
            return math.prod(operands)
        case "neg":
            return -operands[0]
        case "//":
            return operands[0] // operands[1]
        case "%":
            return operands[0] % operands[1]
        case "max":
            return max(operands)
        case _:
            return min(operands)


def _depth(expression: Expression) -> int:
    """Return the number of levels of operations, or more than the limit. Iterative, since `//` and `%` chain beyond the
    parser's limit.
    """
    deepest, level = 0, [expression]
    while level:
        deepest += 1
        level = [operand for one in level if isinstance(one, Operation) for operand in one.operands]
        if deepest > MAX_DEPTH:
            return deepest
    return deepest


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


class _Parser:
    """Parser of one text from left to right; `_level` counts open parentheses and signs."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._level = 0
        self._kind: str | None = None
        self._token = ""
        self._advance()

    def read(self) -> Expression:
        expression = self._sum()
        if self._kind is not None:
            self._fail(f"unexpected {self._token!r}")
        return expression

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is not None:
            self._at, self._kind = match.end(), match.lastgroup
            self._token = match[self._kind or 0]
            return
        if self._text[self._at :].strip(" "):
            self._fail(f"unexpected {self._text[self._at :].strip(' ')[0]!r}")
        self._kind, self._token = None, ""

    def _fail(self, problem: str) -> NoReturn:
        raise SizeError(f"{_shortened(self._text)!r} is no expression of sizes: {problem} near character {self._at}")

    def _takes(self, *signs: str) -> str:
        """Consume the next sign if it is one of these and return it, else return ""."""
        sign = self._token
        if self._kind != "sign" or sign not in signs:
            return ""
        self._advance()
        return sign

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            self._fail(f"{sign!r} is missing")

    def _sum(self) -> Expression:
        operands = [self._term()]
        while sign := self._takes("+", "-"):
            operand = self._term()
            operands.append(operand if sign == "+" else Operation("neg", (operand,)))
        return operands[0] if len(operands) == 1 else Operation("+", tuple(operands))

    def _term(self) -> Expression:
        factors = [self._factor()]
        while sign := self._takes("*", "//", "%"):
            if sign == "*":
                factors.append(self._factor())
                continue
            factors = [Operation(sign, (_multiplied(factors), self._factor()))]
        return _multiplied(factors)

    def _factor(self) -> Expression:
        self._level += 1
        if self._level > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep")
        expression = Operation("neg", (self._factor(),)) if self._takes("-") else self._atom()
        self._level -= 1
        return expression

    def _atom(self) -> Expression:
        kind, token = self._kind, self._token
        if kind == "number":
            self._advance()
            return self._number(token)
        if kind == "name":
            self._advance()
            return self._call(token) if token in _FUNCTIONS else Name(token)
        if self._takes("("):
            expression = self._sum()
            self._expect(")")
            return expression
        return self._fail(f"unexpected {token!r}" if token else "it ends too early")

    def _number(self, token: str) -> Number:
        if len(token) > 19 or (len(token) > 1 and token[0] == "0") or int(token) > MAX_SIZE:
            self._fail(f"{_shortened(token)} is no size")
        return Number(int(token))

    def _call(self, function: str) -> Expression:
        self._expect("(")
        operands = [self._sum()]
        while self._takes(","):
            operands.append(self._sum())
        self._expect(")")
        if len(operands) < 2:
            self._fail(f"{function} needs two operands or more")
        return Operation(function, tuple(operands))


def _multiplied(factors: Sequence[Expression]) -> Expression:
    return factors[0] if len(factors) == 1 else Operation("*", tuple(factors))
