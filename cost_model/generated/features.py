"""What trees are told of a part of a kernel: numbers of the work, of the schedule, and of what the laws make of both.

Sizes are logarithms to base 2, so that a kernel twice as large is one step away whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    law: Prediction
    common: tuple[float, ...]
    choices: dict[str, float]

    @property
    def law_us(self) -> float:
        return self.law.latency_us

    def row(self, names: Sequence[str]) -> list[float]:
        """The common numbers, and those of these choices; -1 where it has no such choice."""
        own = self.choices
        return [*self.common, *(_log(own[name]) if name in own else -1.0 for name in names)]


def described(part: Part, core: CpuDevice) -> Described:
    """core: a CPU with one."""
    law = predict_on_cpu(KernelFacts((Launch(((part,),)),)), core)
    choices = dict(part.choices)
    return Described(part.template, law, tuple(_common(part, law)), {**choices, **derived(choices)})


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


# -- what follows from choices -----------------------------------------------------------------------------------------


def derived(choices: Mapping[str, int]) -> dict[str, float]:
    """What register tiles and tasks come to: sums in registers, work beyond the edges, bytes that are to stay near."""
    found: dict[str, float] = {}
    for schedule, extents in (("schedule", _extents(choices)), ("schedule.scores", None), ("schedule.weighed", None)):
        if f"{schedule}.vectors" in choices and f"{schedule}.rows" in choices:
            found |= {f"{schedule} {name}": value for name, value in _tile(choices, schedule, extents).items()}
    return found


def _extents(choices: Mapping[str, int]) -> tuple[int, int, int] | None:
    """Rows, columns and steps of the GEMM that a contraction amounts to; the rows of a convolution are its columns."""
    if {"shape.m", "shape.n", "shape.k"} <= choices.keys():
        return choices["shape.m"], choices["shape.n"], choices["shape.k"]
    if {"shape.spatial.0", "shape.kernel.0", "shape.out_channels"} <= choices.keys():
        groups = max(1, choices.get("shape.groups", 1))
        taps = choices["shape.kernel.0"] * choices.get("shape.kernel.1", 1)
        width = -(-choices["shape.spatial.0"] // max(1, choices.get("shape.strides.0", 1)))
        return width, choices["shape.out_channels"] // groups, choices["shape.in_channels"] // groups * taps
    return None


def _tile(choices: Mapping[str, int], schedule: str, extents: tuple[int, int, int] | None) -> dict[str, float]:
    rows, vectors, lanes = (max(1, choices.get(f"{schedule}.{name}", 1)) for name in ("rows", "vectors", "lanes"))
    pixels = max(1, choices.get(f"{schedule}.columns", 1))
    if extents is None:
        sums = rows * pixels * vectors
        return {"sums": sums, "loads": (rows * pixels + vectors) / sums, "bytes": 4 * lanes * vectors}
    m, n, k = (max(1, extent) for extent in extents)
    most = pixels if pixels > 1 else rows  # a convolution's tiles are cut along its columns
    parts = -(-m // most)
    even = -(-m // parts) * (rows if pixels > 1 else 1)
    columns, sums = vectors * lanes, even * vectors
    panels = -(-n // columns)
    task_rows = min(parts, choices.get(f"{schedule}.block_tiles", 1)) * even
    return {
        "sums": sums, "loads": (even + vectors) / sums, "edge": panels * columns / n,
        "panels": panels, "parts": parts, "panel bytes": 4 * k * columns, "task rows": task_rows,
        "left bytes": 4 * k * task_rows, "right bytes": 4 * k * n,
        "task panels": min(panels, choices.get(f"{schedule}.block_panels", 1)),
    }  # fmt: skip


def matrix(rows: Sequence[Described], names: Sequence[str]) -> np.ndarray:
    return np.array([row.row(names) for row in rows], np.float32).reshape(len(rows), len(COMMON) + len(names))
