"""Vectorised check of a program's requirements on its sizes, all of a kind at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .requirements import Apart, AtMost, Multiple, Problem, Requirement, Sum
from .size_table import SizeTable
from .sizes import Size

AT_MOST = 0
_KINDS = AtMost, Multiple, Apart


def rules_of(requirements: Sequence[Requirement], table: SizeTable) -> dict[tuple[int, ...], Requirement]:
    """Return the first of equal requirements, whose message holds for the others, too, by what `ts_resize` knows of it:
    the kind, and six places of sizes, or a divisor after two.
    """
    rules: dict[tuple[int, ...], Requirement] = {}
    for required in requirements:
        rule = [_KINDS.index(type(required)), *map(table.place, _sizes_of(required))]
        rule += [required.divisor] if isinstance(required, Multiple) else []
        rules.setdefault((*rule, *[0] * (7 - len(rule))), required)
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
    return (size for required in requirements for size in _sizes_of(required))


def _sizes_of(required: Requirement) -> list[Size | Sum]:
    match required:
        case AtMost(left, right):
            sums = [left, right]
        case Multiple(sizes):
            sums = [sizes]
        case Apart(first, first_nbytes, second, second_nbytes):
            sums = [first, second, (first_nbytes, second_nbytes)]
    return [size for each in sums for size in _pair_of(each)]


def _pair_of(sizes: Sum) -> tuple[Size | Sum, Size | Sum]:
    """Return two sizes with the same sum."""
    if len(sizes) > 2:
        return sizes, 0
    one, other = (*sizes, 0)[:2]
    return one, other
