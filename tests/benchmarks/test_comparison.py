"""How the results of detectors are judged."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from benchmarks.open_models.comparison import difference_of, in_order_of

RANDOM = np.random.default_rng(0)
BOXES = RANDOM.random((50, 4), np.float32) * 100
SCORES = np.full(50, 0.5, np.float32)
LABELS = RANDOM.integers(0, 9, 50)
FOUND = [BOXES, SCORES, LABELS]


def test_the_same_rows_in_another_order_are_put_in_order() -> None:
    order = RANDOM.permutation(50)
    got = [array[order] for array in FOUND]
    assert difference_of(got, FOUND)
    ordered = in_order_of(got, FOUND)
    assert ordered is not None
    assert not difference_of(ordered, FOUND)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_row_that_is_another_is_a_difference_in_any_order(number: int) -> None:
    got = [array.copy() for array in FOUND]
    got[number][7] = got[number][7] + 1
    ordered = in_order_of(got, FOUND)
    assert ordered is not None
    assert difference_of(ordered, FOUND)


def test_a_row_that_is_there_once_serves_once() -> None:
    twice = [np.concatenate([array[:1], array[:-1]]) for array in FOUND]
    ordered = in_order_of(twice, FOUND)
    assert ordered is not None
    assert difference_of(ordered, FOUND)


def test_other_numbers_of_rows_and_scalars_have_no_order() -> None:
    assert in_order_of([array[:-1] for array in FOUND], FOUND) is None
    assert in_order_of([np.float32(1)], [np.float32(2)]) is None
    assert in_order_of([BOXES, SCORES], [SCORES, BOXES]) is None
    assert in_order_of([array[:0] for array in FOUND], [array[:0] for array in FOUND]) is None
