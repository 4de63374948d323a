"""Folders of measured kernels and models: kernels/*.csv.gz, models/end_to_end.csv, models/opgraph/, devices.csv."""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.convolution import Convs
from tilestitch.cost_model.library.gemm import TILES, Gemms
from tilestitch.cost_model.library.rows import Kind, RowKernels, row_kernels

GEMM_CLASSES = ("bmm", "linear")
CONV = "conv"
GRAPH_CLASSES = (*GEMM_CLASSES, "elementwise", "softmax", "layernorm")
"""Of which the measured whole models consist."""
CLASSES = (*GRAPH_CLASSES, CONV)
SIZES = {
    **dict.fromkeys(GEMM_CLASSES, ("B", "M", "N", "K")),
    CONV: ("B", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding"),
}
"""Columns that say how large a kernel is, where they are not B and H."""
KINDS: dict[str, Kind] = {"elementwise": "elementwise", "softmax": "softmax", "layernorm": "layernorm"}
LARGE = "_large_shapes"
_TILE = re.compile(r"(\d+)x(\d+)")


@dataclass(frozen=True)
class KernelTable:
    """Measured kernels of a class. large: from the file of large shapes; tile: position in TILES of what the kernel of
    a GEMM computes with, or -1; split: parts of its contraction. op: operator of an element-wise kernel.
    """

    name: str
    gpu: np.ndarray
    op: np.ndarray
    us: np.ndarray
    large: np.ndarray
    sizes: np.ndarray
    tile: np.ndarray
    split: np.ndarray

    def __len__(self) -> int:
        return len(self.us)

    def take(self, at: np.ndarray) -> KernelTable:
        arrays = (self.gpu, self.op, self.us, self.large, self.sizes, self.tile, self.split)
        return KernelTable(self.name, *(array[at] for array in arrays))

    @property
    def is_gemm(self) -> bool:
        return self.name in GEMM_CLASSES

    def gemms(self) -> Gemms:
        batch, m, n, k = self.sizes.T.astype(float)
        return Gemms(batch, m, n, k, self.name == "linear")

    def convs(self) -> Convs:
        batch, inputs, outputs, kernel, edge, stride, padding = self.sizes.T.astype(float)
        result = np.floor((edge + 2 * padding - kernel) / stride) + 1
        return Convs(batch, inputs, outputs, kernel, kernel, result, result, (stride == 1).astype(float))

    def rows(self) -> RowKernels:
        return row_kernels(KINDS[self.name], self.op, self.sizes[:, 0], self.sizes[:, 1])


def read_kernels(folder: Path, name: str) -> KernelTable | None:
    """The class's two files in `folder`/kernels as one table; None if there is neither."""
    tables = [
        _read_table(path, name, bool(suffix))
        for suffix in ("", LARGE)
        if (path := folder / "kernels" / f"{name}{suffix}.csv.gz").is_file()
    ]
    if not tables:
        return None
    columns = ("gpu", "op", "us", "large", "sizes", "tile", "split")
    return KernelTable(name, *(np.concatenate([getattr(t, c) for t in tables]) for c in columns))


def _read_table(path: Path, name: str, large: bool) -> KernelTable:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            sizes = SIZES.get(name, ("B", "H"))
            wanted = {"op", "gpu", "latency_ms", *sizes}
            if not wanted <= set(reader.fieldnames or ()):
                raise MeasurementError(f"{path} lacks columns: it needs {', '.join(sorted(wanted))}")
            rows = list(reader)
        us = np.array([float(row["latency_ms"]) for row in rows]) * 1e3
        shape = np.array([[int(row[column]) for column in sizes] for row in rows], np.int64).reshape(-1, len(sizes))
    except (OSError, EOFError, UnicodeDecodeError, ValueError, TypeError) as error:
        if isinstance(error, MeasurementError):
            raise
        raise MeasurementError(f"{path} cannot be read ({error}); give rows of numbers, gzipped") from error
    positive = shape[:, [column != "padding" for column in sizes]] > 0
    if not (np.isfinite(us).all() and (us > 0).all() and positive.all() and (shape >= 0).all()):
        raise MeasurementError(f"{path} has latencies or sizes that are not positive; remove such rows")
    facts = [_tile_and_split(row, name) for row in rows]
    return KernelTable(
        name,
        np.array([row["gpu"] for row in rows], str),
        np.array([row["op"] for row in rows], str),
        us,
        np.full(len(rows), large),
        shape,
        np.array([fact[0] for fact in facts], np.intp),
        np.array([fact[1] for fact in facts], float),
    )


def _tile_and_split(row: dict[str, str], name: str) -> tuple[int, int]:
    """The tile that a kernel's name tells, if its grid confirms it, and how often the grid splits the contraction."""
    match = _TILE.search(row.get("kernel") or "") if name in GEMM_CLASSES else None
    if match is None or (tile := (int(match[1]), int(match[2]))) not in TILES:
        return -1, 1
    try:
        grid = [int(float(row[f"grid_{axis}"])) for axis in "xyz"]
    except (KeyError, ValueError):
        return -1, 1
    if grid[:2] != [-(-int(row["K"]) // tile[0]), -(-int(row["M"]) // tile[1])]:
        return -1, 1
    batch = int(row["B"])
    return TILES.index(tile), max(1, grid[2] // batch)


def launch_floor_us(table: KernelTable) -> np.ndarray:
    """For each row, what the smallest kernels of its operator take on its GPU: the first percentile."""
    floor = np.zeros(len(table))
    for gpu in np.unique(table.gpu):
        for op in np.unique(table.op):
            rows = (table.gpu == gpu) & (table.op == op)
            ordinary = rows & ~table.large
            if rows.any():
                floor[rows] = np.quantile(table.us[ordinary if ordinary.any() else rows], 0.01)
    return floor


def hashes(paths: Iterable[Path], folder: Path) -> dict[str, str]:
    """SHA-256 of files, by their path below `folder`."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}
