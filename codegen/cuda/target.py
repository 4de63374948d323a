"""CUDA targets: the meaning of `cuda:sm_90a`, `cuda:h200`, `cuda:sm_80,sm_90a` or `cuda:h200/32`."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tvm

from tilestitch.codegen.errors import TargetError
from tilestitch.cost_model.devices import (
    CAPABILITIES,
    Device,
    DeviceError,
    find_device,
    representative,
    share_of,
    with_limits_of,
)
from tilestitch.cost_model.devices import devices as known_devices
from tilestitch.passes.plan.target import TargetInfo, specific_of

_ARCHITECTURE = re.compile(r"sm_(\d+)([a-z]?)\Z")
_SUFFIXES = {"a": 90, "f": 100}
"""The first compute capability with each suffix: `a`, features of this one only; `f`, of its family."""
DEFAULT_OF_EMULATOR = "sm_80"
"""Architecture that the target `emulator` stands for."""


@dataclass(frozen=True)
class CudaTarget:
    """Architectures to build machine code for (`sm_90a`), and the device for which code is planned.

    One kernel text serves all architectures, so it may use features of the oldest only. Architecture-specific features
    (the `a` of sm_90a: wgmma, setmaxnreg) may be used if `specific` names their architecture.
    """

    architectures: tuple[str, ...]
    device: Device
    fewest_multiprocessors: int | None = None
    """Multiprocessors of the smallest GPU that the code should run on, if that is not `device`."""
    is_share: bool = False
    """Whether code is planned for so many of a GPU's multiprocessors; then `device` has no more."""

    @property
    def multiprocessors(self) -> int:
        """Number of blocks that can certainly be resident together if one fits at all, whatever their resources."""
        return self.device.sm_count if self.fewest_multiprocessors is None else self.fewest_multiprocessors

    @cached_property
    def capability(self) -> int:
        """The smallest compute capability, times ten: 80 for sm_80."""
        return min(_number(a) for a in self.architectures)

    @property
    def newest(self) -> int:
        """The largest compute capability, times ten."""
        return max(_number(a) for a in self.architectures)

    @property
    def specific(self) -> str | None:
        """The one architecture, if it has a suffix."""
        return specific_of(self.architectures)

    @property
    def compute(self) -> str:
        """The newest virtual architecture, for PTX that newer GPUs compile themselves: `compute_90`."""
        return f"compute_{self.newest}"

    @cached_property
    def tvm_target(self) -> Any:
        oldest = min(self.architectures, key=_number)
        return tvm.target.Target(
            {"kind": "cuda", "arch": oldest, "max_threads_per_block": 1024, "thread_warp_size": 32}
        )

    @property
    def planned_for(self) -> TargetInfo:
        """The target as the planner and schedulers see it."""
        return TargetInfo("cuda", 1, self.device.name, self.architectures, self.multiprocessors, self.is_share)

    @property
    def name(self) -> str:
        return f"cuda:{','.join(self.architectures)}"


def _number(architecture: str) -> int:
    match = _ARCHITECTURE.match(architecture)
    assert match is not None
    return int(match[1])


def parse_cuda_target(text: str) -> CudaTarget:
    """Parse `cuda:` followed by architectures (`sm_80`) or names of GPUs (`h200`, `rtx 4090`), case-insensitive,
    separated by commas.

    `emulator:` may replace `cuda:`; `emulator` alone is `emulator:sm_80`. Code is planned for the first GPU named, or
    else for the representative GPU of the newest architecture; with `/32` at the end for 32 of its multiprocessors.
    Raises TargetError, which lists the valid names.
    """
    whole, slash, share = text.partition("/")
    if not slash:
        return _parse_whole(text)
    if not (share.isascii() and share.isdecimal()):
        raise TargetError(
            f"target {text!r}: {share!r} is no number of multiprocessors; write {whole}/32 for 32 of them"
        )
    return _share(_parse_whole(whole), int(share), text)


def _share(target: CudaTarget, multiprocessors: int, text: str) -> CudaTarget:
    """Return the target with the multiprocessors that every GPU of it has. Raises TargetError with all of `text`."""
    if multiprocessors > target.multiprocessors:
        raise TargetError(
            f"target {text!r}: {multiprocessors} multiprocessors were asked for, and the smallest GPU has "
            f"{target.multiprocessors}; give fewer, or name a larger GPU"
        )
    try:
        device = share_of(target.device, multiprocessors)
    except DeviceError as error:
        raise TargetError(f"target {text!r}: {error}") from None
    return replace(target, device=device, fewest_multiprocessors=multiprocessors, is_share=True)


def _parse_whole(text: str) -> CudaTarget:
    """Parse a target without a share."""
    kind, colon, rest = text.partition(":")
    names = [name.strip() for name in rest.split(",")]
    if kind == "emulator" and not colon:
        names = [DEFAULT_OF_EMULATOR]
    if "" in names:
        raise TargetError(f"target {text!r}: the name of a GPU is missing; {_examples(kind)}")
    architectures: dict[str, None] = {}
    devices: list[Device] = []
    smallest: list[int] = []
    for name in names:
        architecture = _architecture(name, text)
        if architecture is None:
            devices.append(_named_device(name, text))
            architecture = devices[-1].architecture
            smallest.append(devices[-1].sm_count)
        else:
            usual = [d for d in known_devices() if d.capability == _number(architecture) and not d.by_name_only]
            smallest += [d.sm_count for d in usual]
        architectures[architecture] = None
    ordered = tuple(sorted(architectures, key=lambda a: (_number(a), a)))
    if not devices:
        devices = [representative(_number(ordered[-1]))]
    return CudaTarget(ordered, with_limits_of(devices[0], ordered), min(smallest, default=None))


def _architecture(name: str, text: str) -> str | None:
    """Return the architecture of this name; None if the name is of another form. Raises TargetError for one that no GPU
    has.

    text: the whole target, for the message.
    """
    match = _ARCHITECTURE.match(name.lower())
    if match is None:
        return None
    capability, suffix = int(match[1]), match[2]
    if capability not in CAPABILITIES:
        known = ", ".join(f"sm_{c}" for c in CAPABILITIES)
        raise TargetError(
            f"target {text!r}: there is no architecture {name}; give one of {known}, or the name of a GPU"
        )
    if suffix and capability < _SUFFIXES.get(suffix, capability + 1):
        allowed = " and ".join(f"{letter} from sm_{first} on" for letter, first in _SUFFIXES.items())
        raise TargetError(f"target {text!r}: sm_{capability} has no suffix {suffix}; suffixes are {allowed}")
    return match[0]


def _named_device(name: str, text: str) -> Device:
    """Return the GPU of this name. Raises TargetError, with all of `text`, the target."""
    try:
        return find_device(name)
    except DeviceError as error:
        raise TargetError(f"target {text!r}: {error}, or an architecture such as sm_90a") from None


def _examples(kind: str) -> str:
    return f"write {kind}:sm_90a, {kind}:h200, {kind}:sm_80,sm_90a, or {kind}:h200/32 for 32 of its multiprocessors"
