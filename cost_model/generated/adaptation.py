"""What a few measurements on another machine say of a model that was trained elsewhere: it is slower or faster here by
so much, and more or less so for long kernels, in each template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np

SLOPE_TRUST, TEMPLATE_TRUST = 20.0, 5.0
"""Measurements that must speak for a slope, and for what is particular to a template, to be believed by half."""
OUTLIER = 1.0
"""Logarithms further than this from what is expected count as if they were so far."""


@dataclass(frozen=True)
class Adaptation:
    """A straight line over the logarithm of the prediction: for all kernels, and for each template besides.

    lines: template to (offset, slope); "" is that of all.
    """

    lines: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    centre: float = 0.0

    def of(self, templates: Sequence[str], logs: np.ndarray) -> np.ndarray:
        """Return what is to be added to logarithms of predicted microseconds."""
        base = self.lines.get("", (0.0, 0.0))
        own = np.array([self.lines.get(name, (0.0, 0.0)) for name in templates]).reshape(-1, 2)
        return base[0] + own[:, 0] + (base[1] + own[:, 1]) * (logs - self.centre)

    def to_json(self) -> dict[str, Any]:
        return {"centre": self.centre, "lines": {name: list(line) for name, line in sorted(self.lines.items())}}

    @staticmethod
    def from_json(data: Any) -> Adaptation:
        """Raise ValueError and its like unless `data` is what `to_json` writes."""
        lines = {str(name): (float(offset), float(slope)) for name, (offset, slope) in data["lines"].items()}
        centre = float(data["centre"])
        if not all(map(isfinite, (centre, *chain(*lines.values())))):
            raise ValueError("its adaptation is not finite")
        return Adaptation(lines, centre)


def adapted(templates: Sequence[str], logs: np.ndarray, measured: np.ndarray) -> Adaptation:
    """Return the lines that bring logarithms of predictions to those of measurements, as far as these suffice to
    tell.
    """
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
    """Offset and slope by ridge regression, after values far off have been drawn in."""
    y = np.clip(y, np.median(y) - OUTLIER, np.median(y) + OUTLIER)
    normal = np.array([[len(x) + trust, x.sum()], [x.sum(), (x * x).sum() + SLOPE_TRUST]])
    offset, slope = np.linalg.solve(normal, np.array([y.sum(), (x * y).sum()]))
    return float(offset), float(slope)
