"""The latency models that can be chosen by name."""

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
"""`analytical` is the default; `learned` was trained on measured kernels of CPUs; `random` is the control, to see what
a search owes to its model.
"""


def model_named(name: str) -> LatencyModel:
    """Return the model of this name, or of a file that training wrote.

    Raises MeasurementError for a name of no model, and for a file that is none.
    """
    if name in MODELS:
        return MODELS[name]()
    if name.endswith(".json"):
        return load_learned(name)
    raise MeasurementError(f"cost model {name!r} is not known; give one of {', '.join(MODELS)}, or FILE.json")
