"""Sizes of dimensions: integers, or expressions over named symbols with ranges (`polynomial`).

To the type checker an expression is an integer, since code for integers works on expressions as well; at run time it is
not, so that no code silently takes it for a number: `range`, numpy and int() raise UndecidedError.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from . import polynomial
from .errors import IRError, UndecidedError
from .polynomial import FAR, Polynomial, Quotient, Symbol, positive_quotients

if TYPE_CHECKING:
    Size = int
    """An integer, or an expression over symbols."""
else:
    Size = int | Polynomial

__all__ = [
    "FAR", "Quotient", "Size", "Symbol", "as_size", "at", "bounds_of", "ceil_div", "divisor_of", "divisors_of",
    "if_any", "is_empty_without", "is_name", "is_open", "largest", "over", "parse_size", "perhaps_empty",
    "positive", "positive_quotients", "quotients_where_zero", "shortened",
    "size_of", "smallest", "surely", "symbols_of", "typical", "where_zero", "with_quotient",
]  # fmt: skip


def size_of(symbol: Symbol) -> Size:
    """Return a symbol as a size."""
    open_ = symbol.low < symbol.high or symbol.or_empty
    return _as_int(Polynomial({(symbol,): 1}) if open_ else symbol.low)


def at(size: Size, values: Mapping[str, Size]) -> Size:
    """Return the size with some symbols replaced, by name."""
    return _as_int(polynomial.at(size, values))


def over(size: Size, symbols: Mapping[str, Symbol]) -> Size:
    """Return the same expression over symbols with other ranges, by name; nothing is simplified by these."""
    return _as_int(polynomial.over(size, symbols))


def perhaps_empty(size: Size) -> Size:
    """Return the size over ranges that include 0 for symbols that may be 0, which proofs ignore otherwise."""
    return over(size, {s.name: replace(s, low=0) for s in symbols_of([size]) if s.or_empty})


def if_any(symbol: Symbol) -> Size:
    """Return an expression that is 1, but 0 where a symbol is 0, whatever its range."""
    return _as_int(polynomial.if_any(symbol))


def positive(size: Size) -> Size:
    """Return the size, but 1 or more where it is 0, also where a symbol is 0 that may be, which proofs ignore."""
    empty = sorted((s for s in symbols_of([size]) if s.or_empty), key=lambda symbol: symbol.name)
    return largest(1, size) + 1 - math.prod(map(if_any, empty))


def where_zero(size: Size) -> Size:
    """Return a simpler size that is 0 wherever this one is, without common factors; see `polynomial.where_zero`."""
    simple = _as_int(polynomial.where_zero(size))
    return simple // divisor_of(simple) if is_open(simple) else simple


def quotients_where_zero(size: Size) -> Iterator[tuple[Quotient, Size]]:
    """Yield quotients with their values where a size is 0; see `polynomial.quotients_where_zero`."""
    yield from ((quotient, _as_int(value)) for quotient, value in polynomial.quotients_where_zero(size))


def with_quotient(size: Size, quotient: Quotient, value: Size) -> Size:
    """Return a size with another value in place of a quotient that is among its factors."""
    return _as_int(polynomial.with_quotient(size, quotient, value))


def is_empty_without(size: Size, *names: str) -> bool:
    """Return whether a size is 0 where some symbols are; False for one that has no value there."""
    try:
        return (not is_open(size) and size == 0) or at(size, dict.fromkeys(names, 0)) == 0
    except (UndecidedError, ZeroDivisionError):
        return False


def is_open(size: object) -> bool:
    """Return whether it is an expression over symbols, without a value before run time."""
    return isinstance(size, Polynomial)


def as_size(value: Any) -> Size:
    """Return an integer of any kind as a Python integer, an expression as it is."""
    return _as_int(value) if isinstance(value, Polynomial) else operator.index(value)


def bounds_of(size: Size) -> tuple[int, int]:
    """Return bounds over the ranges of its symbols, not always tight."""
    return polynomial.bounds_of(size)


def symbols_of(sizes: Iterable[object]) -> frozenset[Symbol]:
    """Return the symbols in some sizes."""
    return frozenset(s for size in sizes if isinstance(size, Polynomial) for s in size.symbols)


def largest(a: Size, *others: Size) -> Size:
    """Return the maximum of some sizes, an expression where it is open."""
    for b in others:
        a = _as_int(polynomial.largest(a, b))
    return a


def smallest(a: Size, *others: Size) -> Size:
    """Return the minimum of some sizes, an expression where it is open."""
    for b in others:
        a = _as_int(polynomial.smallest(a, b))
    return a


def ceil_div(size: Size, divisor: Size) -> Size:
    """Return `size / divisor` rounded up."""
    return (size + divisor - 1) // divisor


def divisor_of(size: Size) -> int:
    """Return the largest constant that provably divides a size."""
    return math.gcd(*size.terms.values()) if isinstance(size, Polynomial) else abs(size)


def divisors_of(sizes: Iterable[Size], symbol: Symbol) -> frozenset[int]:
    """Return the numbers by which a symbol is divided in some sizes."""
    return frozenset(d for size in sizes if isinstance(size, Polynomial) for d in polynomial.divisors_of(size, symbol))


def surely(condition: Callable[[], bool]) -> bool:
    """Return whether a condition is known to hold for all sizes of the ranges."""
    try:
        return bool(condition())
    except UndecidedError:
        return False


def typical(size: Size, values: Mapping[str, int]) -> int:
    """Return the value of a size for these values of symbols. Raises IRError for a symbol without one."""
    value = at(size, values)
    if isinstance(value, Polynomial):
        raise IRError(f"size {size} has no value: symbols {', '.join(sorted(map(str, value.symbols)))} have none")
    return value


MOST_SHOWN = 160
"""Most characters of a malformed size that a message shows."""

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg,
}  # fmt: skip


def parse_size(text: str, symbols: Mapping[str, Size], *, as_written: bool = False) -> Size:
    """Parse a size over `symbols`, by name. as_written: it was printed, perhaps when the ranges of symbols were others
    (see `over`), and nothing is to be simplified. Raises IRError for a malformed one.
    """
    problem: Exception
    try:
        return _parsed(ast.parse(text.strip(), mode="eval").body, symbols, as_written)
    except (RecursionError, MemoryError):  # ast raises both
        problem = ValueError("nested too deeply, or of too many terms")
    except (SyntaxError, KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        problem = ValueError(shortened(str(error)))
    raise IRError(f"{shortened(text)!r} is no size over {', '.join(symbols) or 'no symbols'} ({problem})") from problem


def is_name(text: str) -> bool:
    """Return whether expressions can use a name: Python's words and the functions of sizes are none."""
    return text.isidentifier() and not iskeyword(text) and text not in ("max", "min")


def shortened(text: str) -> str:
    """Return what a message shows of a text."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _parsed(node: ast.AST, symbols: Mapping[str, Size], as_written: bool) -> Size:
    def parsed(node: ast.AST) -> Size:
        return _parsed(node, symbols, as_written)

    match node:
        case ast.Constant(value=number) if type(number) is int:
            return number
        case ast.Name(id=name):
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -parsed(operand)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right) if as_written:
            return _as_int(polynomial.unsimplified("//", parsed(left), parsed(right)))
        case ast.BinOp(left=left, op=op, right=right):
            return as_size(_OPERATORS[type(op)](parsed(left), parsed(right)))
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=[first, second], keywords=[]) if as_written:
            return _as_int(polynomial.unsimplified(name, parsed(first), parsed(second)))
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=args, keywords=[]):
            return (largest if name == "max" else smallest)(*map(parsed, args))
    raise ValueError(f"{ast.unparse(node) if isinstance(node, ast.expr) else node} is none of + - * // % max min")


def _as_int(size: polynomial.Integer) -> Size:
    return size  # type: ignore[return-value]
