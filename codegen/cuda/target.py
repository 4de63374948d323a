"""CUDA targets: what `cuda:sm_90a`, `cuda:h200` or `cuda:sm_80,sm_90a` mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm

from tilestitch.codegen.errors import TargetError
from tilestitch.cost_model.devices import Device, DeviceError, find_device, representative
from tilestitch.cost_model.devices import devices as known_devices
from tilestitch.passes.plan.target import TargetInfo

_ARCHITECTURE = re.compile(r"sm_(\d{2,3})([af]?)\Z")
OLDEST = 60
"""Older GPUs have no atomics on float64 and no NVRTC that still compiles for them."""


@dataclass(frozen=True)
class CudaTarget:
    """Architectures to build machine code for (`sm_90a`), and the device that code is planned for.

    One kernel text serves all architectures, so it may use what the oldest of them has. Architecture-specific features
    (the `a` of sm_90a: wgmma, setmaxnreg) may be used if `specific` names their architecture.
    """

    architectures: tuple[str, ...]
    device: Device
    fewest_multiprocessors: int | None = None
    """Of the smallest GPU that the code should run on, if that is not `device`."""

    @property
    def multiprocessors(self) -> int:
        """As many blocks can certainly be resident together, whatever they need, if one fits at all."""
        return self.device.sm_count if self.fewest_multiprocessors is None else self.fewest_multiprocessors

    @cached_property
    def capability(self) -> int:
        """The smallest compute capability, times ten: 80 for sm_80."""
        return min(_number(a) for a in self.architectures)

    @property
    def specific(self) -> str | None:
        """`sm_90a` if that is the only architecture, and likewise for others with a suffix; else None."""
        (only,) = self.architectures if len(self.architectures) == 1 else (None,)
        return only if only is not None and not only[-1].isdigit() else None

    @property
    def compute(self) -> str:
        """The newest virtual architecture, for PTX that newer GPUs compile themselves: `compute_90`."""
        return f"compute_{max(_number(a) for a in self.architectures)}"

    @cached_property
    def tvm_target(self) -> Any:
        oldest = min(self.architectures, key=_number)
        return tvm.target.Target(
            {"kind": "cuda", "arch": oldest, "max_threads_per_block": 1024, "thread_warp_size": 32}
        )

    @property
    def planned_for(self) -> TargetInfo:
        """What planner and schedulers are told."""
        return TargetInfo("cuda", 1, self.device.name, self.architectures, self.multiprocessors)

    @property
    def name(self) -> str:
        return f"cuda:{','.join(self.architectures)}"


def _number(architecture: str) -> int:
    match = _ARCHITECTURE.match(architecture)
    assert match is not None
    return int(match[1])


def parse_cuda_target(text: str) -> CudaTarget:
    """`cuda:` and architectures (`sm_80`) or product names (`h200`, `rtx 4090`) with commas between them.

    Code is planned for the first product named, or else for the usual product of the newest architecture. Raises
    TargetError for a name that is not understood.
    """
    kind, _, rest = text.partition(":")
    names = [name.strip() for name in rest.split(",") if name.strip()]
    if kind != "cuda" or not names:
        raise TargetError(f"target {text!r} names no GPU; write cuda:sm_90a, cuda:h200 or cuda:sm_80,sm_90a")
    architectures: dict[str, None] = {}
    devices: list[Device] = []
    smallest: list[int] = []
    for name in names:
        match = _ARCHITECTURE.match(name)
        if match is None:
            try:
                devices.append(find_device(name))
            except DeviceError as error:
                raise TargetError(f"target {text!r}: {error}, or an architecture such as sm_90a") from None
            name = devices[-1].architecture
            smallest.append(devices[-1].sm_count)
        elif int(match[1]) < OLDEST:
            raise TargetError(f"target {text!r}: {name} is older than sm_{OLDEST}, the oldest that is supported")
        else:
            smallest += [d.sm_count for d in known_devices() if d.capability == int(match[1])]
        architectures[name] = None
    ordered = tuple(sorted(architectures, key=lambda a: (_number(a), a)))
    if not devices:
        devices = [representative(_number(ordered[-1]))]
    return CudaTarget(ordered, devices[0], min(smallest, default=None))
