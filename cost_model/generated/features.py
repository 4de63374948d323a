"""Features of a part of a kernel for trees: numbers of the work, of the schedule, and of the laws' predictions.

Sizes are logarithms to base 2, so that doubling a kernel is one step at any size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.facts import UNITS as ALL_UNITS
from tilestitch.cost_model.facts import Part
from tilestitch.cost_model.on_cpu_batch import BOUNDS as LAWS_BOUNDS
from tilestitch.cost_model.on_cpu_batch import Columns, Laws, laws_of, numbers

BOUNDS = ("dram", "fma", "alu", "special", "scalar", "launch")
UNITS = ("fma", "alu", "special", "scalar")
COMMON = (
    "law", "floor", "nothing overlaps", *(f"bound {bound}" for bound in BOUNDS), *UNITS, "share", "itemsize",
    "elements", "tasks", "scratch", "lanes", "inputs", "outputs", "asked", "read", "weights", "largest read", "written",
    "read again", "operations a byte", "operations an element", "per task",
)  # fmt: skip
"""Features of all templates; template-specific ones are the names of its choices."""
BODIES = frozenset({"cpu_attention", "cpu_conv", "cpu_conv_transpose", "cpu_gemm", "cpu_gemv", "cpu_window"})
"""Templates with dominant loop nests, regardless of prologue and epilogue."""
WAY_BYTES = 4096
"""Bytes of one way of a first-level cache."""
OF_BODIES = frozenset({"fma", "share", "itemsize", "tasks", "scratch", "lanes"})
"""The `COMMON` features visible to trees of `BODIES`: so kernels with the same body and different fused work differ
only by the laws' predictions for that work, and errors for the body are shared by all of them.
"""


@dataclass(frozen=True)
class Described:
    """Parts, each as a separate launch on one core. laws: the laws' predictions; common: the common features, shape
    (len(COMMON), parts).
    """

    parts: Sequence[Part]
    columns: Columns
    laws: Laws
    common: np.ndarray


def described(parts: Sequence[Part], core: CpuDevice) -> Described:
    """Return the description of parts; core: a single-core CPU."""
    columns = Columns.of(parts)
    laws = laws_of(columns, core)
    return Described(parts, columns, laws, _common(columns, laws))


def matrix(common: np.ndarray, parts: Sequence[Part], names: Sequence[str]) -> np.ndarray:
    """Return the features of parts, common ones and those of these choices; -1 where a part lacks one. Shape (parts,
    features).
    """
    found = np.full((len(common) + len(names), len(parts)), -1.0, np.float32)
    found[: len(common)] = common
    at = {name: len(common) + row for row, name in enumerate(names)}
    for places, own in _choices(parts):
        known = [name for name in own if name in at]
        if known:
            found[np.ix_([at[name] for name in known], places)] = _log(np.array([own[name] for name in known]))
    return found.T


def seen(features: np.ndarray, template: str) -> np.ndarray:
    """Return the features with the columns hidden from trees of `template` set to zero."""
    if template not in BODIES:
        return features
    hidden = [at for at, name in enumerate(COMMON) if name not in OF_BODIES]
    features = features.copy()
    features[:, hidden] = 0.0
    return features


def choice_names(parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the names of all numbers of shapes and schedules that any part has."""
    return tuple(sorted({name for _, numbers in _choices(parts) for name in numbers}))


def _choices(parts: Sequence[Part]) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Yield the parts with the same choices, and their numbers by name, including derived ones."""
    alike: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}
    for at, part in enumerate(parts):
        names, own = part.choices
        places, rows = alike.setdefault(names, ([], []))
        places.append(at)
        rows += own
    for names, (places, rows) in alike.items():
        choices = dict(zip(names, numbers(rows, len(names)), strict=True)) if names else {}
        yield places, {**choices, **derived(choices)}


def _common(columns: Columns, laws: Laws) -> np.ndarray:
    work = [columns.operations_on(ALL_UNITS.index(unit)) for unit in UNITS]
    share = np.ones(len(columns.tasks))
    np.minimum.at(share, columns.of_work, columns.share)
    reads, writes = columns.reads, columns.writes
    asked, read = columns.sums(reads.owner, reads.requested), columns.sums(reads.owner, reads.footprint)
    weights = columns.sums(reads.owner, reads.footprint * reads.is_weight)
    written = columns.sums(writes.owner, writes.footprint)
    largest = np.zeros(len(columns.tasks))
    np.maximum.at(largest, reads.owner, reads.footprint)
    operations, moved = np.sum(work, axis=0), read + written
    found = np.empty((len(COMMON), len(columns.tasks)), np.float32)
    for row, values in zip(found, (
        _log(1000 * laws.latency_us), laws.low_us / laws.latency_us, laws.high_us / laws.latency_us,
        *(laws.bound == LAWS_BOUNDS.index(bound) for bound in BOUNDS), *map(_log, work), share,
        columns.part_itemsize, *map(_log, (columns.elements, columns.tasks, columns.shared_bytes, columns.lanes)),
        reads.counts, writes.counts, *map(_log, (asked, read, weights, largest, written)),
        _log(asked) - _log(read), _log(operations) - _log(moved), _log(operations) - _log(columns.elements),
        _log(moved) - _log(columns.tasks),
    ), strict=True):  # fmt: skip
        row[:] = values
    return found


def _log(counts: np.ndarray) -> np.ndarray:
    return np.log2(1.0 + counts)


# -- what follows from choices -----------------------------------------------------------------------------------------


def derived(choices: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return derived quantities of register tiles and tasks: sums in registers, work beyond the edges, working sets."""
    found: dict[str, np.ndarray] = {}
    for schedule, extents in (("schedule", _extents(choices)), ("schedule.scores", None), ("schedule.weighed", None)):
        if f"{schedule}.vectors" in choices and f"{schedule}.rows" in choices:
            found |= {f"{schedule} {name}": value for name, value in _tile(choices, schedule, extents).items()}
    return found


def _extents(choices: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return rows, columns and steps of the GEMM that a contraction is equivalent to; the rows of a convolution are its
    columns.
    """
    if {"shape.m", "shape.n", "shape.k"} <= choices.keys():
        return choices["shape.m"], choices["shape.n"], choices["shape.k"]
    if {"shape.spatial.0", "shape.kernel.0", "shape.out_channels"} <= choices.keys():
        groups = _of(choices, "shape.groups")
        taps = choices["shape.kernel.0"] * choices.get("shape.kernel.1", 1.0)
        width = -(-choices["shape.spatial.0"] // _of(choices, "shape.strides.0"))
        return width, choices["shape.out_channels"] // groups, choices["shape.in_channels"] // groups * taps
    return None


def _distance(choices: Mapping[str, np.ndarray], k: np.ndarray) -> np.ndarray:
    """Return the elements from one row of the left operand to the next; for a convolution, from one pixel read to the
    next.
    """
    if "shape.in_channels" not in choices:
        return k
    return choices["shape.in_channels"] * _of(choices, "shape.strides.0")


def _of(choices: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a number, at least 1, which is also the default."""
    return np.maximum(1.0, choices.get(name, np.array(1.0)))


def _tile(
    choices: Mapping[str, np.ndarray], schedule: str, extents: tuple[np.ndarray, np.ndarray, np.ndarray] | None
) -> dict[str, np.ndarray]:
    rows, vectors, lanes = (_of(choices, f"{schedule}.{name}") for name in ("rows", "vectors", "lanes"))
    pixels = _of(choices, f"{schedule}.columns")
    if extents is None:
        sums = rows * pixels * vectors
        return {"sums": sums, "loads": (rows * pixels + vectors) / sums, "bytes": 4 * lanes * vectors}
    m, n, k = (np.maximum(1.0, extent) for extent in extents)
    along = pixels > 1  # tiles of a convolution are split along its columns
    parts = -(-m // np.where(along, pixels, rows))
    even = -(-m // parts) * np.where(along, rows, 1.0)
    columns, sums = vectors * lanes, even * vectors
    panels = -(-n // columns)
    # Rows or pixels read in place share sets of the first-level cache if they are multiples of 4 KiB apart.
    apart = WAY_BYTES // np.gcd(WAY_BYTES, (4 * _distance(choices, k)).astype(np.int64))
    is_copied = choices.get(f"{schedule}.stage_left", choices.get(f"{schedule}.stage", 1.0))
    conflict = np.where(is_copied == 0, np.ceil(even / apart), 0.0)
    task_rows = np.minimum(parts, choices.get(f"{schedule}.block_tiles", 1.0)) * even
    return {
        "sums": sums, "loads": (even + vectors) / sums, "edge": panels * columns / n,
        "panels": panels, "parts": parts, "panel bytes": 4 * k * columns, "task rows": task_rows,
        "in conflict": conflict, "left bytes": 4 * k * task_rows, "right bytes": 4 * k * n,
        "task panels": np.minimum(panels, choices.get(f"{schedule}.block_panels", 1.0)),
    }  # fmt: skip
