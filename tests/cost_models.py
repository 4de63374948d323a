"""Cost models that let tests say which kernels are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.facts import KernelFacts, Unit
from tilestitch.cost_model.protocol import AnyDevice, Prediction, latency_us
from tilestitch.passes.api import CostModel

ANALYTICAL = AnalyticalModel()


@dataclass(frozen=True)
class Preferring(CostModel):
    """Predicts as the analytical model does, but a second more for contractions on other units than `unit`."""

    unit: Unit
    name: ClassVar[str] = "preferring"

    def latency_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        return latency_us(self, kernel, device)

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        found = ANALYTICAL.predict(batch, device)
        return [self._judged(*each) for each in zip(batch, found, strict=True)]

    def _judged(self, kernel: KernelFacts, found: Prediction) -> Prediction:
        if not kernel.fma or kernel.operations(self.unit):
            return found
        return replace(found, latency_us=found.latency_us + 1e6, high_us=found.high_us + 1e6)


@dataclass(frozen=True)
class DearBarriers:
    """Predicts as the analytical model does, but a second more for each wait of the whole grid."""

    name: str = "dear_barriers"

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        found = ANALYTICAL.predict(batch, device)
        added = [1e6 * kernel.grid_barriers for kernel in batch]
        return [
            replace(p, latency_us=p.latency_us + us, high_us=p.high_us + us) for p, us in zip(found, added, strict=True)
        ]


@dataclass(frozen=True)
class FreeBarriers:
    """Predicts as the analytical model does, but next to nothing for kernels that wait for the whole grid."""

    name: str = "free_barriers"

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        found = ANALYTICAL.predict(batch, device)
        return [FREE if k.grid_barriers else p for k, p in zip(batch, found, strict=True)]


FREE = Prediction(1e-3, 1e-3, 1e-3)
