"""Memory: traffic lower bounds and DRAM bandwidth.

Sources: NVIDIA A100 whitepaper: two partitions of the L2 cache, each for the accesses of its own SMs. NVIDIA's notes on
ECC: memory beside the chip (GDDR) keeps its check bits in the same memory and pays for them
in bandwidth, HBM keeps them apart. Chips with HBM are the large ones of a generation.
"""

from typing import Any

import numpy as np

INLINE_ECC_SHARE = 0.875
"""Fraction of the bandwidth that remains with inline ECC: check bits take one eighth."""
GEFORCE = 11.0
"""From this compute capability on, numbers do not tell which chips are large; known ones are not."""
PARTED_L2 = 8.0
"""From this compute capability on, the large chips of a generation have an L2 cache with two partitions."""


def is_large(capability: Any) -> Any:
    """Return whether a chip is a large one of its generation: compute capability x.0 or 10.x, but not 12.0
    (GeForce).
    """
    whole = np.mod(np.round(np.multiply(capability, 10.0)), 10) == 0
    return np.less(capability, GEFORCE) & (whole | np.equal(np.floor(capability), 10.0))


def has_inline_ecc(capability: Any) -> Any:
    """Return whether ECC is inline: on all but the large chips of a generation."""
    return ~is_large(capability)


def dram_bytes_per_us(gb_per_second: Any, capability: Any) -> Any:
    """Return the nominal DRAM bytes per microsecond, minus the share of check bits."""
    return gb_per_second * 1e3 * np.where(has_inline_ecc(capability), INLINE_ECC_SHARE, 1.0)


def near_l2_bytes(l2_bytes: Any, capability: Any) -> Any:
    """Return the bytes of distinct data that the L2 cache holds: with two partitions, each holds what its own SMs
    access.
    """
    parted = np.greater_equal(capability, PARTED_L2) & is_large(capability)
    return l2_bytes * np.where(parted, 0.5, 1.0)


def least_dram_us(nbytes: Any, l2_bytes: Any, gb_per_second: Any) -> Any:
    """Return the least time to move `nbytes`: what fits the L2 cache need not move at all."""
    return np.maximum(0.0, np.subtract(nbytes, l2_bytes)) / (gb_per_second * 1e3)
