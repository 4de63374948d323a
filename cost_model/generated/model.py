"""The learned model: for each template, trees that predict the ratio of a kernel's time to that of the laws.

It was fitted to kernels measured with one thread. The laws alone predict the gain from several threads, and everything
without trees: GPUs, and templates that were not measured. To another machine the model is adapted by a few measurements
there: a factor, and its dependence on the length of kernels, for each template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.facts import KernelFacts, Launch, Part
from tilestitch.cost_model.library.trees import Forest, forest_from_json
from tilestitch.cost_model.on_cpu import one_core, predict_on_cpu
from tilestitch.cost_model.on_cpu_batch import BOUNDS, Laws, laws_of
from tilestitch.cost_model.protocol import AnyDevice, Prediction

from .features import COMMON, Described, described, matrix

SLOPE_TRUST, TEMPLATE_TRUST = 20.0, 5.0
"""Measurements at which a slope, and a template-specific correction, get half of their full weight."""
OUTLIER = 1.0
"""Logarithmic errors beyond this are clipped to it."""
SHIPPED = Path(__file__).with_name("cpu.json")
FORMAT = 1
LEAST_GAIN = 0.4
"""The default for the gain that must be predicted for a plan, relative to its time, where too few plans were measured.
Of 45 with smaller predicted gains, seven were slower than the rules'; of the five with at least this, none.
"""
ENDS = ("latency", "low", "high")


@dataclass(frozen=True)
class Adaptation:
    """Linear corrections as functions of the logarithm of the prediction: for all kernels, and additionally per
    template.

    lines: template to (offset, slope); "" is the common one.
    """

    lines: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    centre: float = 0.0

    def of(self, templates: Sequence[str], logs: np.ndarray) -> np.ndarray:
        """Return the corrections to add to logarithms of predicted microseconds."""
        base = self.lines.get("", (0.0, 0.0))
        own = np.array([self.lines.get(name, (0.0, 0.0)) for name in templates]).reshape(-1, 2)
        return base[0] + own[:, 0] + (base[1] + own[:, 1]) * (logs - self.centre)

    def to_json(self) -> dict[str, Any]:
        return {"centre": self.centre, "lines": {name: list(line) for name, line in sorted(self.lines.items())}}

    @staticmethod
    def from_json(data: Any) -> Adaptation:
        """Return the adaptation in JSON data. Raises ValueError and its like unless `data` is as `to_json` writes
        it.
        """
        lines = {str(name): (float(offset), float(slope)) for name, (offset, slope) in data["lines"].items()}
        centre = float(data["centre"])
        if not all(map(isfinite, (centre, *chain(*lines.values())))):
            raise ValueError("its adaptation is not finite")
        return Adaptation(lines, centre)


def adapted(templates: Sequence[str], logs: np.ndarray, measured: np.ndarray) -> Adaptation:
    """Return lines that map logarithms of predictions to those of measurements, regularised by their number."""
    if not len(logs):
        return Adaptation()
    centre = float(np.median(logs))
    wrong = measured - logs
    lines = {"": _line(logs - centre, wrong, 0.0)}
    left = wrong - (lines[""][0] + lines[""][1] * (logs - centre))
    names = np.array(templates)
    for name in sorted(set(templates)):
        mine = names == name
        lines[name] = _line(logs[mine] - centre, left[mine], TEMPLATE_TRUST)
    return Adaptation(lines, centre)


def _line(x: np.ndarray, y: np.ndarray, trust: float) -> tuple[float, float]:
    """Return offset and slope by ridge regression, after clipping outliers."""
    y = np.clip(y, np.median(y) - OUTLIER, np.median(y) + OUTLIER)
    normal = np.array([[len(x) + trust, x.sum()], [x.sum(), (x * x).sum() + SLOPE_TRUST]])
    offset, slope = np.linalg.solve(normal, np.array([y.sum(), (x * y).sum()]))
    return float(offset), float(slope)


@dataclass(frozen=True)
class Template:
    """The learned parameters of one template. names: choices that are features. low, high: factors on a prediction that
    contain 80 % of the measurements on held-out models.
    """

    forest: Forest
    names: tuple[str, ...]
    low: float
    high: float


@dataclass(frozen=True)
class LearnedModel:
    """Predicts kernels on CPUs. `facts`: the recipe, training data and accuracy; for information."""

    templates: Mapping[str, Template]
    adaptation: Adaptation = field(default_factory=Adaptation)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def judges_schedules(self) -> Mapping[str, float]:
        """The templates whose schedules it can compare, with the relative gain that must be predicted for a schedule to
        replace that of the rules: enough to be hardly ever slower for held-out kernels.
        """
        gains: Mapping[str, Any] = self.facts.get("schedule_gains", {})
        return {name: float(gain) for name, gain in gains.items() if name in self.templates}

    @property
    def least_gain(self) -> float:
        """The relative gain that must be predicted for another plan than that of the rules, likewise."""
        return float(self.facts.get("least_gain", LEAST_GAIN))

    @property
    def name(self) -> str:
        return "learned"

    def __hash__(self) -> int:
        return id(self)

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        if not isinstance(device, CpuDevice):
            return ANALYTICAL.predict(batch, device)
        parts = [part for kernel in batch for launch in kernel.sequence for stage in launch.stages for part in stage]
        rows = described(parts, one_core(device))
        factors = self._factors(rows)
        single = self._single(rows, rows.laws if device.cores == 1 else laws_of(rows.columns, device), factors, device)
        found, first = [], 0
        for kernel in batch:
            launches = []
            for launch in kernel.sequence:
                end = first + sum(map(len, launch.stages))
                mine = slice(first, end)
                alone = end - first == 1
                launches.append(
                    single[first] if alone else self._launch(launch, device, factors[mine], rows.laws.latency_us[mine])
                )
                first = end
            found.append(launches[0] if len(launches) == 1 else _in_turn(launches))
        return found

    def _factors(self, rows: Described) -> np.ndarray:
        """Return for each part the laws' error factor on one core."""
        templates = [part.template for part in rows.parts]
        logs = np.zeros(len(templates))
        for name in dict.fromkeys(templates):
            if name not in self.templates:
                continue
            places = [at for at, template in enumerate(templates) if template == name]
            mine = matrix(rows.common[:, places], [rows.parts[at] for at in places], self.templates[name].names)
            logs[places] = self.templates[name].forest(mine)
        logs += self.adaptation.of(templates, logs + np.log(rows.laws.latency_us))
        return np.exp(logs)

    def _single(self, rows: Described, laws: Laws, factors: np.ndarray, cpu: CpuDevice) -> list[Prediction]:
        """Return the predictions of parts as kernels. Launch overheads are no lower bound here: measurements tell more
        than the laws.
        """
        spreads = {name: (one.low, one.high) for name, one in self.templates.items()}
        ends = np.array([spreads.get(part.template, (1.0, 1.0)) for part in rows.parts]).reshape(-1, 2)
        floor_us = np.maximum(0.0, laws.low_us - cpu.launch_us)
        latency_us = np.maximum(laws.latency_us * factors, floor_us)
        low_us = np.minimum(latency_us, np.maximum(latency_us * ends[:, 0], floor_us))
        high_us = np.maximum(latency_us, latency_us * ends[:, 1])
        columns = (latency_us.tolist(), low_us.tolist(), high_us.tolist(), (BOUNDS[at] for at in laws.bound.tolist()))
        return [Prediction(*one) for one in zip(*columns, strict=True)]

    def _launch(self, launch: Launch, cpu: CpuDevice, factors: np.ndarray, laws_us: np.ndarray) -> Prediction:
        """Return the prediction of a launch; parallel parts share the mean of their factors."""
        law = predict_on_cpu(KernelFacts((launch,)), cpu)
        low, high = self._spread(launch.parts)
        floor_us = max(0.0, law.low_us - cpu.launch_us)
        latency_us = max(law.latency_us * float((factors * laws_us).sum() / laws_us.sum()), floor_us)
        ends = min(latency_us, max(latency_us * low, floor_us)), max(latency_us, latency_us * high)
        return Prediction(latency_us, *ends, law.bound)

    def _spread(self, parts: Sequence[Part]) -> tuple[float, float]:
        """Return the factors that give the interval of a prediction of parts."""
        spreads = [self.templates[part.template] for part in parts if part.template in self.templates]
        return min((t.low for t in spreads), default=1.0), max((t.high for t in spreads), default=1.0)

    def to_json(self) -> dict[str, Any]:
        templates = {
            name: {"names": list(t.names), "low": t.low, "high": t.high, "forest": t.forest.to_json()}
            for name, t in sorted(self.templates.items())
        }
        adaptation = self.adaptation.to_json()
        return {"format": FORMAT, "facts": dict(self.facts), "adaptation": adaptation, "templates": templates}


def _in_turn(launches: Sequence[Prediction]) -> Prediction:
    """Return the prediction of launches in sequence."""
    latency_us, low_us, high_us = (sum(getattr(p, f"{end}_us") for p in launches) for end in ENDS)
    return Prediction(latency_us, low_us, high_us, max(launches, key=lambda p: p.latency_us).bound)


def learned_from_json(data: Any, where: str) -> LearnedModel:
    """Return the model in JSON data. Raises MeasurementError unless `data` is as `to_json` writes it."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise MeasurementError(f"{where} is no learned model of format {FORMAT}; train it again")
    try:
        templates = {str(name): _template(one) for name, one in data["templates"].items()}
        model = LearnedModel(templates, Adaptation.from_json(data["adaptation"]), dict(data["facts"]))
        if not all(0 <= gain < 1 for gain in (model.least_gain, *model.judges_schedules.values())):
            raise ValueError("a gain is no share")
    except MeasurementError as error:
        raise MeasurementError(f"{where}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MeasurementError(f"{where} is damaged ({error}); train it again") from None
    return model


def _template(data: Mapping[str, Any]) -> Template:
    """Return a template's parameters in JSON data. Raises ValueError and its like for invalid data."""
    found = Template(
        forest_from_json(data["forest"]), tuple(map(str, data["names"])), float(data["low"]), float(data["high"])
    )
    if found.forest.outputs != 1 or found.forest.features > len(COMMON) + len(found.names):
        raise ValueError("its trees are not of its features")
    if not 0 <= found.low <= found.high < inf:
        raise ValueError(f"its factors {found.low} and {found.high} are no interval")
    return found


def load_learned(path: str | Path) -> LearnedModel:
    """Return the model in a file. Raises MeasurementError for a file that is no learned model."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MeasurementError(f"{path} cannot be read as a learned model: {error}") from None
    return learned_from_json(data, str(path))


@cache
def shipped() -> LearnedModel:
    return load_learned(SHIPPED)
