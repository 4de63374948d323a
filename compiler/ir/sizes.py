"""Sizes of dimensions: integers, or expressions over named symbols with ranges (`polynomial`).

To the type checker an expression is an integer, since what computes with integers computes with expressions as well;
when the program runs it is none, so that nothing takes a number from it unseen:
`range`, numpy and int() raise UndecidedError.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import polynomial
from .errors import IRError, UndecidedError
from .polynomial import FAR, Polynomial, Symbol

if TYPE_CHECKING:
    Size = int
    """An integer, or an expression over symbols."""
else:
    Size = int | Polynomial

__all__ = [
    "FAR", "Size", "Symbol", "as_size", "at", "bounds_of", "ceil_div", "divisor_of", "divisors_of", "if_any",
    "is_empty_without", "is_open", "largest", "over", "parse_size", "perhaps_empty", "size_of", "smallest", "surely",
    "symbols_of", "typical", "where_zero",
]  # fmt: skip


def size_of(symbol: Symbol) -> Size:
    """A symbol as a size."""
    open_ = symbol.low < symbol.high or symbol.or_empty
    return _as_int(Polynomial({(symbol,): 1}) if open_ else symbol.low)


def at(size: Size, values: Mapping[str, Size]) -> Size:
    """The size with some symbols replaced, by name."""
    return _as_int(polynomial.at(size, values))


def over(size: Size, symbols: Mapping[str, Symbol]) -> Size:
    """The same expression over symbols of other ranges, by name; nothing in it is decided by these."""
    return _as_int(polynomial.over(size, symbols))


def perhaps_empty(size: Size) -> Size:
    """The size over ranges that begin with 0 where a symbol may be that, which proofs leave out elsewhere."""
    return over(size, {s.name: replace(s, low=0) for s in symbols_of([size]) if s.or_empty})


def if_any(symbol: Symbol) -> Size:
    """1, but 0 where a symbol is 0, whatever its range says."""
    return _as_int(polynomial.if_any(symbol))


def where_zero(size: Size) -> Size:
    """A size that is 0 wherever this one is, without the larger or smaller of two where only one of them can be."""
    return _as_int(polynomial.where_zero(size))


def is_empty_without(size: Size, symbol: Symbol) -> bool:
    """Whether a size is 0 where a symbol is; no for one that has no value there."""
    try:
        return (not is_open(size) and size == 0) or at(size, {symbol.name: 0}) == 0
    except (UndecidedError, ZeroDivisionError):
        return False


def is_open(size: object) -> bool:
    """Whether it is an expression over symbols, which has no value before run time."""
    return isinstance(size, Polynomial)


def as_size(value: Any) -> Size:
    """An integer of any kind as a Python integer; an expression as it is."""
    return _as_int(value) if isinstance(value, Polynomial) else operator.index(value)


def bounds_of(size: Size) -> tuple[int, int]:
    """The least and the largest value that the ranges of its symbols allow."""
    return polynomial.bounds_of(size)


def symbols_of(sizes: Iterable[object]) -> frozenset[Symbol]:
    """The symbols in some sizes."""
    return frozenset(s for size in sizes if isinstance(size, Polynomial) for s in size.symbols)


def largest(a: Size, *others: Size) -> Size:
    """The largest of some sizes, as an expression where that is open."""
    for b in others:
        a = _as_int(polynomial.largest(a, b))
    return a


def smallest(a: Size, *others: Size) -> Size:
    """The smallest of some sizes, as an expression where that is open."""
    for b in others:
        a = _as_int(polynomial.smallest(a, b))
    return a


def ceil_div(size: Size, divisor: Size) -> Size:
    """How many parts of `divisor` cover `size`."""
    return (size + divisor - 1) // divisor


def divisor_of(size: Size) -> int:
    """The largest number that certainly divides a size, whatever its symbols are."""
    return math.gcd(*size.terms.values()) if isinstance(size, Polynomial) else abs(size)


def divisors_of(sizes: Iterable[Size], symbol: Symbol) -> frozenset[int]:
    """The numbers by which a symbol is divided in some sizes."""
    return frozenset(d for size in sizes if isinstance(size, Polynomial) for d in polynomial.divisors_of(size, symbol))


def surely(condition: Callable[[], bool]) -> bool:
    """Whether a condition holds for all sizes of the ranges; no where that is not known."""
    try:
        return bool(condition())
    except UndecidedError:
        return False


def typical(size: Size, values: Mapping[str, int]) -> int:
    """The value of a size where symbols have these values. Raises IRError for a symbol without one."""
    value = at(size, values)
    if isinstance(value, Polynomial):
        raise IRError(f"size {size} has no value: symbols {', '.join(sorted(map(str, value.symbols)))} have none")
    return value


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg,
}  # fmt: skip


def parse_size(text: str, symbols: Mapping[str, Size]) -> Size:
    """The size that `text` stands for, its names those of `symbols`. Raises IRError for what is no such expression."""
    try:
        return _parsed(ast.parse(text.strip(), mode="eval").body, symbols)
    except (SyntaxError, KeyError, ValueError, TypeError) as error:
        raise IRError(f"{text!r} is no size over {', '.join(symbols) or 'no symbols'} ({error})") from error


def _parsed(node: ast.AST, symbols: Mapping[str, Size]) -> Size:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_parsed(operand, symbols)
        case ast.BinOp(left=left, op=op, right=right):
            return as_size(_OPERATORS[type(op)](_parsed(left, symbols), _parsed(right, symbols)))
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=args):
            operands: Sequence[Size] = [_parsed(arg, symbols) for arg in args]
            return largest(*operands) if name == "max" else smallest(*operands)
    raise ValueError(f"{ast.unparse(node) if isinstance(node, ast.expr) else node} is none of + - * // % max min")


def _as_int(size: polynomial.Integer) -> Size:
    return size  # type: ignore[return-value]
