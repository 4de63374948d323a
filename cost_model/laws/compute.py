"""Arithmetic and how blocks fill the multiprocessors (SMs).

Sources: CUDA C++ Programming Guide (lanes and schedulers by compute capability); wave quantisation: NVIDIA, Matrix
Multiplication Background User's Guide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SEPARATE_INTEGER_PIPE = 7.0
"""From this compute capability on, an SM issues four warps a cycle, whatever its number of float32 lanes."""
WARP_LANES = 32


def flops_per_us(gflops: Any) -> Any:
    """Operations per microsecond of a peak given in GFLOP/s."""
    return gflops * 1e3


def lanes_per_sm(gflops: Any, sm_count: Any, clock_mhz: Any) -> Any:
    """Float32 lanes of one SM, from the peak of the chip: a lane does a multiply-add, two operations, each cycle."""
    return flops_per_us(gflops) / (2.0 * sm_count * clock_mhz)


def issued_per_us(capability: Any, gflops: Any, sm_count: Any, clock_mhz: Any) -> Any:
    """Instructions of single threads that the chip issues per microsecond.

    Until Volta, integer and float32 instructions share their lanes; since, four schedulers issue a warp each per cycle.
    """
    lanes = np.where(np.less(capability, SEPARATE_INTEGER_PIPE), lanes_per_sm(gflops, sm_count, clock_mhz), 128.0)
    return sm_count * clock_mhz * lanes


def tiles(extent: Any, tile: Any) -> Any:
    """Tiles that cover an extent."""
    return np.ceil(np.divide(extent, tile))


def blocks_of_fullest_sm(blocks: Any, sm_count: Any) -> Any:
    """Blocks that the SM with the most of them computes; what the others wait for."""
    return np.ceil(np.divide(blocks, sm_count))
