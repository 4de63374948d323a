"""The latency models, by name."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .analytical import ANALYTICAL
from .errors import MeasurementError
from .facts import KernelFacts
from .generated.model import load_learned, shipped
from .protocol import AnyDevice, LatencyModel, Prediction

LEAST_US, MOST_US = 1.0, 100.0


@dataclass(frozen=True)
class RandomModel:
    """The control: meaningless latencies between 1 and 100 microseconds that depend on the seed, the kernel and the
    device. A search that does no better with a real model is worthless.
    """

    seed: int = 0

    @property
    def name(self) -> str:
        return "random"

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        return [self._predict(kernel, device) for kernel in batch]

    def _predict(self, kernel: KernelFacts, device: AnyDevice) -> Prediction:
        digest = hashlib.sha256(f"{self.seed}\0{kernel!r}\0{device.name}".encode()).digest()
        latency_us = (MOST_US / LEAST_US) ** (int.from_bytes(digest[:8], "big") / 2**64)
        return Prediction(float(LEAST_US * latency_us), LEAST_US, MOST_US)


MODELS: Mapping[str, Callable[[], LatencyModel]] = {
    "analytical": lambda: ANALYTICAL, "learned": shipped, "random": RandomModel,
}  # fmt: skip
"""`analytical` is the default; `learned` was trained on measured CPU kernels; `random` is the control."""


def model_named(name: str) -> LatencyModel:
    """Return the model with this name, or in a file written by training.

    Raises MeasurementError for an unknown name, and for an invalid file.
    """
    if name in MODELS:
        return MODELS[name]()
    if name.endswith(".json"):
        return load_learned(name)
    raise MeasurementError(f"cost model {name!r} is not known; give one of {', '.join(MODELS)}, or FILE.json")
