"""The analytical model on a CPU: the cores process the tasks of a stage in rounds, and share memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from . import constants as c
from .devices import CpuDevice
from .facts import CONTRACTING, UNITS, Arithmetic, KernelFacts, Launch, Part, Traffic, Unit, merged
from .protocol import Bound, Prediction

ITEMSIZE = {"float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float16": 2, "bfloat16": 2, "int16": 2,
            "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip
"""Bytes per element; every other dtype has four."""


@dataclass(frozen=True)
class _Load:
    """The work of a part, or of all parts of a stage.

    cycles, least_cycles: of one core, as expected and at nominal rates. traffic: one entry per tensor. largest: the
    most distinct bytes of any part. workspaces: bytes per task, and number of tasks, of each part.
    """

    tasks: int
    cycles: float
    least_cycles: float
    traffic: Sequence[Traffic]
    largest: int
    workspaces: Sequence[tuple[int, int]]

    @staticmethod
    def of(part: Part, spent: Mapping[Unit, tuple[float, float]]) -> _Load:
        cycles, least_cycles = (sum(column) for column in zip(*spent.values())) if spent else (0.0, 0.0)
        footprint = sum([t.footprint_bytes for t in part.traffic])
        return _Load(part.tasks, cycles, least_cycles, part.traffic, footprint, ((part.shared_bytes, part.tasks),))

    @staticmethod
    def together(loads: Sequence[_Load]) -> _Load:
        return _Load(
            sum([load.tasks for load in loads]), sum([load.cycles for load in loads]),
            sum([load.least_cycles for load in loads]), merged([t for load in loads for t in load.traffic]),
            max([load.largest for load in loads]), [space for load in loads for space in load.workspaces],
        )  # fmt: skip


@dataclass(frozen=True)
class _Stage:
    """The parts of a stage together, and, if there are several, each as if it were alone. unit: the unit with the most
    cycles.
    """

    together: _Load
    alone: Sequence[_Load]
    unit: Unit

    @staticmethod
    def of(parts: Sequence[Part], cpu: CpuDevice) -> _Stage:
        spent = [_spent(part, cpu) for part in parts]
        alone = [_Load.of(part, own) for part, own in zip(parts, spent, strict=True)]
        by_unit = dict.fromkeys(UNITS, 0.0)
        for unit, (cycles, _) in ((unit, found) for own in spent for unit, found in own.items()):
            by_unit[unit] += cycles
        unit = max(UNITS, key=by_unit.__getitem__)
        return _Stage(_Load.together(alone), alone, unit) if len(parts) > 1 else _Stage(alone[0], (), unit)


def predict_on_cpu(kernel: KernelFacts, cpu: CpuDevice) -> Prediction:
    spent = defaultdict[Bound, float](float)
    added_us = 0.0
    sequence = [[_Stage.of(stage, cpu) for stage in launch.stages] for launch in kernel.sequence]
    for launch, stages in zip(kernel.sequence, sequence, strict=True):
        found, most_us = _launch(launch, stages, cpu)
        added_us += most_us
        for bound, us in found.items():
            spent[bound] += us
    bound, _ = max(spent.items(), key=lambda item: item[1])
    latency_us = sum(spent.values())
    return Prediction(latency_us, _floor_us(sequence, cpu), max(added_us, latency_us), bound)


@lru_cache(64)
def one_core(cpu: CpuDevice) -> CpuDevice:
    """Return the CPU with a single core."""
    return replace(cpu, cores=1)


def _launch(launch: Launch, stages: Sequence[_Stage], cpu: CpuDevice) -> tuple[dict[Bound, float], float]:
    """Return the microseconds by cause, and in total without overlap.

    The launching thread finishes small work before others take part.
    """
    alone = _stages(stages, one_core(cpu), cpu.launch_us)
    if min(cpu.cores, launch.tasks) == 1:
        return alone
    together = _stages(stages, cpu, cpu.launch_us + cpu.hand_over_us)
    return min(alone, together, key=lambda found: sum(found[0].values()))


def _stages(stages: Sequence[_Stage], cpu: CpuDevice, launch_us: float) -> tuple[dict[Bound, float], float]:
    spent = defaultdict[Bound, float](float)
    spent["launch"] = launch_us
    added_us = launch_us
    for stage in stages:
        memory_us, arithmetic_us = _slowest(stage, cpu)
        longer, shorter = max(memory_us, arithmetic_us), min(memory_us, arithmetic_us)
        spent["dram" if memory_us >= arithmetic_us else stage.unit] += longer + (1 - c.OVERLAP) * shorter
        added_us += longer + shorter
    return spent, added_us


def floor_us(kernel: KernelFacts, cpu: CpuDevice) -> float:
    """Return a lower bound for any kernel with these facts: launches, bytes beyond the last-level cache, all cores at
    nominal rates.
    """
    return _floor_us([[_Stage.of(stage, cpu) for stage in launch.stages] for launch in kernel.sequence], cpu)


def _floor_us(sequence: Sequence[Sequence[_Stage]], cpu: CpuDevice) -> float:
    seconds = 0.0
    for load in (stage.together for stages in sequence for stage in stages):
        footprint = sum([t.footprint_bytes for t in load.traffic])
        dram_s = max(0, footprint - cpu.llc_bytes) / cpu.dram_bytes_per_second
        seconds += max(dram_s, load.least_cycles / cpu.clock_hz / cpu.cores)
    return len(sequence) * cpu.launch_us + seconds * 1e6


def _slowest(stage: _Stage, cpu: CpuDevice) -> tuple[float, float]:
    """Return the microseconds of memory and arithmetic of parallel parts: together, or of the slowest as if it were
    alone.
    """
    options = [_times(load, cpu) for load in (stage.together, *stage.alone)]
    return max(options, key=lambda us: max(us) + (1 - c.OVERLAP) * min(us))


def _times(load: _Load, cpu: CpuDevice) -> tuple[float, float]:
    tasks = max(1, load.tasks)
    busy = tasks / ceil(tasks / cpu.cores)  # average number of busy cores: the last round may leave some idle
    return _memory_s(load, cpu, busy) * 1e6, load.cycles / cpu.clock_hz / busy * 1e6


def _spent(part: Part, cpu: CpuDevice) -> dict[Unit, tuple[float, float]]:
    """Return the cycles of one core by unit, as expected and at nominal rates."""
    found: dict[Unit, tuple[float, float]] = {}
    for work in part.arithmetic:
        least = _cycles_of(work, part.lanes, cpu)
        cycles = least / c.CPU_CONTRACTION_SHARE if work.unit in CONTRACTING and not _is_tiled(work, cpu) else least
        before = found.get(work.unit, (0.0, 0.0))
        found[work.unit] = before[0] + cycles, before[1] + least
    return found


def _is_tiled(work: Arithmetic, cpu: CpuDevice) -> bool:
    return work.unit == "mma" and cpu.tile_bytes_per_cycle > 0


def _cycles_of(work: Arithmetic, lanes: int, cpu: CpuDevice) -> float:
    """Return the cycles at nominal rates. lanes: elements per instruction in the code; 0: as many as a register has,
    which is the maximum.
    """
    whole = cpu.lanes(ITEMSIZE.get(work.dtype, 4))
    lanes = min(lanes or whole, whole)
    if work.unit == "scalar":
        return work.operations * c.SCALAR_CYCLES
    if _is_tiled(work, cpu):
        return work.operations * ITEMSIZE.get(work.dtype, 4) / (cpu.tile_bytes_per_cycle * work.share)
    vectors = work.operations / (lanes * work.share)
    return vectors * cpu.transcendental_cycles if work.unit == "special" else vectors / cpu.vectors_per_cycle


def _memory_s(load: _Load, cpu: CpuDevice, busy: float) -> float:
    seconds = sum([t.footprint_bytes for t in load.traffic]) / _rate(load.largest, busy, cpu)
    for t in load.traffic:
        again = t.bytes_requested - t.footprint_bytes
        if (
            again > 0 and t.footprint_bytes > cpu.l1_bytes
        ):  # what is in the first-level cache costs no more than the code
            seconds += again / (busy * _core_rate(t.footprint_bytes, cpu))
    for shared_bytes, tasks in load.workspaces:
        if shared_bytes > cpu.l2_bytes // 2:  # the workspace leaves the cache before its next use
            together = shared_bytes * min(tasks, cpu.cores)
            seconds += 2 * shared_bytes * tasks / _rate(max(together, cpu.l2_bytes * busy + 1), busy, cpu)
    return seconds


def _rate(nbytes: float, busy: float, cpu: CpuDevice) -> float:
    """Return the bytes per second of `busy` cores that share `nbytes`. Parts of a list of tasks take turns."""
    if nbytes <= cpu.l2_bytes * busy:
        return busy * cpu.l2_bytes_per_second
    shared = busy * cpu.llc_bytes_per_second
    return shared if nbytes <= cpu.llc_bytes else min(cpu.dram_bytes_per_second, shared)


def _core_rate(nbytes: float, cpu: CpuDevice) -> float:
    """Return the bytes per second of a core that repeatedly reads `nbytes`."""
    if nbytes <= cpu.l2_bytes:
        return cpu.l2_bytes_per_second
    return cpu.llc_bytes_per_second if nbytes <= cpu.llc_bytes else cpu.dram_bytes_per_second / cpu.cores
