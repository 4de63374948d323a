"""How times of overlapping work combine, and waves of thread blocks: how often tiles fill a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np


def smooth_max(first: Any, second: Any, sharpness: Any) -> Any:
    """Return the `p`-norm of two times: between the larger (sharpness infinite) and their sum (sharpness 1).

    With perfect overlap the longer time counts; near the corner of a roofline overlap is never perfect.
    """
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    safe = np.where(larger > 0, larger, 1.0)
    return larger * (1.0 + (smaller / safe) ** sharpness) ** (1.0 / sharpness)


def waves_apart(tiles: Sequence[int], slots: Sequence[int]) -> int:
    """Return the waves of kernels in sequence: the last wave of each counts in full. slots: resident blocks of each."""
    return sum(ceil(count / held) for count, held in zip(tiles, slots, strict=True))


def waves_together(tiles: Sequence[int], slots: int) -> float:
    """Return the waves of kernels with tile-level waits: each fills up the last wave of its predecessor."""
    return sum(tiles) / slots
