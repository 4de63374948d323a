"""What trees are told of a part of a kernel: numbers of the work, of the schedule, and of what the laws make of both.

Sizes are logarithms to base 2, so that a kernel twice as large is one step away whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from tilestitch.cost_model.cpu import CpuDevice
from tilestitch.cost_model.facts import KernelFacts, Launch, Part, Traffic
from tilestitch.cost_model.on_cpu import ITEMSIZE, predict_on_cpu
from tilestitch.cost_model.protocol import Prediction

BOUNDS = ("dram", "fma", "alu", "special", "scalar", "launch")
UNITS = ("fma", "alu", "special", "scalar")
COMMON = (
    "law", "floor", "nothing overlaps", *(f"bound {bound}" for bound in BOUNDS), *UNITS, "share", "itemsize",
    "elements", "tasks", "scratch", "lanes", "inputs", "outputs", "asked", "read", "weights", "largest read", "written",
    "read again", "operations a byte", "operations an element", "per task",
)  # fmt: skip
"""Of every template; a template's own are the names of its choices."""


@dataclass(frozen=True)
class Described:
    """A part as a launch of its own on one core: what laws say of it, and its numbers by name."""

    template: str
    law_us: float
    common: tuple[float, ...]
    choices: dict[str, int]

    def row(self, names: Sequence[str]) -> list[float]:
        """The common numbers, and those of these choices; -1 where it has no such choice."""
        own = self.choices
        return [*self.common, *(_log(own[name]) if name in own else -1.0 for name in names)]


def described(part: Part, cpu: CpuDevice) -> Described:
    law = predict_on_cpu(KernelFacts((Launch(((part,),)),)), replace(cpu, cores=1))
    return Described(part.template, law.latency_us, tuple(_common(part, law)), dict(part.choices))


def _common(part: Part, law: Prediction) -> list[float]:
    work = [sum(a.operations for a in part.arithmetic if a.unit == unit) for unit in UNITS]
    share = min((a.share for a in part.arithmetic), default=1.0)
    asked, read = _sums(part.reads)
    written = sum(t.footprint_bytes for t in part.writes)
    weights = sum(t.footprint_bytes for t in part.reads if t.role == "weight")
    largest = max((t.footprint_bytes for t in part.reads), default=0)
    operations, moved = sum(work), read + written
    return [
        _log(1000 * law.latency_us), law.low_us / law.latency_us, law.high_us / law.latency_us,
        *(float(law.bound == bound) for bound in BOUNDS), *map(_log, work), share,
        float(ITEMSIZE.get(part.dtype, 4)), *map(_log, (part.elements, part.tasks, part.shared_bytes, part.lanes)),
        float(len(part.reads)), float(len(part.writes)), *map(_log, (asked, read, weights, largest, written)),
        _log(asked) - _log(read), _log(operations) - _log(moved), _log(operations) - _log(part.elements),
        _log(moved) - _log(part.tasks),
    ]  # fmt: skip


def _sums(reads: Sequence[Traffic]) -> tuple[int, int]:
    return sum(t.bytes_requested for t in reads), sum(t.footprint_bytes for t in reads)


def _log(count: float) -> float:
    return log2(1.0 + count)


def matrix(rows: Sequence[Described], names: Sequence[str]) -> np.ndarray:
    return np.array([row.row(names) for row in rows], np.float32).reshape(len(rows), len(COMMON) + len(names))
