"""The interface between planning and prediction: kernels as numbers in, times and what bounds them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

from .devices import CpuDevice, Device
from .facts import Arithmetic, KernelFacts, Launch, Part, Tail, Traffic

__all__ = [
    "AnyDevice", "Arithmetic", "Bound", "KernelFacts", "LatencyModel", "Launch", "Part", "Prediction", "Tail",
    "Traffic", "fastest", "hardly_slower", "latency_us",
]  # fmt: skip

AnyDevice = Device | CpuDevice
Candidate = TypeVar("Candidate")

NEARLY = 1.01
"""Ratio within which times count as equal: no model is accurate to one percent."""

Bound = Literal["dram", "l2", "fma", "mma", "wgmma", "alu", "special", "scalar", "latency", "launch", "barrier", ""]
"""What dominates a kernel's time: traffic of DRAM or the L2 cache (on a CPU: any cache), arithmetic by unit, memory
latency with too few threads, launch overhead, waiting for other blocks. Empty: the model does not tell.
"""


@dataclass(frozen=True)
class Prediction:
    """Microseconds from the launch of a kernel until its results may be read, on a machine that is otherwise idle.

    low_us, high_us: the interval that the model expects to contain the true time. bound: what dominates the time.
    """

    latency_us: float
    low_us: float
    high_us: float
    bound: Bound = ""


@runtime_checkable
class LatencyModel(Protocol):
    """Predicts kernels. Implementations are immutable and deterministic."""

    @property
    def name(self) -> str:
        """A word that names the model in plans and reports."""
        ...

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> Sequence[Prediction]:
        """Return a prediction for each kernel, finite and not negative.

        Raises ValueError for a kind of device that the model does not support.
        """
        ...


def hardly_slower(one_us: float, other_us: float) -> bool:
    """Return whether the first of two predictions is at most so slightly larger that simplicity decides."""
    return one_us <= NEARLY * other_us


def latency_us(model: LatencyModel, kernel: KernelFacts, device: AnyDevice) -> float:
    """Return the latency that `model` predicts for one kernel."""
    (prediction,) = model.predict((kernel,), device)
    return prediction.latency_us


def fastest(
    candidates: Sequence[Candidate], facts: Sequence[KernelFacts], device: AnyDevice, model: LatencyModel
) -> Candidate:
    """Return the candidate that `model` predicts to be fastest; the first of those that are hardly slower."""
    if len(candidates) == 1:
        return candidates[0]
    predicted = [found.latency_us for found in model.predict(facts, device)]
    least_us = min(predicted)
    return next(each for each, us in zip(candidates, predicted, strict=True) if hardly_slower(us, least_us))
