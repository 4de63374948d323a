"""The laws of `on_cpu`, vectorised over many single-part kernels: planning evaluates thousands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import constants as c
from .devices import CpuDevice
from .facts import CONTRACTING, UNITS, Part, Traffic
from .on_cpu import ITEMSIZE, one_core
from .protocol import Bound

BOUNDS: tuple[Bound, ...] = ("launch", "dram", *UNITS)
"""What may bound a kernel on a CPU."""
LAUNCH, DRAM, FIRST_UNIT = range(3)
TILED, SPECIAL, SCALAR = (UNITS.index(unit) for unit in ("mma", "special", "scalar"))
_UNIT = {unit: number for number, unit in enumerate(UNITS)}
_CONTRACTING = np.array([unit in CONTRACTING for unit in UNITS])


@dataclass(frozen=True)
class Accesses:
    """Reads, or writes, of parts. counts: number per part; one entry per access for the others: its part `owner`, bytes
    requested, distinct bytes, and 1 for a weight.
    """

    counts: np.ndarray
    owner: np.ndarray
    requested: np.ndarray
    footprint: np.ndarray
    is_weight: np.ndarray


@dataclass(frozen=True)
class Columns:
    """Parts as columns of numbers: per part, per access, per tensor, and per unit of arithmetic.

    traffic: bytes requested, distinct bytes of one tensor of part `of_traffic`; work: operations, share, bytes per
    element on unit `unit`, of part `of_work`.
    """

    tasks: np.ndarray
    lanes: np.ndarray
    shared_bytes: np.ndarray
    elements: np.ndarray
    part_itemsize: np.ndarray
    reads: Accesses
    writes: Accesses
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
        """Return the columns of parts, in a single pass over them: many parts do not fit a cache."""
        own: list[float] = []
        read: list[float] = []
        written: list[float] = []
        work: list[float] = []
        again: list[int] = []
        for number, part in enumerate(parts):
            reads, writes, arithmetic = part.reads, part.writes, part.arithmetic
            own += (part.tasks, part.lanes, part.shared_bytes, part.elements, ITEMSIZE.get(part.dtype, 4),
                    len(reads), len(writes), len(arithmetic))  # fmt: skip
            for t in reads:
                read += (t.bytes_requested, t.footprint_bytes, t.role == "weight")
            for t in writes:
                written += (t.bytes_requested, t.footprint_bytes, t.role == "weight")
            for a in arithmetic:
                work += (_UNIT[a.unit], a.operations, a.share, ITEMSIZE.get(a.dtype, 4))
            if _touches_one_twice(reads, writes):
                again.append(number)
        tasks, lanes, shared_bytes, elements, part_itemsize, read_counts, written_counts, work_counts = numbers(own, 8)
        unit, operations, share, itemsize = numbers(work, 4)
        of_reads = Accesses(read_counts, owners(read_counts), *numbers(read, 3))
        of_writes = Accesses(written_counts, owners(written_counts), *numbers(written, 3))
        traffic = _by_tensor(parts, of_reads, of_writes, again)
        of_work = owners(work_counts)
        return Columns(
            tasks, lanes, shared_bytes, elements, part_itemsize, of_reads, of_writes, *traffic, of_work,
            unit.astype(np.intp), operations, share, itemsize,
        )  # fmt: skip

    def sums(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the sum of numbers for each part."""
        return np.bincount(of, numbers, len(self.tasks))

    def operations_on(self, unit: int) -> np.ndarray:
        return self.sums(self.of_work, np.where(self.unit == unit, self.operations, 0.0))


@dataclass(frozen=True)
class Laws:
    """Predictions in microseconds, as in `Prediction`; bound: indices into BOUNDS."""

    latency_us: np.ndarray
    low_us: np.ndarray
    high_us: np.ndarray
    bound: np.ndarray


def numbers(rows: Sequence[float], width: int) -> np.ndarray:
    """Return a flat list of rows of `width` numbers as columns: shape (width, rows)."""
    return np.array(rows, float).reshape(-1, width).T


def owners(counts: np.ndarray) -> np.ndarray:
    """Return the part that each entry belongs to, given the number per part."""
    return np.repeat(np.arange(len(counts)), counts.astype(np.intp))


def _by_tensor(
    parts: Sequence[Part], reads: Accesses, writes: Accesses, again: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each tensor of each part: the part, bytes requested, and distinct bytes. again: parts that access a
    tensor twice, which are few.
    """
    found = [np.concatenate([getattr(reads, n), getattr(writes, n)]) for n in ("owner", "requested", "footprint")]
    if again:
        once = ~np.isin(found[0], again)
        twice = numbers(
            [n for at in again for t in parts[at].traffic for n in (at, t.bytes_requested, t.footprint_bytes)], 3
        )
        found = [np.concatenate([column[once], more]) for column, more in zip(found, twice, strict=True)]
    return found[0].astype(np.intp), found[1], found[2]


def _touches_one_twice(reads: Sequence[Traffic], writes: Sequence[Traffic]) -> bool:
    values = {t.value for t in reads}
    values.update([t.value for t in writes])
    return len(values) < len(reads) + len(writes)


def laws_of(columns: Columns, cpu: CpuDevice) -> Laws:
    """Return the results of `predict_on_cpu` for each part as a kernel with one launch."""
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
    """Return the microseconds on `cpu`, those without overlap, and the bound."""
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
    """Return the cycles of one core for each entry of arithmetic."""
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
    """Return the bytes per second of `busy` cores that share `nbytes`."""
    shared = busy * cpu.llc_bytes_per_second
    beyond = np.where(nbytes <= cpu.llc_bytes, shared, np.minimum(cpu.dram_bytes_per_second, shared))
    return np.where(nbytes <= cpu.l2_bytes * busy, busy * cpu.l2_bytes_per_second, beyond)


def _core_rate(nbytes: np.ndarray, cpu: CpuDevice) -> np.ndarray:
    """Return the bytes per second of a core that repeatedly reads `nbytes`."""
    beyond = np.where(nbytes <= cpu.llc_bytes, cpu.llc_bytes_per_second, cpu.dram_bytes_per_second / cpu.cores)
    return np.where(nbytes <= cpu.l2_bytes, cpu.l2_bytes_per_second, beyond)
