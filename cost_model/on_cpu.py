"""The analytical model on a CPU: the cores work through the tasks of a stage in rounds, and share memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil

from . import constants as c
from .cpu import CpuDevice
from .facts import CONTRACTING, UNITS, Arithmetic, KernelFacts, Launch, Part, merged
from .protocol import Bound, Prediction

ITEMSIZE = {"float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float16": 2, "bfloat16": 2, "int16": 2,
            "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip
"""Bytes of one element; every other dtype has four."""


def predict_on_cpu(kernel: KernelFacts, cpu: CpuDevice) -> Prediction:
    spent = defaultdict[Bound, float](float)
    added_us = 0.0
    for launch in kernel.sequence:
        found, most_us = _launch(launch, cpu)
        added_us += most_us
        for bound, us in found.items():
            spent[bound] += us
    bound, _ = max(spent.items(), key=lambda item: item[1])
    latency_us = sum(spent.values())
    return Prediction(latency_us, floor_us(kernel, cpu), max(added_us, latency_us), bound)


@lru_cache(64)
def one_core(cpu: CpuDevice) -> CpuDevice:
    """The same with one core."""
    return replace(cpu, cores=1)


def _launch(launch: Launch, cpu: CpuDevice) -> tuple[dict[Bound, float], float]:
    """Microseconds by what takes them, and of all if nothing overlaps.

    The thread that launches has done what is little before others take part.
    """
    alone = _stages(launch, one_core(cpu), cpu.launch_us)
    if min(cpu.cores, launch.tasks) == 1:
        return alone
    together = _stages(launch, cpu, cpu.launch_us + cpu.hand_over_us)
    return min(alone, together, key=lambda found: sum(found[0].values()))


def _stages(launch: Launch, cpu: CpuDevice, launch_us: float) -> tuple[dict[Bound, float], float]:
    spent = defaultdict[Bound, float](float)
    spent["launch"] = launch_us
    added_us = launch_us
    for stage in launch.stages:
        memory_us, arithmetic_us = _slowest(stage, cpu)
        longer, shorter = max(memory_us, arithmetic_us), min(memory_us, arithmetic_us)
        spent["dram" if memory_us >= arithmetic_us else _unit(stage, cpu)] += longer + (1 - c.OVERLAP) * shorter
        added_us += longer + shorter
    return spent, added_us


def floor_us(kernel: KernelFacts, cpu: CpuDevice) -> float:
    """What no kernel with these facts can beat: launches, bytes beyond the last cache, all cores at nominal rates."""
    seconds = 0.0
    for stage in (stage for launch in kernel.sequence for stage in launch.stages):
        dram_s = max(0, _footprint(stage) - cpu.llc_bytes) / cpu.dram_bytes_per_second
        cycles = sum(_cycles(part, cpu, contracting_share=1.0) for part in stage)
        seconds += max(dram_s, cycles / cpu.clock_hz / cpu.cores)
    return kernel.launches * cpu.launch_us + seconds * 1e6


def _footprint(parts: Sequence[Part]) -> int:
    return sum(t.footprint_bytes for t in merged(t for part in parts for t in part.traffic))


def _slowest(parts: Sequence[Part], cpu: CpuDevice) -> tuple[float, float]:
    """Microseconds of memory and arithmetic of parts side by side: together, or of the slowest one if it was alone."""
    options = [_together(parts, cpu)]
    if len(parts) > 1:
        options += [_together([part], cpu) for part in parts]
    return max(options, key=lambda us: max(us) + (1 - c.OVERLAP) * min(us))


def _together(parts: Sequence[Part], cpu: CpuDevice) -> tuple[float, float]:
    tasks = max(1, sum(part.tasks for part in parts))
    busy = tasks / ceil(tasks / cpu.cores)  # cores at work on average: the last round may leave some idle
    cycles = sum(_cycles(part, cpu) for part in parts)
    return _memory_s(parts, cpu, busy) * 1e6, cycles / cpu.clock_hz / busy * 1e6


def _cycles(part: Part, cpu: CpuDevice, contracting_share: float = c.CPU_CONTRACTION_SHARE) -> float:
    """Of one core."""
    return sum(_cycles_of(work, part.lanes, cpu, contracting_share) for work in part.arithmetic)


def _cycles_of(work: Arithmetic, lanes: int, cpu: CpuDevice, contracting_share: float) -> float:
    """lanes: that the code computes together; 0: as many as a register has, which is the most that there are."""
    whole = cpu.lanes(ITEMSIZE.get(work.dtype, 4))
    lanes = min(lanes or whole, whole)
    if work.unit == "scalar":
        return work.operations * c.SCALAR_CYCLES
    if work.unit == "mma" and cpu.tile_bytes_per_cycle:
        return work.operations * ITEMSIZE.get(work.dtype, 4) / (cpu.tile_bytes_per_cycle * work.share)
    vectors = work.operations / (lanes * work.share)
    if work.unit == "special":
        return vectors * cpu.transcendental_cycles
    return vectors / cpu.vectors_per_cycle / (contracting_share if work.unit in CONTRACTING else 1.0)


def _unit(parts: Sequence[Part], cpu: CpuDevice) -> Bound:
    spent = dict.fromkeys(UNITS, 0.0)
    for part in parts:
        for work in part.arithmetic:
            spent[work.unit] += _cycles_of(work, part.lanes, cpu, c.CPU_CONTRACTION_SHARE)
    return max(spent, key=lambda unit: spent[unit])


def _memory_s(parts: Sequence[Part], cpu: CpuDevice, busy: float) -> float:
    traffic = merged(t for part in parts for t in part.traffic)
    largest = max(sum(t.footprint_bytes for t in part.traffic) for part in parts)
    seconds = sum(t.footprint_bytes for t in traffic) / _rate(largest, busy, cpu)
    for t in traffic:
        again = t.bytes_requested - t.footprint_bytes
        if again > 0 and t.footprint_bytes > cpu.l1_bytes:  # what lies in the first cache costs no more than the code
            seconds += again / (busy * _core_rate(t.footprint_bytes, cpu))
    for part in parts:
        if part.shared_bytes > cpu.l2_bytes // 2:  # the workspace leaves the cache before its next use
            together = part.shared_bytes * min(part.tasks, cpu.cores)
            seconds += 2 * part.shared_bytes * part.tasks / _rate(max(together, cpu.l2_bytes * busy + 1), busy, cpu)
    return seconds


def _rate(nbytes: float, busy: float, cpu: CpuDevice) -> float:
    """Bytes a second of `busy` cores that share so many bytes. Parts of a list of tasks have their turns."""
    if nbytes <= cpu.l2_bytes * busy:
        return busy * cpu.l2_bytes_per_second
    shared = busy * cpu.llc_bytes_per_second
    return shared if nbytes <= cpu.llc_bytes else min(cpu.dram_bytes_per_second, shared)


def _core_rate(nbytes: float, cpu: CpuDevice) -> float:
    """Bytes a second of a core that goes through so many again and again."""
    if nbytes <= cpu.l2_bytes:
        return cpu.l2_bytes_per_second
    return cpu.llc_bytes_per_second if nbytes <= cpu.llc_bytes else cpu.dram_bytes_per_second / cpu.cores
