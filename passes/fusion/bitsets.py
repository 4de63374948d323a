"""Sets of small numbers as the bits of an integer."""

from collections.abc import Iterable, Iterator

import numpy as np

MANY = 24
"""Highest set bit from which on a set is unpacked as a whole: removing single bits scans all of them each time."""


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the ones in `mask`, ascending."""
    # Most sets contain adjacent numbers: shifted by the first one, few bits remain.
    first = (mask ^ (mask - 1)).bit_length() - 1 if mask >> MANY else 0
    mask >>= first
    if mask.bit_count() > MANY:
        packed = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
        yield from (np.flatnonzero(np.unpackbits(packed, bitorder="little")) + first).tolist()
        return
    while mask & (mask - 1):
        low = mask & -mask
        yield first + low.bit_length() - 1
        mask ^= low
    if mask:  # most sets are singletons: the last number needs no search
        yield first + mask.bit_length() - 1


def mask_of(positions: Iterable[int]) -> int:
    """Return the set of `positions`."""
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask
