"""Predictions against measurements of a folder: by class of kernels, and whole models."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.classes import Adapted
from tilestitch.cost_model.library.data import CLASSES, KernelTable, launch_floor_us, read_kernels
from tilestitch.cost_model.library.graphs import read_graph
from tilestitch.cost_model.library.model import LibraryModel, total_us
from tilestitch.cost_model.library.sheet import DataSheet, read_sheets

SEED = 20
LARGE_SHARE = 0.25
"""Of the rows to calibrate with, where a class has a file of large shapes."""
TWICE_THE_FLOOR = 2.0
SINGLE_GPU_OPTIONS = ("", "fusion")
FUSED = "fusion"


@dataclass(frozen=True)
class Folder:
    """Measurements as read. kernels: by class; models: rows of end_to_end.csv; any of them may be empty."""

    path: Path
    sheets: Mapping[str, DataSheet]
    kernels: Mapping[str, KernelTable]
    models: Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class KernelScore:
    """Predictions of rows that were not calibrated with. us, measured_us: of each; clear: above twice the floor."""

    kernel_class: str
    gpu: np.ndarray
    us: np.ndarray
    measured_us: np.ndarray
    clear: np.ndarray
    large: np.ndarray

    def percent(self, rows: np.ndarray) -> float | None:
        """Mean absolute percentage error, None of no rows."""
        if not rows.any():
            return None
        return float(100 * np.mean(np.abs(self.us[rows] / self.measured_us[rows] - 1)))


@dataclass(frozen=True)
class ModelScore:
    """A whole model: what was measured, what is predicted, and between what it should lie with 80 %."""

    row: Mapping[str, str]
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float

    @property
    def fused(self) -> bool:
        return self.row["option"] == FUSED

    def to_json(self) -> dict[str, Any]:
        names = ("gpu", "model", "mode")
        numbers = {key: int(self.row[key]) for key in ("seq_len", "batch")}
        return {
            **{name: self.row[name] for name in names}, **numbers, "option": self.row["option"],
            "measured_ms": self.measured_ms, "predicted_ms": self.predicted_ms,
            "low_ms": self.low_ms, "high_ms": self.high_ms,
        }  # fmt: skip


def read_folder(path: Path) -> Folder:
    """Raises MeasurementError where devices.csv is missing: nothing can be predicted without data sheets."""
    if not (path / "devices.csv").is_file():
        raise MeasurementError(f"{path} has no devices.csv; give a folder with the data sheets of its GPUs")
    tables = {name: table for name in CLASSES if (table := read_kernels(path, name)) is not None}
    return Folder(path, read_sheets(path / "devices.csv"), tables, _read_models(path / "models" / "end_to_end.csv"))


def _read_models(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def sheet_for(folder: Folder, gpu: str) -> DataSheet:
    if gpu not in folder.sheets:
        raise MeasurementError(f"{folder.path / 'devices.csv'} has no row for {gpu}, which was measured; add it")
    return folder.sheets[gpu]


# -- kernels -----------------------------------------------------------------------------------------------------------


def calibration_rows(table: KernelTable, predicted_us: np.ndarray, gap_us: float, count: int, seed: int) -> np.ndarray:
    """Rows to measure first on a new GPU, chosen without looking at measurements: the smallest, which shows the gap
    before launches; others spread evenly over what is predicted for them, clear of that gap where there are enough.
    Some are large shapes where there are any.
    """
    random = np.random.default_rng(seed)
    smallest = int(np.argmin(predicted_us))
    others = np.arange(len(table)) != smallest
    large, ordinary = np.flatnonzero(table.large & others), np.flatnonzero(~table.large & others)
    most = min(count, len(table)) - 1
    of_large = min(len(large), max(int(most * LARGE_SHARE), most - len(ordinary)))
    chosen = [smallest]
    for pool, wanted in ((ordinary, most - of_large), (large, of_large)):
        if not wanted:
            continue
        clear = pool[predicted_us[pool] > TWICE_THE_FLOOR * gap_us]
        pool = clear if len(clear) >= 5 * wanted else pool
        pool = pool[np.argsort(predicted_us[pool], kind="stable")]
        chosen += [random.choice(part) for part in np.array_split(pool, wanted)]
    return np.array(chosen, int)


def score_kernels(
    model: LibraryModel, folder: Folder, gpus: Iterable[str], calibrate: int
) -> tuple[list[KernelScore], dict[str, dict[str, Adapted]]]:
    """Scores by class and GPU, and what each GPU's traits are taken for: after `calibrate` rows a class."""
    scores = []
    taken = {gpu: model.expected(sheet_for(folder, gpu)) for gpu in gpus}
    for name, whole in folder.kernels.items():
        if name not in model.classes:
            raise MeasurementError(f"the model knows no {name} kernels; train it on measurements of some")
        floor = launch_floor_us(whole)
        for gpu in taken:
            own = np.flatnonzero(whole.gpu == gpu)
            if not len(own):
                continue
            table, rest = whole.take(own), np.ones(len(own), bool)
            us = model.predict_table(table, taken[gpu][name])
            if calibrate:
                rows = calibration_rows(table, us, taken[gpu][name].gap_us, calibrate, SEED)
                taken[gpu][name] = model.adapted(table.take(rows), taken[gpu][name])
                us = model.predict_table(table, taken[gpu][name])
                rest[rows] = False
            clear = table.us > TWICE_THE_FLOOR * floor[own]
            found = (table.gpu, us, table.us, clear, table.large)
            scores.append(KernelScore(name, *(column[rest] for column in found)))
    return scores, taken


# -- whole models ------------------------------------------------------------------------------------------------------


def score_models(
    model: LibraryModel, folder: Folder, taken: Mapping[str, Mapping[str, Adapted]], mode: str
) -> tuple[list[ModelScore], list[str]]:
    """Whole models of one GPU, and what could not be predicted because its graph is missing."""
    scores, missing = [], []
    for row in folder.models:
        if row["gpu"] not in taken or row["option"] not in SINGLE_GPU_OPTIONS:
            continue
        name = "-".join(row[key] for key in ("model", "mode", "seq_len", "batch", "option") if row[key])
        path = folder.path / "models" / "opgraph" / f"{name}.jsonl.gz"
        if not path.is_file():
            missing.append(f"{row['gpu']} {name}")
            continue
        kernels = read_graph(path, row["model"])
        counts = np.array([kernel.times for kernel in kernels], float)
        ms = total_us(model.times(kernels, taken[row["gpu"]]), counts) / 1e3
        spread = model.spread("fused" if row["option"] == FUSED else "model", mode)
        scores.append(ModelScore(row, float(row["latency_ms"]), ms, ms * spread.low, ms * spread.high))
    return scores, missing


def percent(scores: Sequence[ModelScore]) -> float | None:
    if not scores:
        return None
    return float(100 * np.mean([abs(s.predicted_ms / s.measured_ms - 1) for s in scores]))
