"""The model of library kernels as one file: training data, accuracy and parameters."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.classes import (
    Adapted,
    ConvModel,
    GemmModel,
    RowModel,
    convs_from_json,
    gemm_from_json,
    rows_from_json,
    sheets_from_json,
)
from tilestitch.cost_model.library.convolution import Convs
from tilestitch.cost_model.library.data import CLASSES, CONV, GEMM_CLASSES, KINDS, Kernel, KernelTable
from tilestitch.cost_model.library.gemm import Gemms
from tilestitch.cost_model.library.hierarchy import alone_us
from tilestitch.cost_model.library.rows import RowKernels, row_kernels
from tilestitch.cost_model.library.sheet import FIELDS, DataSheet

FORMAT = 3
SHIPPED = Path(__file__).with_name("library.json")
COPY_WIDTH = 1024.0
EAGER_GAP_SHARE = 0.3
"""Fraction of the gap before a kernel launched alone that remains where a host launches kernels back to back."""
IN_SEQUENCE = 0.97
"""Time of a kernel in a model relative to the same kernel alone with cold caches: the mean over whole models, predicted
from 20 measured kernels per class, on the GPUs that the model is fitted to.
"""
OTHER_SPREAD = (0.8, 1.25)
"""The interval of a class or total without measured errors."""

ClassModel = GemmModel | RowModel | ConvModel
Kernels = Gemms | RowKernels | Convs


@dataclass(frozen=True)
class Spread:
    """Factors on a prediction that contain 80 % of the measurements."""

    low: float
    high: float

    def holds(self, ratios: np.ndarray) -> np.ndarray:
        return (self.low <= ratios) & (ratios <= self.high)


@dataclass(frozen=True)
class Timed:
    """A prediction in microseconds. body_us: of the kernel itself; gap_us: overhead before and after one launched
    alone; least_us: lower bound for any kernel.
    """

    body_us: np.ndarray
    gap_us: np.ndarray
    least_us: np.ndarray


@dataclass(frozen=True)
class LibraryModel:
    """Predicts kernels of libraries on any GPU with a data sheet. spreads: by mode (`zero_shot`, `calibrated`) and
    class, and of totals by `model` and `fused`. facts: recipe, hashes of data, validation.
    """

    classes: Mapping[str, ClassModel]
    sheets: Mapping[str, DataSheet]
    spreads: Mapping[str, Mapping[str, Spread]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def expected(self, sheet: DataSheet) -> dict[str, Adapted]:
        """Return the assumed traits of a GPU for each class, from its data sheet alone."""
        return {name: model.expected(sheet) for name, model in self.classes.items()}

    def predict_table(self, table: KernelTable, to: Adapted) -> np.ndarray:
        """Return the microseconds of each row of a table; all rows are from the GPU of `to`."""
        return alone_us(self._body_us(table.name, _of_table(table), to), to.traits)

    def adapted(self, table: KernelTable, to: Adapted) -> Adapted:
        """Return the traits of the class adapted to the measurements in `table`."""
        model = self.classes[table.name]
        if isinstance(model, GemmModel):
            return model.adapted(to, table.gemms(), table.tile, table.us)
        if isinstance(model, ConvModel):
            return model.adapted(to, table.convs(), table.us)
        return model.adapted(to, table.rows(), table.us)

    def times(self, kernels: Sequence[Kernel], to: Mapping[str, Adapted]) -> Timed:
        """Return the predictions for the kernels of a graph, in order."""
        body, gap, least = np.zeros(len(kernels)), np.zeros(len(kernels)), np.zeros(len(kernels))
        for name in (*CLASSES, "copy"):
            at = [number for number, kernel in enumerate(kernels) if kernel.kernel_class == name]
            if not at:
                continue
            known = "elementwise" if name == "copy" else name
            if known not in self.classes:
                raise MeasurementError(f"the model knows no {known} kernels; train it on measurements of some")
            asked = _as_table(name, [kernels[number] for number in at])
            body[at] = self._body_us(known, asked, to[known])
            gap[at] = to[known].gap_us
            least[at] = self._least_us(known, asked, to[known])
        return Timed(body, gap, least)

    def spread(self, name: str, mode: str) -> Spread:
        return self.spreads.get(mode, {}).get(name, Spread(*OTHER_SPREAD))

    def _body_us(self, name: str, kernels: Kernels, to: Adapted) -> np.ndarray:
        model = self.classes[name]
        if isinstance(model, GemmModel) and isinstance(kernels, Gemms):
            return model.body_us(kernels, to)
        if isinstance(model, ConvModel) and isinstance(kernels, Convs):
            return model.body_us(kernels, to)
        assert isinstance(model, RowModel) and isinstance(kernels, RowKernels)
        return model.body_us(kernels, to)

    def _least_us(self, name: str, kernels: Kernels, to: Adapted) -> np.ndarray:
        model = self.classes[name]
        if isinstance(model, GemmModel) and isinstance(kernels, Gemms):
            return model.least_us(kernels, to.sheet)
        if isinstance(model, ConvModel) and isinstance(kernels, Convs):
            return model.least_us(kernels, to.sheet)
        assert isinstance(model, RowModel) and isinstance(kernels, RowKernels)
        return model.least_us(kernels, to.sheet)

    def to_json(self) -> dict[str, Any]:
        sheets = {
            name: {column: getattr(sheet, column) for column in FIELDS if column != "gpu"}
            for name, sheet in sorted(self.sheets.items())
        }
        spreads = {
            mode: {name: [float(f"{s.low:.4g}"), float(f"{s.high:.4g}")] for name, s in sorted(found.items())}
            for mode, found in sorted(self.spreads.items())
        }
        return {
            "format": FORMAT,
            **self.facts,
            "gpus": sheets,
            "intervals": spreads,
            "classes": {name: model.to_json() for name, model in self.classes.items()},
        }


def total_us(times: Timed, counts: np.ndarray) -> float:
    """Return the microseconds of a model whose kernels run in sequence, launched eagerly."""
    return float(np.sum(counts * in_sequence_us(times)))


def in_sequence_us(times: Timed) -> np.ndarray:
    """Return the microseconds of each kernel within a long sequence, including the gap before it."""
    return np.maximum(IN_SEQUENCE * times.body_us, times.least_us) + EAGER_GAP_SHARE * times.gap_us


def _of_table(table: KernelTable) -> Kernels:
    if table.name == CONV:
        return table.convs()
    return table.gemms() if table.is_gemm else table.rows()


def _as_table(name: str, kernels: Sequence[Kernel]) -> Kernels:
    sizes = np.array([kernel.sizes for kernel in kernels], float)
    if name in GEMM_CLASSES:
        batch, m, n, k = sizes.T
        return Gemms(batch, m, n, k, name == "linear")
    if name == CONV:
        return Convs(*sizes.T)
    if name == "copy":
        # Moves as many bytes as an operator that reads one tensor and writes one.
        elements = sizes.sum(axis=1) / 8.0
        ops = np.full(len(kernels), "mulu")
        return row_kernels("elementwise", ops, elements / COPY_WIDTH, np.full(len(kernels), COPY_WIDTH))
    ops = np.array([kernel.op for kernel in kernels])
    return row_kernels(KINDS[name], ops, sizes[:, 0], sizes[:, 1])


def read_model(path: Path = SHIPPED) -> LibraryModel:
    """Return the model in a file; by default the one shipped with tilestitch."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise MeasurementError(f"{path} has format {found['format']}, not {FORMAT}; train the model again")
        return _model_of(found, str(path))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise MeasurementError(f"{path} is no model of library kernels ({error!r}); train one") from error


@cache
def shipped_model() -> LibraryModel:
    return read_model()


def _model_of(found: Mapping[str, Any], where: str) -> LibraryModel:
    sheets = sheets_from_json(found["gpus"], where)
    classes: dict[str, ClassModel] = {}
    for name, parameters in found["classes"].items():
        if name in GEMM_CLASSES:
            classes[name] = gemm_from_json(parameters, sheets)
        elif name in KINDS:
            classes[name] = rows_from_json(KINDS[name], parameters, sheets)
    if CONV in found["classes"]:
        batched, shared = (classes[name] for name in GEMM_CLASSES)
        if not (isinstance(shared, GemmModel) and isinstance(batched, GemmModel)):
            raise MeasurementError(f"{where} has convolutions without GEMMs; train the model again")
        classes[CONV] = convs_from_json(found["classes"][CONV], sheets, shared, batched)
    spreads = {mode: {n: Spread(*pair) for n, pair in one.items()} for mode, one in found["intervals"].items()}
    facts = {key: value for key, value in found.items() if key not in ("format", "gpus", "intervals", "classes")}
    return LibraryModel(classes, sheets, spreads, facts)
