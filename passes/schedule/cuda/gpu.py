"""The GPU that kernels are scheduled for."""

from __future__ import annotations

from dataclasses import dataclass

from tilestitch.cost_model.devices import Device
from tilestitch.passes.plan.gemm.check import Machine
from tilestitch.passes.plan.target import TargetInfo, specific_of
from tilestitch.passes.schedule.device import device_of, multiprocessors_of


@dataclass(frozen=True)
class Gpu:
    """`device`: provides speeds. multiprocessors: of the smallest GPU that the kernels must run on, which bounds the
    blocks certain to be resident together. architectures: that machine code is generated for.
    """

    device: Device
    multiprocessors: int
    architectures: tuple[str, ...]

    @staticmethod
    def of(target: TargetInfo) -> Gpu:
        """Return the GPU of a target. Raises DeviceError for a device that is not in the table."""
        device = device_of(target)
        assert isinstance(device, Device), target
        return Gpu(device, multiprocessors_of(target), target.architectures or (device.architecture,))

    @property
    def capability(self) -> int:
        """The smallest compute capability, times ten (80 for sm_80). Kernels may use what the oldest GPU supports."""
        return min(int("".join(c for c in a if c.isdigit())) for a in self.architectures)

    @property
    def machine(self) -> Machine:
        """The machine limits of kernels."""
        name = f"cuda:{','.join(self.architectures)}"
        return Machine(name, self.capability, self.specific, self.device.shared_bytes_per_block)

    @property
    def specific(self) -> str | None:
        """The one architecture, if it has a suffix."""
        return specific_of(self.architectures)
