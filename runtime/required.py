"""Vectorised check of a program's requirements on its sizes, all of a kind at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from .requirements import Apart, AtMost, Multiple, Problem, Requirement, Sum
from .size_table import SizeTable
from .sizes import Size

__all__ = ["Required", "pair_of", "required_sizes"]

R = TypeVar("R", AtMost, Multiple, Apart)


class Required:
    """The requirements of one program. `table` has their sizes (`required_sizes`)."""

    def __init__(self, requirements: Sequence[Requirement], table: SizeTable) -> None:
        self._most = _distinct([r for r in requirements if isinstance(r, AtMost)])
        self._multiples = _distinct([r for r in requirements if isinstance(r, Multiple)])
        self._apart = _distinct([r for r in requirements if isinstance(r, Apart)])
        self._left = _Sums([r.left for r in self._most], table)
        self._right = _Sums([r.right for r in self._most], table)
        self._divided = _Sums([r.sizes for r in self._multiples], table)
        self._divisors = np.array([r.divisor for r in self._multiples], np.int64)
        self._first = _Sums([r.first for r in self._apart], table)
        self._second = _Sums([r.second for r in self._apart], table)
        self._first_nbytes = table.places(r.first_nbytes for r in self._apart)
        self._second_nbytes = table.places(r.second_nbytes for r in self._apart)

    def problem(self, values: np.ndarray) -> Problem | None:
        """Return the message of a requirement that these values of the table violate; None if all hold."""
        broken = self._left.of(values) > self._right.of(values)
        if broken.any():
            return self._most[int(broken.argmax())].problem
        broken = self._divided.of(values) % self._divisors != 0
        if broken.any():
            return self._multiples[int(broken.argmax())].problem
        if not self._apart:
            return None
        first, second = self._first.of(values), self._second.of(values)
        first_nbytes, second_nbytes = values[self._first_nbytes], values[self._second_nbytes]
        broken = (first < second + second_nbytes) & (second < first + first_nbytes)
        broken &= (first_nbytes > 0) & (second_nbytes > 0)
        return self._apart[int(broken.argmax())].problem if broken.any() else None


class _Sums:
    """Sums of two sizes each."""

    def __init__(self, sums: Sequence[Sum], table: SizeTable) -> None:
        pairs = [pair_of(sizes) for sizes in sums]
        self._one = table.places(one for one, _ in pairs)
        self._other = table.places(other for _, other in pairs)

    def of(self, values: np.ndarray) -> np.ndarray:
        total: np.ndarray = values[self._one] + values[self._other]
        return total


def required_sizes(requirements: Sequence[Requirement]) -> Iterator[Size | Sum]:
    """Yield all sizes that are needed to check the requirements."""
    for required in requirements:
        match required:
            case AtMost(left, right):
                yield from (*pair_of(left), *pair_of(right))
            case Multiple(sizes):
                yield from pair_of(sizes)
            case Apart(first, first_nbytes, second, second_nbytes):
                yield from (*pair_of(first), first_nbytes, *pair_of(second), second_nbytes)


def pair_of(sizes: Sum) -> tuple[Size | Sum, Size | Sum]:
    """Return two sizes with the same sum."""
    if len(sizes) > 2:
        return sizes, 0
    one, other = (*sizes, 0)[:2]
    return one, other


def _distinct(requirements: Sequence[R]) -> list[R]:
    """Return one requirement of each set of equal ones; its message holds for the others, too."""
    return list({_key(required): required for required in reversed(requirements)}.values())[::-1]


def _key(required: Requirement) -> object:
    match required:
        case AtMost(left, right):
            return left, right
        case Multiple(sizes, divisor):
            return sizes, divisor
        case Apart(first, first_nbytes, second, second_nbytes):
            return first, first_nbytes, second, second_nbytes
