"""Arithmetic, how blocks fill the multiprocessors (SMs), and power: a board lowers its clock where the chip would
exceed the power limit.

energy per operation ~ process node; sustained operations per second = usable board power / energy per operation.

Sources: CUDA C++ Programming Guide (lanes, schedulers and resident threads by compute capability); wave quantisation:
NVIDIA, Matrix Multiplication Background User's Guide; load and store instructions of an SM per cycle: NVIDIA's
developer forum, "Why the performance of TF32 tensor core is poor". Energy: TSMC's announcements (N7 takes 60 % less
power than N16 at the same speed, N5 30 % less than N7). That 12 nm takes what 16 nm takes is measured: GEMMs of two
boards whose power limits them, P4 and T4, agree within a tenth.
"""

from collections.abc import Sequence
from math import ceil
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


NODES = ((3.0, 0.20), (4.0, 0.26), (5.0, 0.28), (7.0, 0.40), (12.0, 1.0), (16.0, 1.0), (28.0, 2.0))
"""Nodes in nanometres, by the foundry's name, and energy per operation relative to 16 nm: 12 nm is a denser library of
the same transistors.
"""
BOARD_W = 20.0
"""Board power that the chip never gets: memory at rest, regulators, leakage. A judgement."""


def energy_scale(process_nm: Any) -> Any:
    """Return the energy per operation relative to 12 or 16 nm; a power law between nodes."""
    names, energies = np.log(np.array(NODES)).T
    return np.exp(np.interp(np.log(process_nm), names, energies))


def slowdown(picojoules: Any, flops_per_us: Any, tdp_w: Any, process_nm: Any) -> Any:
    """Return the slowdown of arithmetic relative to the boost clock; below 1 where power is no limit.

    picojoules: per operation at 16 nm, including the transport of its operands.
    """
    watts_at_boost = picojoules * energy_scale(process_nm) * flops_per_us * 1e-6
    return watts_at_boost / np.maximum(1.0, np.subtract(tdp_w, BOARD_W))


def throttled(duration_us: Any, reaction_us: Any) -> Any:
    """Return the fraction of a kernel's time in which power limits it: short ones end before the board reacts."""
    return duration_us / (duration_us + reaction_us)
