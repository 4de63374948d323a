"""The seam between planning and prediction: kernels as numbers go in, times with what bounds them come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from .cpu import CpuDevice
from .devices import Device
from .facts import Arithmetic, KernelFacts, Launch, Part, Tail, Traffic

__all__ = [
    "AnyDevice", "Arithmetic", "Bound", "KernelFacts", "LatencyModel", "Launch", "Part", "Prediction", "Tail",
    "Traffic", "hardly_slower", "latency_us",
]  # fmt: skip

AnyDevice = Device | CpuDevice

NEARLY = 1.01
"""No model is exact to a hundredth."""

Bound = Literal["dram", "l2", "fma", "mma", "wgmma", "alu", "special", "scalar", "latency", "launch", "barrier", ""]
"""What a kernel spends most of its time on: bytes of DRAM or of the L2 cache (of a CPU: any cache), arithmetic by unit,
waiting for memory with too few threads, being launched, waiting for other blocks. Empty: the model does not say.
"""


@dataclass(frozen=True)
class Prediction:
    """Microseconds from the launch of a kernel until its results may be read, on a machine that is otherwise idle.

    low_us, high_us: between these the model takes the truth to lie. bound: what most of the time goes to.
    """

    latency_us: float
    low_us: float
    high_us: float
    bound: Bound = ""


@runtime_checkable
class LatencyModel(Protocol):
    """Predicts kernels. Implementations are immutable, and give equal answers to equal questions."""

    @property
    def name(self) -> str:
        """A word that names the model in plans and reports."""
        ...

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> Sequence[Prediction]:
        """Return a prediction for each kernel, finite and not negative.

        Raises ValueError for a kind of device that the model knows nothing of.
        """
        ...


def hardly_slower(one_us: float, other_us: float) -> bool:
    """Return whether the first of two predictions is at most so little longer that what is simpler about it decides."""
    return one_us <= NEARLY * other_us


def latency_us(model: LatencyModel, kernel: KernelFacts, device: AnyDevice) -> float:
    """Return what `model` predicts for one kernel, where one number is wanted."""
    (prediction,) = model.predict((kernel,), device)
    return prediction.latency_us
