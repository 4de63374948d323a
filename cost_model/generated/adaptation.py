"""Adaptation of a model trained on another machine to a few measurements on this one: a factor, and its dependence on
the length of kernels, for each template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np

SLOPE_TRUST, TEMPLATE_TRUST = 20.0, 5.0
"""Measurements at which a slope, and a template-specific correction, get half of their full weight."""
OUTLIER = 1.0
"""Logarithmic errors beyond this are clipped to it."""


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
