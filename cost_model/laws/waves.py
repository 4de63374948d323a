"""Waves of thread blocks: how often tiles fill a GPU, with kernels one after the other, or run into each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def waves_apart(tiles: Sequence[int], slots: Sequence[int]) -> int:
    """Of kernels that wait for each other: the last wave of each counts as a whole one. slots: blocks of each that the
    device holds at a time.
    """
    return sum(ceil(count / held) for count, held in zip(tiles, slots, strict=True))


def waves_together(tiles: Sequence[int], slots: int) -> float:
    """Of kernels whose tiles wait for tiles: what one leaves of its last wave, the next one fills."""
    return sum(tiles) / slots
