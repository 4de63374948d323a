"""The latency models, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .analytical import ANALYTICAL
from .errors import MeasurementError
from .generated.model import load_learned, shipped
from .protocol import LatencyModel
from .random_model import RandomModel

MODELS: Mapping[str, Callable[[], LatencyModel]] = {
    "analytical": lambda: ANALYTICAL, "learned": shipped, "random": RandomModel,
}  # fmt: skip
"""`analytical` is the default; `learned` was trained on measured CPU kernels; `random` is the control, which shows how
much a search owes to its model.
"""


def model_named(name: str) -> LatencyModel:
    """Return the model with this name, or in a file written by training.

    Raises MeasurementError for an unknown name, and for an invalid file.
    """
    if name in MODELS:
        return MODELS[name]()
    if name.endswith(".json"):
        return load_learned(name)
    raise MeasurementError(f"cost model {name!r} is not known; give one of {', '.join(MODELS)}, or FILE.json")
