"""The semaphores that a consumer's tiles wait for, as bounds that a kernel can compute from tile coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor, lcm

import numpy as np

from tilestitch.passes.plan.sync.edges import Bound, Grouping
from tilestitch.passes.plan.sync.grid import Grid

from .dependence import Needs

MOST_DIVISOR = 1 << 14
"""Largest divisor of a bound, which a kernel computes in 32 bits."""
DENOMINATORS = (64, 8, 1)
"""Largest denominators of slopes, tried in turn until the common denominator is small enough."""


def hulls(needs: Needs, producer: Grid, groupings: Sequence[Grouping]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last semaphore along each dimension that a block needs: [block, dimension]. For a block that
    needs none, the first comes after the last.
    """
    places = np.array(list(producer.places()), np.int64).reshape(producer.blocks, len(producer.dims))
    own = np.stack([np.asarray(g.of(places[:, axis])) for axis, g in enumerate(groupings)], axis=1)
    counts = np.array([g.count for g in groupings], np.int64)
    first = np.array([own[kind].min(axis=0) if len(kind) else counts for kind in needs.kinds])
    last = np.array([own[kind].max(axis=0) if len(kind) else counts * 0 - 1 for kind in needs.kinds])
    kind = np.array(needs.kind, np.int64)
    return first[kind], last[kind]


def bounds_of(
    needs: Needs, producer: Grid, consumer: Grid, groupings: Sequence[Grouping]
) -> tuple[tuple[Bound, ...], tuple[Bound, ...]]:
    """Return bounds that include all that is needed, and as little else as linear functions of the coordinates
    allow.
    """
    first, last = hulls(needs, producer, groupings)
    places = np.array(list(consumer.places()), np.int64).reshape(consumer.blocks, len(consumer.dims))
    wanting = np.asarray((first <= last).all(axis=1))
    lows, highs = [], []
    for axis, grouping in enumerate(groupings):
        lows.append(_bound(places, first[:, axis], wanting, consumer.dims, grouping.count, upper=False))
        highs.append(_bound(places, last[:, axis], wanting, consumer.dims, grouping.count, upper=True))
    return tuple(lows), tuple(highs)


def _bound(
    places: np.ndarray, wanted: np.ndarray, wanting: np.ndarray, dims: Sequence[int], count: int, *, upper: bool
) -> Bound:
    """Return a linear bound below (or above) the needed semaphores. At the ends of a dimension it may go beyond."""
    if not wanting.any():
        return Bound((0,) * len(dims), 0, 0, 1)
    values = np.zeros(tuple(dims), np.int64)
    known = np.zeros(tuple(dims), np.bool_)
    at = tuple(places[wanting].T)
    values[at], known[at] = wanted[wanting], True
    slopes = [_slope(*_line(values, known, axis), count, upper) for axis in range(len(dims))]
    for most in DENOMINATORS:
        if lcm(*(slope.denominator for slope in slopes)) <= MOST_DIVISOR:
            break
        slopes = [slope.limit_denominator(most) for slope in slopes]
    divisor = lcm(*(slope.denominator for slope in slopes))
    scales = [int(slope * divisor) for slope in slopes]
    reached = places[wanting] @ np.array(scales, np.int64)
    low = wanted[wanting] * divisor
    offset = int((low - reached).max() if upper else (low + divisor - 1 - reached).min())
    return _natural(scales, offset, divisor)


def _natural(scales: Sequence[int], offset: int, divisor: int) -> Bound:
    """Return the bound of a line; slopes are never negative: a bound has natural numbers only, and a difference."""
    before = max(0, -offset)
    return Bound(tuple(scales), offset + before, before, divisor)


def _line(values: np.ndarray, known: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the values along an axis, through the middle of the others, and which of them are known."""
    index: list[int | slice] = [size // 2 for size in values.shape]
    index[axis] = slice(None)
    return values[tuple(index)], known[tuple(index)]


def _slope(values: np.ndarray, known: np.ndarray, count: int, upper: bool) -> Fraction:
    """Return the simplest slope of a line whose floors are `values`; that from end to end if there is no such line."""
    at = np.flatnonzero(known)
    if len(at) < 2:
        return Fraction(0)
    rise = Fraction(int(values[at[-1]] - values[at[0]]), int(at[-1] - at[0]))
    if rise >= 0 and rise.denominator == 1 and (values[at] - values[at[0]] == int(rise) * (at - at[0])).all():
        return rise  # such as row after row: thousands of points, all of whose pairs need not be examined
    at = at[_ends_of_runs(values[at])]
    low, high = values[at].astype(np.float64), values[at] + 1.0
    # Beyond the ends of the dimension there is nothing to wait for.
    low[values[at] == 0 if not upper else np.zeros(len(at), np.bool_)] = -np.inf
    high[values[at] == count - 1 if upper else np.zeros(len(at), np.bool_)] = np.inf
    earlier, later = np.triu_indices(len(at), 1)
    apart = at[later] - at[earlier]
    least = float(np.max((low[later] - high[earlier]) / apart))
    most = float(np.min((high[later] - low[earlier]) / apart))
    if least < 0 < most:
        return Fraction(0)
    if least < most and most > 0:
        return _simplest(max(0.0, least), most)
    return max(Fraction(0), rise)


def _ends_of_runs(values: np.ndarray) -> np.ndarray:
    """Return which values begin or end a run of equal values: other points do not restrict the slope."""
    other = values[1:] != values[:-1]
    return np.concatenate([[True], other]) | np.concatenate([other, [True]])


def _simplest(least: float, most: float) -> Fraction:
    """Return the fraction with the smallest denominator strictly between two numbers."""
    whole = floor(least)
    if whole + 1 < most:
        return Fraction(whole + 1)
    inverse_least = 1 / (most - whole)
    inverse_most = float("inf") if least == whole else 1 / (least - whole)
    return whole + 1 / _simplest(inverse_least, inverse_most)
