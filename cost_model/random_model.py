"""The control: a latency model that knows nothing. A search that does no better with a real model is worth nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from .protocol import AnyDevice, KernelFacts


@dataclass(frozen=True)
class RandomModel:
    """Latencies between 1 and 100 microseconds that depend on the seed, the kernel and the device, and mean nothing."""

    seed: int = 0

    @property
    def name(self) -> str:
        return "random"

    def latency_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        digest = hashlib.sha256(f"{self.seed}\0{kernel!r}\0{device.name}".encode()).digest()
        return float(100.0 ** (int.from_bytes(digest[:8], "big") / 2**64))
