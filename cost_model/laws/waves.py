"""Waves of thread blocks: how often tiles fill a GPU, with kernels in sequence or overlapping."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def waves_apart(tiles: Sequence[int], slots: Sequence[int]) -> int:
    """Return the waves of kernels in sequence: the last wave of each counts in full. slots: resident blocks of each."""
    return sum(ceil(count / held) for count, held in zip(tiles, slots, strict=True))


def waves_together(tiles: Sequence[int], slots: int) -> float:
    """Return the waves of kernels with tile-level waits: each fills up the last wave of its predecessor."""
    return sum(tiles) / slots
