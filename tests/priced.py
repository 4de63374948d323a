"""Latency models for tests, which say how long one kernel takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice, Prediction


@dataclass(frozen=True)
class Priced(ABC):
    """A model is `price_us` of one kernel."""

    @abstractmethod
    def price_us(self, kernel: KernelFacts, device: AnyDevice) -> float: ...

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        prices = [self.price_us(kernel, device) for kernel in batch]
        return [Prediction(us, us, us) for us in prices]
