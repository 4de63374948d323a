"""Folders of measured kernels and models: kernels/*.csv.gz, models/end_to_end.csv, models/opgraph/, devices.csv."""

import csv
import gzip
import hashlib
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.data import CONV, GEMM_CLASSES, KernelTable
from tilestitch.cost_model.library.gemm import TILES
from tilestitch.cost_model.library.rows import OPERANDS

SIZES = {
    **dict.fromkeys(GEMM_CLASSES, ("B", "M", "N", "K")),
    CONV: ("B", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding"),
}
"""Size columns of kernels that differ from B and H."""
LARGE = "_large_shapes"
LARGEST = 2.0**53
"""Largest size that is distinguished from its neighbours."""
_TILE = re.compile(r"(\d+)x(\d+)")


def read_kernels(folder: Path, name: str) -> tuple[KernelTable | None, dict[str, int]]:
    """Return the class's two files in `folder`/kernels as one table, None if there are no measurements; and, per file,
    how many rows were skipped for lack of a latency or of a kernel that can be predicted.
    """
    tables: list[KernelTable] = []
    left_out: dict[str, int] = {}
    for suffix in ("", LARGE):
        path = folder / "kernels" / f"{name}{suffix}.csv.gz"
        if not path.is_file():
            continue
        found, unusable = _read_table(path, name, bool(suffix))
        tables += [found] if len(found) else []
        left_out |= {path.name: unusable} if unusable else {}
    if not tables:
        return None, left_out
    columns = ("gpu", "op", "us", "large", "sizes", "tile", "split")
    return KernelTable(name, *(np.concatenate([getattr(t, c) for t in tables]) for c in columns)), left_out


def _read_table(path: Path, name: str, large: bool) -> tuple[KernelTable, int]:
    columns = SIZES.get(name, ("B", "H"))
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            wanted = {"op", "gpu", "latency_ms", *columns}
            if not wanted <= set(reader.fieldnames or ()):
                raise MeasurementError(f"{path} lacks columns: it needs {', '.join(sorted(wanted))}")
            given = list(reader)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise MeasurementError(f"{path} cannot be read ({error}); give rows of numbers, gzipped") from error
    us = np.array([_number(row["latency_ms"]) for row in given]) * 1e3
    sizes = np.array([[_number(row[column]) for column in columns] for row in given]).reshape(-1, len(columns))
    usable = _are_usable(us, sizes, columns) & np.array([_is_known(row["op"], name) for row in given], bool)
    rows = [row for row, kept in zip(given, usable, strict=True) if kept]
    facts = [_tile_and_split(row, shape, name) for row, shape in zip(rows, sizes[usable], strict=True)]
    table = KernelTable(
        name,
        np.array([row["gpu"] for row in rows], str),
        np.array([row["op"] for row in rows], str),
        us[usable],
        np.full(len(rows), large),
        sizes[usable].astype(np.int64),
        np.array([fact[0] for fact in facts], np.intp),
        np.array([fact[1] for fact in facts], float),
    )
    return table, len(given) - len(rows)


def _number(text: str | None) -> float:
    """Return the number in a text; NaN if there is none."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _are_usable(us: np.ndarray, sizes: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """Return for each row whether its latency is positive and its sizes are valid integers for a kernel."""
    least = np.array([column != "padding" for column in columns], float)
    with np.errstate(invalid="ignore"):
        whole = ((sizes == np.floor(sizes)) & (sizes >= least) & (sizes <= LARGEST)).all(axis=1)
        return whole & np.isfinite(us) & (us > 0)


def _is_known(op: str | None, name: str) -> bool:
    return name != "elementwise" or op in OPERANDS


def _tile_and_split(row: Mapping[str, str], sizes: np.ndarray, name: str) -> tuple[int, int]:
    """Return the tile that a kernel's name states, if its grid confirms it, and how often the grid splits the
    contraction.
    """
    match = _TILE.search(row.get("kernel") or "") if name in GEMM_CLASSES else None
    if match is None or (tile := (int(match[1]), int(match[2]))) not in TILES:
        return -1, 1
    try:
        grid = [int(float(row[f"grid_{axis}"])) for axis in "xyz"]
    except (KeyError, ValueError, TypeError, OverflowError):
        return -1, 1
    batch, m, _, k = (int(size) for size in sizes)
    if grid[:2] != [-(-k // tile[0]), -(-m // tile[1])]:
        return -1, 1
    return TILES.index(tile), max(1, grid[2] // batch)


def launch_floor_us(table: KernelTable) -> np.ndarray:
    """Return for each row the time of the smallest kernels of its operator on its GPU: the first percentile."""
    floor = np.zeros(len(table))
    for gpu in np.unique(table.gpu):
        for op in np.unique(table.op):
            rows = (table.gpu == gpu) & (table.op == op)
            ordinary = rows & ~table.large
            if rows.any():
                floor[rows] = np.quantile(table.us[ordinary if ordinary.any() else rows], 0.01)
    return floor


def hashes(paths: Iterable[Path], folder: Path) -> dict[str, str]:
    """Return the SHA-256 of files, by their path below `folder`."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}
