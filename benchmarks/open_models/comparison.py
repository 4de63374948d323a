"""How near results are to those of another engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.compiled import assert_close
from tests.tolerances import MODELS as TOLERANCES

OWN_DIFFERENCES = 4.0


def difference_of(got: Sequence[Any], wanted: Sequence[Any]) -> str:
    """What differs by more than the tolerances of tests; "" if nothing does."""
    try:
        for actual, expected in zip(got, wanted, strict=True):
            assert_close(actual, expected, TOLERANCES.get(str(expected.dtype), 0.0))
    except (AssertionError, ValueError) as error:
        return str(error).strip().splitlines()[0]
    return ""


def in_order_of(got: Sequence[Any], wanted: Sequence[Any]) -> list[Any] | None:
    """The same rows of all results in another order, that in which each is nearest to what is wanted: boxes of nearly
    one score, which rounding puts in one order or the other. None where results are no such rows.
    """
    lengths = {np.shape(array)[:1] for array in (*got, *wanted)}
    if len(got) != len(wanted) or len(lengths) != 1 or lengths == {()}:
        return None
    (count,) = lengths.pop()
    scales = [max(1e-30, float(np.abs(np.asarray(array, np.float64)).max(initial=0.0))) for array in wanted]

    def rows(arrays: Sequence[Any]) -> Any:
        flat = [np.asarray(a, np.float64).reshape(count, -1) / scale for a, scale in zip(arrays, scales, strict=True)]
        return np.concatenate(flat, 1)

    if any(np.shape(one) != np.shape(other) for one, other in zip(got, wanted, strict=True)) or not count:
        return None
    ours, left, order = rows(got), list(range(count)), []
    for row in rows(wanted):
        nearest = int(np.abs(ours[left] - row).max(1).argmin())
        order.append(left.pop(nearest))
    return [np.asarray(array)[order] for array in got]


def is_no_further(got: Sequence[Any], wanted: Sequence[Any], as_written: Sequence[Any]) -> bool:
    """Whether results differ from ONNX Runtime's about as much as these do with and without its optimisations: a
    detector with random weights has boxes of nearly the same score, which rounding puts in one order or the other.
    """
    for ours, one, other in zip(got, wanted, as_written, strict=True):
        if not ours.shape == one.shape == other.shape or ours.dtype != one.dtype:
            return False
        if min(apart(ours, one), apart(ours, other)) > OWN_DIFFERENCES * apart(one, other):
            return False
    return True


def apart(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max(initial=0.0))


def error_of(got: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest distance of an element, as a part of its output's largest magnitude or of 1."""
    return max(
        apart(ours, one) / max(1.0, float(np.abs(np.asarray(one, np.float64)).max(initial=0.0)))
        for ours, one in zip(got, wanted, strict=True)
    )
