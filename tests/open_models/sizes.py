"""Sizes at which a model with open dimensions is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle

import numpy as np

Sizes = Mapping[str, int]
Ranges = Mapping[str, tuple[int, int]]
"""Least and greatest size of each open dimension."""
Feeds = dict[str, np.ndarray]
MakeFeeds = Callable[[Sizes, np.random.Generator], Feeds]

POINTS = 12


def spread(ranges: Ranges, points: int = POINTS) -> list[Sizes]:
    """So many different sizes: both ends of all ranges, and between them powers of two and primes, about evenly in the
    logarithm. Each further dimension runs through its ladder at another pace, so that long meets short.
    """
    ladders = {name: ladder(low, high, points) for name, (low, high) in ranges.items()}
    inner = points - 2
    rows: list[Sizes] = [{name: steps[0] for name, steps in ladders.items()}]
    for row in range(inner):
        rows.append(
            {name: steps[1 + (row * pace + number) % inner]
             for number, (pace, (name, steps)) in enumerate(zip(cycle((1, 3, 7, 9)), ladders.items(), strict=False))}
        )  # fmt: skip
    return [*rows, {name: steps[-1] for name, steps in ladders.items()}]


def ladder(low: int, high: int, steps: int) -> list[int]:
    """LOW, HIGH and ascending sizes between, in turns the nearest power of two and the nearest prime; all sizes of the
    range, some of them repeated, if it has not so many.
    """
    count = high - low + 1
    if count <= steps:
        return [low + number * count // steps for number in range(steps)]
    powers = [2**exponent for exponent in range(high.bit_length())]
    primes = [n for n in range(2, high) if all(n % d for d in range(2, int(n**0.5) + 1))]
    chosen = {low, high}
    for number, at in enumerate(np.geomspace(max(low, 1), high, steps)[1:-1]):
        preferred = [n for n in (primes, powers)[number % 2] if low < n < high and n not in chosen]
        free = preferred or [n for n in range(low, high) if n not in chosen]
        chosen.add(min(free, key=lambda n: abs(np.log(max(n, 0.5) / at))))
    return sorted(chosen)
