"""Latency from first principles: a roofline under measured ceilings, whole rounds of blocks, and fixed costs.

Sources. Structure: Williams et al., Roofline (CACM 2009); rounds of blocks times latency and the fixed launch cost:
FusionStitching (arXiv 2009.10924) sections 4 and 5; grid barriers: AStitch (ASPLOS 2022). Occupancy: CUDA C++
Programming Guide. Figures of machines: `devices.json` and `constants.py`, each with its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cpu import CpuDevice
from .devices import Device
from .facts import KernelFacts
from .on_cpu import predict_on_cpu
from .on_gpu import predict_on_gpu
from .protocol import AnyDevice, Prediction


@dataclass(frozen=True)
class AnalyticalModel:
    """Roofline with rounds, occupancy, launches and barriers. Good for choosing between plans, not for promises.

    low_us is what nominal rates allow, high_us what it takes if nothing overlaps.
    """

    @property
    def name(self) -> str:
        return "analytical"

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        if isinstance(device, CpuDevice):
            return [predict_on_cpu(kernel, device) for kernel in batch]
        if isinstance(device, Device):
            return [predict_on_gpu(kernel, device) for kernel in batch]
        raise ValueError(f"the analytical model knows CpuDevice and Device, not {type(device).__name__}")


ANALYTICAL = AnalyticalModel()
"""What is asked where no other model is given. One for all: what planning finds out is kept with the model it asked."""
