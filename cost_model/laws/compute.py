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
"""From this compute capability on, an SM issues four warps per cycle, regardless of its number of float32 lanes."""
WARP_LANES = 32
DUAL_ISSUE = 2.0
"""Up to Pascal, a scheduler issues a second instruction of another kind along with each multiply-add."""
TURING = 7.5
SMALLER = 7.5
"""From this compute capability on, SMs of all but the large chips (x.0) start a load every second cycle."""


def flops_per_us(gflops: Any) -> Any:
    """Return the operations per microsecond for a peak in GFLOP/s."""
    return gflops * 1e3


def lanes_per_sm(gflops: Any, sm_count: Any, clock_mhz: Any) -> Any:
    """Return the float32 lanes per SM, from the chip's peak: a lane does a multiply-add, two operations, per cycle."""
    return flops_per_us(gflops) / (2.0 * sm_count * clock_mhz)


def issued_per_us(capability: Any, gflops: Any, sm_count: Any, clock_mhz: Any) -> Any:
    """Return the per-thread instructions that the chip issues per microsecond.

    Before Volta, integer and float32 instructions share lanes; since then, four schedulers issue a warp each per cycle.
    """
    lanes = np.where(np.less(capability, SEPARATE_INTEGER_PIPE), lanes_per_sm(gflops, sm_count, clock_mhz), 128.0)
    return sm_count * clock_mhz * lanes


def issue_slowdown(capability: Any, lanes: Any, loads: Any, others: Any) -> Any:
    """Return the slowdown of multiply-adds by instructions between them, if these exceed the issue slots or load units
    of an SM. loads, others: load/store instructions, and all others, per multiply-add.
    """
    slots = np.where(np.less(capability, SEPARATE_INTEGER_PIPE), DUAL_ISSUE, 4.0 * WARP_LANES / lanes)
    loaded = np.where(_is_large(capability), 1.0, 0.5)
    return np.maximum(1.0, np.maximum((1.0 + loads + others) / slots, loads * lanes / WARP_LANES / loaded))


def _is_large(capability: Any) -> Any:
    return np.less(capability, SMALLER) | is_large(capability)


def threads_per_sm(capability: Any) -> Any:
    """Return the threads that an SM can hold."""
    return np.where(np.equal(capability, TURING), 1024.0, np.where(_is_large(capability), 2048.0, 1536.0))


def tiles(extent: Any, tile: Any) -> Any:
    """Return the tiles that cover an extent."""
    return np.ceil(np.divide(extent, tile))


def blocks_of_fullest_sm(blocks: Any, sm_count: Any) -> Any:
    """Return the blocks of the SM with the most of them, for which the others wait."""
    return np.ceil(np.divide(blocks, sm_count))
