"""The control: a latency model without knowledge. A search that does no better with a real model is worthless."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from .facts import KernelFacts
from .protocol import AnyDevice, Prediction

LEAST_US, MOST_US = 1.0, 100.0


@dataclass(frozen=True)
class RandomModel:
    """Meaningless latencies between 1 and 100 microseconds that depend on the seed, the kernel and the device."""

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
