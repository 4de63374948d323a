"""Sets of small numbers as the bits of an integer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def bits(mask: int) -> Iterator[int]:
    """Positions of the ones in `mask`, ascending."""
    while mask & (mask - 1):
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
    if mask:  # most sets are of one number: the last one needs no search
        yield mask.bit_length() - 1


def mask_of(positions: Iterable[int]) -> int:
    """The set of `positions`."""
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask
