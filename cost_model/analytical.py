"""Latency from first principles: a roofline with measured ceilings, wave quantisation, and fixed costs.

Sources. Structure: Williams et al., Roofline (CACM 2009); waves of blocks times latency, and the fixed launch cost:
FusionStitching (arXiv 2009.10924) sections 4 and 5; grid barriers: AStitch (ASPLOS 2022). Occupancy: CUDA C++
Programming Guide. Figures of machines: `devices.json` and `constants.py`, each with its source.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .devices import CpuDevice, Device
from .facts import KernelFacts
from .on_cpu import predict_on_cpu
from .on_gpu import predict_on_gpu
from .protocol import AnyDevice, Prediction


@dataclass(frozen=True)
class AnalyticalModel:
    """Roofline with waves, occupancy, launches and barriers. Suited to choosing between plans, not to absolute
    predictions.

    low_us is the time at nominal rates, high_us that without any overlap.
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
"""The default model. A single instance: planning caches results per model."""
