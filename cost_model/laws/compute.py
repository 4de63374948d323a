"""Arithmetic and how blocks fill the multiprocessors (SMs).

Sources: CUDA C++ Programming Guide (lanes, schedulers and resident threads by compute capability); wave quantisation:
NVIDIA, Matrix Multiplication Background User's Guide; load and store instructions of an SM per cycle: NVIDIA's
developer forum, "Why the performance of TF32 tensor core is poor".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import is_large

SEPARATE_INTEGER_PIPE = 7.0
"""From this compute capability on, an SM issues four warps a cycle, whatever its number of float32 lanes."""
WARP_LANES = 32
DUAL_ISSUE = 2.0
"""Until Pascal, a scheduler issues a second instruction of other kind with each multiply-add."""
TURING = 7.5
SMALLER = 7.5
"""From this compute capability on, SMs of all but the large chips (x.0) start a load every second cycle."""


def flops_per_us(gflops: Any) -> Any:
    """Operations per microsecond of a peak given in GFLOP/s."""
    return gflops * 1e3


def lanes_per_sm(gflops: Any, sm_count: Any, clock_mhz: Any) -> Any:
    """Float32 lanes of one SM, from the peak of the chip: a lane does a multiply-add, two operations, each cycle."""
    return flops_per_us(gflops) / (2.0 * sm_count * clock_mhz)


def issued_per_us(capability: Any, gflops: Any, sm_count: Any, clock_mhz: Any) -> Any:
    """Return the instructions of single threads that the chip issues per microsecond.

    Until Volta, integer and float32 instructions share their lanes; since, four schedulers issue a warp each per cycle.
    """
    lanes = np.where(np.less(capability, SEPARATE_INTEGER_PIPE), lanes_per_sm(gflops, sm_count, clock_mhz), 128.0)
    return sm_count * clock_mhz * lanes


def issue_slowdown(capability: Any, lanes: Any, loads: Any, others: Any) -> Any:
    """Return how many times longer multiply-adds take because of instructions between them, which issue or load units
    of an SM have no room for. loads, others: instructions for each multiply-add that load or store, and that do
    anything else.
    """
    slots = np.where(np.less(capability, SEPARATE_INTEGER_PIPE), DUAL_ISSUE, 4.0 * WARP_LANES / lanes)
    loaded = np.where(_is_large(capability), 1.0, 0.5)
    return np.maximum(1.0, np.maximum((1.0 + loads + others) / slots, loads * lanes / WARP_LANES / loaded))


def _is_large(capability: Any) -> Any:
    return np.less(capability, SMALLER) | is_large(capability)


def threads_per_sm(capability: Any) -> Any:
    """Return the threads that an SM holds at a time."""
    return np.where(np.equal(capability, TURING), 1024.0, np.where(_is_large(capability), 2048.0, 1536.0))


def tiles(extent: Any, tile: Any) -> Any:
    """Return the tiles that cover an extent."""
    return np.ceil(np.divide(extent, tile))


def blocks_of_fullest_sm(blocks: Any, sm_count: Any) -> Any:
    """Return the blocks that the SM with the most of them computes; what the others wait for."""
    return np.ceil(np.divide(blocks, sm_count))
