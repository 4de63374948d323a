"""Vectorised check of a program's requirements on its sizes, all of a kind at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
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
        self._divisors = np.array([r.divisor for r in self._multiples], np.int64)
        parts: list[list[Sum]] = [
            [r.left for r in self._most],
            [r.right for r in self._most],
            [r.sizes for r in self._multiples],
            [r.first for r in self._apart],
            [r.second for r in self._apart],
            [(r.first_nbytes,) for r in self._apart],
            [(r.second_nbytes,) for r in self._apart],
        ]
        pairs = [pair_of(sizes) for part in parts for sizes in part]
        self._one = table.places(one for one, _ in pairs)
        self._other = table.places(other for _, other in pairs)
        ends = [*accumulate(map(len, parts), initial=0)]
        self._parts = [slice(*part) for part in pairwise(ends)]

    def problem(self, values: np.ndarray) -> Problem | None:
        """Return the message of a requirement that these values of the table violate; None if all hold."""
        sums = values[self._one] + values[self._other]
        left, right, divided, first, second, first_nbytes, second_nbytes = [sums[part] for part in self._parts]
        broken = left > right
        if broken.any():
            return self._most[int(broken.argmax())].problem
        broken = divided % self._divisors != 0
        if broken.any():
            return self._multiples[int(broken.argmax())].problem
        if not self._apart:
            return None
        broken = (first < second + second_nbytes) & (second < first + first_nbytes)
        broken &= (first_nbytes > 0) & (second_nbytes > 0)
        return self._apart[int(broken.argmax())].problem if broken.any() else None


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
