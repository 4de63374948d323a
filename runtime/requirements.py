"""Requirements on a program's sizes: checked at once where they are numbers, else kept until their symbols have
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

from .dtypes import ITEM_BYTES
from .sizes import Expression, Size, SizeError, multiplied, names, parse
from .symbols import Symbol
from .types import TensorType

Problem: TypeAlias = Callable[[], str]
"""Function that returns the message."""

Sum: TypeAlias = tuple[Size, ...]
"""Sizes to be added, mostly one or two."""


@dataclass(frozen=True)
class AtMost:
    """Requirement that the sum `left` is at most the sum `right`."""

    left: Sum
    right: Sum
    problem: Problem


@dataclass(frozen=True)
class Multiple:
    """Requirement that a sum is a multiple of `divisor`."""

    sizes: Sum
    divisor: int
    problem: Problem


@dataclass(frozen=True)
class Apart:
    """Requirement that the bytes from the sum `first` on and those from the sum `second` on do not overlap."""

    first: Sum
    first_nbytes: Size
    second: Sum
    second_nbytes: Size
    problem: Problem


Requirement: TypeAlias = AtMost | Multiple | Apart


class Requirements:
    """Collector of one program's requirements. `fail` raises with its message."""

    def __init__(self, symbols: Sequence[Symbol], fail: Callable[[str], NoReturn]) -> None:
        self._symbols = frozenset(symbol.name for symbol in symbols)
        self._fail = fail
        self._texts: set[str] = set()
        self.kept: list[Requirement] = []

    def at_most(self, left: Sum, right: Sum, problem: Problem) -> None:
        if not self._are_numbers(left + right):
            self.kept.append(AtMost(left, right, problem))
        elif _total(left) > _total(right):
            self._fail(problem())

    def within(self, size: Size, low: int, high: int, what: str) -> None:
        """Require a size from `low` to `high`."""
        self.at_most((low,), (size,), lambda: f"{what} is {size}; at least {low}")
        self.at_most((size,), (high,), lambda: f"{what} is {size}; at most {high}")

    def multiple(self, sizes: Sum, divisor: int, problem: Problem) -> None:
        if not self._are_numbers(sizes):
            self.kept.append(Multiple(sizes, divisor, problem))
        elif _total(sizes) % divisor:
            self._fail(problem())

    def apart(self, first: Sum, first_nbytes: Size, second: Sum, second_nbytes: Size, problem: Problem) -> None:
        if not self._are_numbers((*first, first_nbytes, *second, second_nbytes)):
            self.kept.append(Apart(first, first_nbytes, second, second_nbytes, problem))
            return
        starts, ends = (
            (_total(first), _total(second)),
            (_total((*first, first_nbytes)), _total((*second, second_nbytes))),
        )
        if starts[0] < ends[1] and starts[1] < ends[0] and first_nbytes and second_nbytes:
            self._fail(problem())

    def nbytes(self, type_: object) -> Size | None:
        """Return the bytes of a value of this type; None if they are known only once it is computed."""
        if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in ITEM_BYTES:
            return None
        if not all(isinstance(size, int) or is_expression(size, self._symbols) for size in type_.shape):
            return None
        return multiplied((ITEM_BYTES[type_.dtype], *type_.shape))

    def known(self, text: str, what: str) -> None:
        """Require the text to be an expression over the program's symbols."""
        if not self._symbols:
            self._fail(f"{what} is {text!r}, but the program has no symbols")
        try:
            unknown = [name for name in names(parsed(text)) if name not in self._symbols]
        except SizeError as error:
            self._fail(f"{what}: {error}")
        if unknown:
            self._fail(f"{what} is {text!r}, but the program has no symbol {unknown[0]!r}")

    def _are_numbers(self, sizes: Iterable[Size]) -> bool:
        texts = [size for size in sizes if isinstance(size, str)]
        for text in texts:
            if text not in self._texts:
                self.known(text, "a size")
                self._texts.add(text)
        return not texts


@lru_cache(4096)
def is_expression(text: str, symbols: frozenset[str]) -> bool:
    """Return whether a dimension is an expression over these symbols, rather than the name of a size that is known only
    once the value is computed.
    """
    try:
        used = names(parsed(text))
    except SizeError:
        return False
    return bool(used) and symbols.issuperset(used)


@lru_cache(4096)
def parsed(text: str) -> Expression:
    return parse(text)


def _total(sizes: Sum) -> int:
    return sum(size for size in sizes if isinstance(size, int))
