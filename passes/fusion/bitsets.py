"""Sets of small numbers as the bits of an integer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def bits(mask: int) -> Iterator[int]:
    """Positions of the ones in `mask`, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(positions: Iterable[int]) -> int:
    """The set of `positions`."""
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask
