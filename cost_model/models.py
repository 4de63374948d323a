"""The latency models that can be chosen by name."""

from __future__ import annotations

from .analytical import AnalyticalModel
from .protocol import LatencyModel
from .random_model import RandomModel

MODELS: dict[str, LatencyModel] = {"analytical": AnalyticalModel(), "random": RandomModel()}
"""`analytical` is the default; `random` is the control, to see what a search owes to its model."""
