"""Vectorised check of a program's requirements on its sizes, all of a kind at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .requirements import Apart, AtMost, Multiple, Problem, Requirement, Sum
from .size_table import SizeTable
from .sizes import Size

AT_MOST, MULTIPLE, APART = range(3)


def rules_of(requirements: Sequence[Requirement], table: SizeTable) -> dict[tuple[int, ...], Requirement]:
    """Return the first of each set of equal requirements, whose message holds for the others, too, by what `ts_resize`
    (`codegen/cpu/resize.c`) knows of it: the kind, and six places of sizes, or a divisor.
    """

    def places(*sums: Sum) -> tuple[int, ...]:
        return tuple(table.place(size) for sizes in sums for size in _pair_of(sizes))

    rules: dict[tuple[int, ...], Requirement] = {}
    for required in requirements:
        match required:
            case AtMost(left, right):
                rule = AT_MOST, *places(left, right), 0, 0
            case Multiple(sizes, divisor):
                rule = MULTIPLE, *places(sizes), divisor, 0, 0, 0
            case Apart(first, first_nbytes, second, second_nbytes):
                rule = APART, *places(first, second, (first_nbytes, second_nbytes))
        rules.setdefault(rule, required)
    return rules


class Required:
    """The requirements of one program. `table` has their sizes (`required_sizes`)."""

    def __init__(self, requirements: Sequence[Requirement], table: SizeTable) -> None:
        rules = rules_of(requirements, table)
        rows = np.array([*rules], np.int64).reshape(-1, 7)
        self._kinds = [
            (holds, rows[rows[:, 0] == kind, 1:].T.copy(), [each for rule, each in rules.items() if rule[0] == kind])
            for kind, holds in enumerate((_at_most, _multiple, _apart))
        ]

    def problem(self, values: np.ndarray) -> Problem | None:
        """Return the message of a requirement that these values of the table violate; None if all hold."""
        for holds, places, requirements in self._kinds:
            if requirements and not (fine := holds(values, places)).all():
                return requirements[int(fine.argmin())].problem
        return None


def _at_most(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    one, two, three, four = values[places[:4]]
    return one + two <= three + four


def _multiple(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    return (values[places[0]] + values[places[1]]) % places[2] == 0


def _apart(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    one, two, three, four, nbytes, others = values[places]
    first, second = one + two, three + four
    return (first >= second + others) | (second >= first + nbytes) | (nbytes <= 0) | (others <= 0)


def required_sizes(requirements: Sequence[Requirement]) -> Iterator[Size | Sum]:
    """Yield all sizes that are needed to check the requirements."""
    for required in requirements:
        match required:
            case AtMost(left, right):
                yield from (*_pair_of(left), *_pair_of(right))
            case Multiple(sizes):
                yield from _pair_of(sizes)
            case Apart(first, first_nbytes, second, second_nbytes):
                yield from (*_pair_of(first), first_nbytes, *_pair_of(second), second_nbytes)


def _pair_of(sizes: Sum) -> tuple[Size | Sum, Size | Sum]:
    """Return two sizes with the same sum."""
    if len(sizes) > 2:
        return sizes, 0
    one, other = (*sizes, 0)[:2]
    return one, other
