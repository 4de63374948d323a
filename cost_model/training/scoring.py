"""Comparison of predictions with a folder's measurements: by class of kernels, and for whole models."""

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.cost_model.devices import DeviceError, find_device
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.classes import Adapted
from tilestitch.cost_model.library.data import CLASSES, GRAPH_CLASSES, KernelTable
from tilestitch.cost_model.library.model import LibraryModel, total_us
from tilestitch.cost_model.library.sheet import FIELDS, DataSheet, sheet_of, sheet_of_device
from tilestitch.cost_model.training.graphs import read_graph
from tilestitch.cost_model.training.tables import launch_floor_us, read_kernels

SEED = 20
LARGE_SHARE = 0.25
"""Fraction of large shapes among calibration rows, where a class has a file of them."""
TWICE_THE_FLOOR = 2.0
MODEL_COLUMNS = ("model", "mode", "seq_len", "batch", "option", "gpu", "latency_ms")
SINGLE_GPU_OPTIONS = ("", "fusion")
FUSED = "fusion"


@dataclass(frozen=True)
class Folder:
    """Measurements as read. kernels: by class; models: rows of end_to_end.csv; any of them may be empty. left_out: the
    number of unusable rows per file.
    """

    path: Path
    sheets: Mapping[str, DataSheet]
    kernels: Mapping[str, KernelTable]
    models: Sequence[Mapping[str, str]]
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelScore:
    """Predictions for rows not used for calibration. us, measured_us: of each; clear: above twice the floor."""

    kernel_class: str
    gpu: np.ndarray
    us: np.ndarray
    measured_us: np.ndarray
    clear: np.ndarray
    large: np.ndarray

    def percent(self, rows: np.ndarray) -> float | None:
        """Return the mean absolute percentage error; None without rows."""
        if not rows.any():
            return None
        return float(100 * np.mean(np.abs(self.us[rows] / self.measured_us[rows] - 1)))


@dataclass(frozen=True)
class ModelScore:
    """A whole model: the measurement, the prediction, and its 80 % interval."""

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
    """Return the measurements in a folder. Raises MeasurementError for unreadable files. GPUs are looked up in
    devices.csv when needed.
    """
    tables: dict[str, KernelTable] = {}
    left_out: dict[str, int] = {}
    for name in CLASSES:
        table, unusable = read_kernels(path, name)
        tables |= {} if table is None else {name: table}
        left_out |= unusable
    models, unusable = _read_models(path / "models" / "end_to_end.csv")
    if not tables and not left_out and not models and not unusable and not any(path.glob("kernels/*.csv.gz")):
        raise MeasurementError(f"{path} holds no measurements; give kernels/*.csv.gz or models/end_to_end.csv in it")
    measured = {str(gpu) for table in tables.values() for gpu in table.gpu} | {row["gpu"] for row in models}
    devices = path / "devices.csv"
    sheets = read_sheets(devices, measured) if devices.is_file() else {}
    return Folder(path, sheets, tables, models, left_out | unusable)


def _read_models(path: Path) -> tuple[list[dict[str, str]], dict[str, int]]:
    """Return the rows with one GPU, and per file the number of rows without latency or with invalid sizes."""
    if not path.is_file():
        return [], {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if not set(MODEL_COLUMNS) <= set(reader.fieldnames or ()):
                raise MeasurementError(f"{path} lacks columns: it needs {', '.join(MODEL_COLUMNS)}")
            rows = [{key: row[key] or "" for key in MODEL_COLUMNS} for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise MeasurementError(f"{path} cannot be read ({error}); give columns {', '.join(MODEL_COLUMNS)}") from error
    usable = [row for row in rows if _is_usable(row)]
    return usable, {path.name: len(rows) - len(usable)} if len(usable) < len(rows) else {}


def _is_usable(row: Mapping[str, str]) -> bool:
    try:
        return 0 < float(row["latency_ms"]) < inf and min(int(row["seq_len"]), int(row["batch"])) > 0
    except ValueError:
        return False


def sheet_for(folder: Folder, gpu: str, known: Mapping[str, DataSheet]) -> DataSheet:
    """Return the data sheet of a GPU from the folder, else from `known` ones, or the table of devices."""
    for sheets in (folder.sheets, known):
        same = (sheet for name, sheet in sheets.items() if spelling(name) == spelling(gpu))
        if (found := sheets.get(gpu, next(same, None))) is not None:
            return replace(found, gpu=gpu)
    try:
        return replace(sheet_of_device(find_device(gpu)), gpu=gpu)
    except DeviceError:
        devices = folder.path / "devices.csv"
        raise MeasurementError(f"{devices} has no row for {gpu}, which was measured; add it") from None


# -- kernels -----------------------------------------------------------------------------------------------------------


def calibration_rows(table: KernelTable, predicted_us: np.ndarray, host_us: float, count: int, seed: int) -> np.ndarray:
    """Return the rows to measure first on a new GPU, chosen without looking at measurements: the smallest, which
    reveals the host overhead; others spread evenly over predicted times, well above it where there are enough. Some are
    large shapes if there are any.
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
        clear = pool[predicted_us[pool] > TWICE_THE_FLOOR * host_us]
        pool = clear if len(clear) >= 5 * wanted else pool
        pool = pool[np.argsort(predicted_us[pool], kind="stable")]
        chosen += [random.choice(part) for part in np.array_split(pool, wanted)]
    return np.array(chosen, int)


def score_kernels(
    model: LibraryModel, folder: Folder, gpus: Iterable[str], calibrate: int
) -> tuple[list[KernelScore], dict[str, dict[str, Adapted]]]:
    """Return the scores by class and GPU, and each GPU's traits after calibration with `calibrate` rows per class."""
    scores = []
    taken = {gpu: model.expected(sheet_for(folder, gpu, model.sheets)) for gpu in gpus}
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
                rows = calibration_rows(table, us, taken[gpu][name].host_us, calibrate, SEED)
                taken[gpu][name] = model.adapted(table.take(rows), taken[gpu][name])
                us = model.predict_table(table, taken[gpu][name])
                rest[rows] = False
            clear = table.us > TWICE_THE_FLOOR * floor[own]
            found = (table.gpu, us, table.us, clear, table.large)
            scores.append(KernelScore(name, *(column[rest] for column in found)))
    return scores, taken


# -- whole models ------------------------------------------------------------------------------------------------------


def score_models(
    model: LibraryModel, folder: Folder, taken: Mapping[str, Mapping[str, Adapted]], calibrated: bool
) -> tuple[list[ModelScore], list[str]]:
    """Return the scores of whole models on the GPUs of `taken`, and the models that could not be predicted: the graph
    is missing, or uses several GPUs.

    calibrated: whether `taken` was calibrated, where kernels were available.
    """
    scores, missing = [], []
    for row in folder.models:
        if row["gpu"] not in taken or row["option"] not in SINGLE_GPU_OPTIONS:
            continue
        name = "-".join(row[key] for key in ("model", "mode", "seq_len", "batch", "option") if row[key])
        path = folder.path / "models" / "opgraph" / f"{name}.jsonl.gz"
        if not path.is_file():
            missing.append(f"{row['gpu']} {name}")
            continue
        try:
            kernels = read_graph(path, row["model"])
        except MeasurementError as error:
            missing.append(f"{row['gpu']} {name}: {error}")
            continue
        counts = np.array([kernel.times for kernel in kernels], float)
        ms = total_us(model.times(kernels, taken[row["gpu"]]), counts) / 1e3
        mode = "calibrated" if calibrated and has_every_class(folder, row["gpu"]) else "zero_shot"
        spread = model.spread("fused" if row["option"] == FUSED else "model", mode)
        scores.append(ModelScore(row, float(row["latency_ms"]), ms, ms * spread.low, ms * spread.high))
    return scores, missing


def has_every_class(folder: Folder, gpu: str) -> bool:
    """Return whether kernels of all classes that whole models consist of were measured on a GPU."""
    return all(name in folder.kernels and (folder.kernels[name].gpu == gpu).any() for name in GRAPH_CLASSES)


def percent(scores: Sequence[ModelScore]) -> float | None:
    if not scores:
        return None
    return float(100 * np.mean([abs(s.predicted_ms / s.measured_ms - 1) for s in scores]))


def read_sheets(path: Path, gpus: Collection[str] | None = None) -> dict[str, DataSheet]:
    """Return the GPUs of a devices.csv, by name; with `gpus`, only those, however spelled, as other rows may be
    faulty.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise MeasurementError(f"{path} cannot be read ({error}); give columns {', '.join(FIELDS)}") from error
    spelled = None if gpus is None else set(map(spelling, gpus))
    wanted = [row for row in rows if spelled is None or spelling(row.get("gpu") or "") in spelled]
    return {sheet.gpu: sheet for sheet in (sheet_of(row, str(path)) for row in wanted)}


def spelling(gpu: str) -> str:
    """Return a GPU's name without differences in spelling."""
    return "".join(letter for letter in gpu.casefold() if letter.isalnum())
