"""The analytical model on a CPU: the cores work through the tasks of a stage in rounds, and share memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import ceil

from . import constants as c
from .cpu import CpuDevice
from .facts import CONTRACTING, Arithmetic, KernelFacts, Part, merged
from .protocol import Bound, Prediction

ITEMSIZE = {"float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float16": 2, "bfloat16": 2, "int16": 2,
            "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip
"""Bytes of one element; every other dtype has four."""


def predict_on_cpu(kernel: KernelFacts, cpu: CpuDevice) -> Prediction:
    launch_us = kernel.launches * cpu.launch_us
    spent = defaultdict[Bound, float](float)
    spent["launch"] = launch_us
    added_us = launch_us
    for stage in (stage for launch in kernel.sequence for stage in launch.stages):
        memory_us, arithmetic_us = _slowest(stage, cpu)
        longer, shorter = max(memory_us, arithmetic_us), min(memory_us, arithmetic_us)
        spent["dram" if memory_us >= arithmetic_us else _unit(stage, cpu)] += longer + (1 - c.OVERLAP) * shorter
        added_us += longer + shorter
    bound, _ = max(spent.items(), key=lambda item: item[1])
    latency_us = sum(spent.values())
    return Prediction(latency_us, floor_us(kernel, cpu), max(added_us, latency_us), bound)


def floor_us(kernel: KernelFacts, cpu: CpuDevice) -> float:
    """What no kernel with these facts can beat: launches, bytes beyond the last cache, all cores at nominal rates."""
    seconds = 0.0
    for stage in (stage for launch in kernel.sequence for stage in launch.stages):
        dram_s = max(0, _footprint(stage) - cpu.llc_bytes) / cpu.dram_bytes_per_second
        cycles = sum(_cycles(work, cpu, contracting_share=1.0) for part in stage for work in part.arithmetic)
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
    cycles = sum(_cycles(work, cpu) for part in parts for work in part.arithmetic)
    return _memory_s(parts, cpu, busy) * 1e6, cycles / cpu.clock_hz / busy * 1e6


def _cycles(work: Arithmetic, cpu: CpuDevice, contracting_share: float = c.CPU_CONTRACTION_SHARE) -> float:
    """Of one core."""
    lanes = cpu.lanes(ITEMSIZE.get(work.dtype, 4))
    if work.unit in CONTRACTING:
        return work.operations / (lanes * cpu.fma_per_cycle * contracting_share * work.share)
    if work.unit == "special":
        return work.operations * cpu.transcendental_cycles / lanes
    return work.operations * c.SCALAR_CYCLES if work.unit == "scalar" else work.operations / lanes


def _unit(parts: Sequence[Part], cpu: CpuDevice) -> Bound:
    spent = defaultdict[Bound, float](float)
    for work in (work for part in parts for work in part.arithmetic):
        spent[work.unit] += _cycles(work, cpu)
    return max(spent, key=lambda unit: spent[unit])


def _memory_s(parts: Sequence[Part], cpu: CpuDevice, busy: float) -> float:
    footprint = _footprint(parts)
    shared_rate = min(cpu.dram_bytes_per_second, busy * cpu.llc_bytes_per_second)
    if footprint <= cpu.l2_bytes * busy:
        rate = busy * cpu.l2_bytes_per_second
    elif footprint <= cpu.llc_bytes:
        rate = busy * cpu.llc_bytes_per_second
    else:
        rate = shared_rate
    again = max(0, sum(part.bytes_requested for part in parts) - footprint)
    seconds = footprint / rate + again / (busy * cpu.l2_bytes_per_second)
    for part in parts:
        if part.shared_bytes > cpu.l2_bytes // 2:  # the row leaves the cache between its reduction and its next use
            seconds += 2 * part.shared_bytes * part.tasks / shared_rate
    return seconds
