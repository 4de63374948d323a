"""Results of two plans: numbers agree but for rounding, all else exactly, and what is drawn at random is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tilestitch.compiler.tune.timing import why_other_results


class Answering:
    """A module whose runs have these results, one after the other; the last one again and again."""

    def __init__(self, *results: Any) -> None:
        self.left: Sequence[Any] = results

    def run(self, _: Any) -> dict[str, Any]:
        first, *rest = self.left
        self.left = rest or self.left
        return {"y": first}


def differ(one: Any, *others: Any) -> bool:
    return why_other_results(Answering(one), Answering(*others), {}) is not None  # type: ignore[arg-type]


TEXTS = np.array(["a", "b"], object)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (np.array([1.0, np.nan]), np.array([1.001, np.nan]), np.array([1.0, 2.0])),
        (np.array([1 + 1j]), np.array([1 + 1j]), np.array([1 + 2j])),
        (np.array([True]), np.array([True]), np.array([False])),
        (np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 4))),
        (np.zeros((1, 3)), np.zeros((1, 3)), np.zeros((3,))),
        (TEXTS, TEXTS.copy(), np.array(["a", "c"], object)),
        ([np.zeros(3), np.zeros((2, 5))], [np.zeros(3), np.zeros((2, 5))], [np.zeros(3), np.ones((2, 5))]),
        ([np.zeros(3)], [np.zeros(3)], []),
        ([TEXTS], [TEXTS], [TEXTS[::-1]]),
        ({"a": np.ones(2)}, {"a": np.ones(2)}, {"b": np.ones(2)}),
        (None, None, np.ones(1)),
    ],
    ids=["nan", "complex", "bool", "empty", "rank", "texts", "sequence", "length", "texts of a list", "map", "none"],
)
def test_results_of_all_types_are_compared(one: Any, same: Any, other: Any) -> None:
    assert not differ(one, same)
    assert differ(one, other)


def test_random_results_are_not_compared() -> None:
    drawn = [np.array([number]) for number in range(9)]
    assert not differ(*drawn)
    assert differ(drawn[0], drawn[1])
