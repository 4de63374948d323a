"""The laws of `on_cpu` for many kernels of one part at a time, as arrays: planning asks them by the thousand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import constants as c
from .cpu import CpuDevice
from .facts import CONTRACTING, UNITS, Part
from .on_cpu import ITEMSIZE, one_core
from .protocol import Bound

BOUNDS: tuple[Bound, ...] = ("launch", "dram", *UNITS)
"""What may bound a kernel of a CPU."""
LAUNCH, DRAM, FIRST_UNIT = range(3)
TILED, SPECIAL, SCALAR = (UNITS.index(unit) for unit in ("mma", "special", "scalar"))
_UNIT = {unit: number for number, unit in enumerate(UNITS)}
_CONTRACTING = np.array([unit in CONTRACTING for unit in UNITS])


@dataclass(frozen=True)
class Columns:
    """Parts as columns of numbers: of each part, of each of its tensors, and of its arithmetic by unit.

    traffic: bytes requested, distinct bytes of one tensor of part `of_traffic`; work: operations, share, bytes of an
    element on unit `unit`, of part `of_work`.
    """

    tasks: np.ndarray
    lanes: np.ndarray
    shared_bytes: np.ndarray
    of_traffic: np.ndarray
    requested: np.ndarray
    footprint: np.ndarray
    of_work: np.ndarray
    unit: np.ndarray
    operations: np.ndarray
    share: np.ndarray
    itemsize: np.ndarray

    @staticmethod
    def of(parts: Sequence[Part]) -> Columns:
        traffic = [t for part in parts for t in part.traffic]
        work = [a for part in parts for a in part.arithmetic]
        return Columns(
            column([part.tasks for part in parts]),
            column([part.lanes for part in parts]),
            column([part.shared_bytes for part in parts]),
            owners([len(part.traffic) for part in parts]),
            column([t.bytes_requested for t in traffic]),
            column([t.footprint_bytes for t in traffic]),
            owners([len(part.arithmetic) for part in parts]),
            np.array([_UNIT[a.unit] for a in work], np.intp),
            column([a.operations for a in work]),
            column([a.share for a in work]),
            column([ITEMSIZE.get(a.dtype, 4) for a in work]),
        )

    def sums(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Of each part."""
        return np.bincount(of, numbers, len(self.tasks))

    def operations_on(self, unit: int) -> np.ndarray:
        return self.sums(self.of_work, np.where(self.unit == unit, self.operations, 0.0))


@dataclass(frozen=True)
class Laws:
    """Microseconds of kernels, as a Prediction has them; bound: of each, its place in BOUNDS."""

    latency_us: np.ndarray
    low_us: np.ndarray
    high_us: np.ndarray
    bound: np.ndarray


def column(numbers: Sequence[float]) -> np.ndarray:
    return np.array(numbers, float)


def owners(counts: Sequence[int]) -> np.ndarray:
    """Which part each entry is of, where parts have so many."""
    return np.repeat(np.arange(len(counts)), np.array(counts, np.intp))


def laws_of(columns: Columns, cpu: CpuDevice) -> Laws:
    """What `predict_on_cpu` says of each part as a kernel of one launch of its own."""
    latency_us, high_us, bound = _launched(columns, one_core(cpu), cpu.launch_us)
    if cpu.cores > 1:
        shared = _launched(columns, cpu, cpu.launch_us + cpu.hand_over_us)
        pays = (columns.tasks > 1) & (shared[0] < latency_us)
        latency_us, high_us, bound = (
            np.where(pays, new, old) for new, old in zip(shared, (latency_us, high_us, bound), strict=True)
        )
    footprint = columns.sums(columns.of_traffic, columns.footprint)
    dram_s = np.maximum(0.0, footprint - cpu.llc_bytes) / cpu.dram_bytes_per_second
    cycles = columns.sums(columns.of_work, _cycles(columns, cpu, 1.0))
    low_us = cpu.launch_us + np.maximum(dram_s, cycles / cpu.clock_hz / cpu.cores) * 1e6
    return Laws(latency_us, low_us, np.maximum(high_us, latency_us), bound)


def _launched(columns: Columns, cpu: CpuDevice, launch_us: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Microseconds on `cpu`, those if nothing overlapped, and what bounds it."""
    tasks = np.maximum(1.0, columns.tasks)
    busy = tasks / np.ceil(tasks / cpu.cores)
    cycles = _cycles(columns, cpu, c.CPU_CONTRACTION_SHARE)
    arithmetic_us = columns.sums(columns.of_work, cycles) / cpu.clock_hz / busy * 1e6
    memory_us = _memory_s(columns, cpu, busy) * 1e6
    longer, shorter = np.maximum(memory_us, arithmetic_us), np.minimum(memory_us, arithmetic_us)
    body_us = longer + (1 - c.OVERLAP) * shorter
    by_unit = np.zeros((len(UNITS), len(tasks)))
    np.add.at(by_unit, (columns.unit, columns.of_work), cycles)
    bound = np.where(memory_us >= arithmetic_us, DRAM, FIRST_UNIT + by_unit.argmax(axis=0))
    return launch_us + body_us, launch_us + longer + shorter, np.where(launch_us >= body_us, LAUNCH, bound)


def _cycles(columns: Columns, cpu: CpuDevice, contracting_share: float) -> np.ndarray:
    """Of one core, for each entry of arithmetic."""
    whole = np.maximum(1.0, cpu.vector_bytes // columns.itemsize)
    lanes = columns.lanes[columns.of_work]
    vectors = columns.operations / (np.where(lanes == 0, whole, np.minimum(lanes, whole)) * columns.share)
    ordinary = vectors / cpu.vectors_per_cycle / np.where(_CONTRACTING[columns.unit], contracting_share, 1.0)
    found = np.where(columns.unit == SPECIAL, vectors * cpu.transcendental_cycles, ordinary)
    if cpu.tile_bytes_per_cycle:
        tiled = columns.operations * columns.itemsize / (cpu.tile_bytes_per_cycle * columns.share)
        found = np.where(columns.unit == TILED, tiled, found)
    return np.where(columns.unit == SCALAR, columns.operations * c.SCALAR_CYCLES, found)


def _memory_s(columns: Columns, cpu: CpuDevice, busy: np.ndarray) -> np.ndarray:
    footprint = columns.sums(columns.of_traffic, columns.footprint)
    seconds = footprint / _rate(footprint, busy, cpu)
    again = np.where(columns.footprint > cpu.l1_bytes, np.maximum(0.0, columns.requested - columns.footprint), 0.0)
    rate = busy[columns.of_traffic] * _core_rate(columns.footprint, cpu)
    seconds = seconds + columns.sums(columns.of_traffic, again / rate)
    together = columns.shared_bytes * np.minimum(columns.tasks, cpu.cores)
    spilled = _rate(np.maximum(together, cpu.l2_bytes * busy + 1), busy, cpu)
    large = columns.shared_bytes > cpu.l2_bytes // 2
    return np.where(large, seconds + 2 * columns.shared_bytes * columns.tasks / spilled, seconds)


def _rate(nbytes: np.ndarray, busy: np.ndarray, cpu: CpuDevice) -> np.ndarray:
    """Bytes a second of `busy` cores that share so many bytes."""
    shared = busy * cpu.llc_bytes_per_second
    beyond = np.where(nbytes <= cpu.llc_bytes, shared, np.minimum(cpu.dram_bytes_per_second, shared))
    return np.where(nbytes <= cpu.l2_bytes * busy, busy * cpu.l2_bytes_per_second, beyond)


def _core_rate(nbytes: np.ndarray, cpu: CpuDevice) -> np.ndarray:
    """Bytes a second of a core that goes through so many again and again."""
    beyond = np.where(nbytes <= cpu.llc_bytes, cpu.llc_bytes_per_second, cpu.dram_bytes_per_second / cpu.cores)
    return np.where(nbytes <= cpu.l2_bytes, cpu.l2_bytes_per_second, beyond)
