"""The table of GPUs that code can be planned for, with the data that code generation and planning need.

Figures are vendors' nominal ones, never measurements; `source` documents the origin of each row.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

_KIB_PER_BLOCK = {
    60: 48, 61: 48, 62: 48, 70: 96, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 90: 227, 100: 227,
    101: 227, 103: 227, 110: 227, 120: 99, 121: 99,
}  # fmt: skip
"""Opt-in shared memory per block in KiB, by compute capability times ten (CUDA C++ Programming Guide, technical
specifications per compute capability; for 8.8, which is missing there, the least of 8.x).
"""

CAPABILITIES = tuple(_KIB_PER_BLOCK)
"""Compute capabilities of NVIDIA GPUs, times ten. Older ones have no float64 atomics."""


class DeviceError(ValueError):
    """There is no device with that name in the table."""

    exit_code = 1


@dataclass(frozen=True)
class Device:
    """One GPU product.

    architecture: what to compile for, with the suffix of architecture-specific features (`sm_90a`). peak_flops: dense
    operations per second (a multiply-add is two) by dtype, on tensor cores where they support it; missing dtypes have
    no fast path. shared_bytes_per_block is what a block can opt in to; clock_hz is the boost clock; tdp_w is the power
    of the board, process_nm the foundry's name of its process as a number.
    """

    name: str
    aliases: tuple[str, ...]
    architecture: str
    sm_count: int
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    l2_bytes: int
    dram_bytes_per_second: int
    memory_bytes: int
    clock_hz: int
    peak_flops: Mapping[str, int]
    tdp_w: float
    process_nm: float
    source: str
    by_name_only: bool = False
    """Whether code for the architecture is restricted to this GPU's few multiprocessors only if the GPU is named."""

    @property
    def capability(self) -> int:
        """Compute capability times ten: 90 for sm_90a."""
        return _number(self.architecture)


@cache
def devices() -> tuple[Device, ...]:
    """Return all devices, in the table's order."""
    rows = json.loads(Path(__file__).with_name("devices.json").read_text(encoding="utf-8"))
    return tuple(Device(**{**row, "aliases": tuple(row["aliases"])}) for row in rows)


def find_device(name: str) -> Device:
    """Return the device called `name`; case, spaces, dashes and underscores do not matter.

    Raises DeviceError, with the names that are known.
    """
    wanted = _key(name)
    for device in devices():
        if wanted in map(_key, (device.name, *device.aliases)):
            return device
    raise DeviceError(f"no GPU called {name!r} is known; give one of {', '.join(d.name for d in devices())}")


def representative(capability: int) -> Device:
    """Return the first device in the table with this compute capability (times ten), or the next smaller one."""
    fitting = [d for d in devices() if d.capability <= capability]
    if not fitting:
        raise DeviceError(f"no GPU of compute capability {capability / 10} or less is known")
    newest = max(d.capability for d in fitting)
    return next(d for d in fitting if d.capability == newest)


def with_limits_of(device: Device, architectures: Iterable[str]) -> Device:
    """Return `device` with no more shared memory per block than each of `architectures` allows.

    Code for several architectures is planned for one device: a kernel for an H200 may take 227 KiB, which
    no GPU of sm_86 can launch.
    """
    most = min((_KIB_PER_BLOCK[_number(each)] * 1024 for each in architectures), default=device.shared_bytes_per_block)
    if most >= device.shared_bytes_per_block:
        return device
    return replace(device, shared_bytes_per_block=most)


def share_of(device: Device, multiprocessors: int) -> Device:
    """Return the device as code sees it that runs on so many of its multiprocessors, as in a green context.

    What belongs to a multiprocessor shrinks with their number: arithmetic, resident blocks, and with them the loads on
    their way and the rate at which the L2 cache is read. DRAM, its rate and the L2 cache are shared with whatever runs
    on the others, which is not known here: the code is taken to have all of them, as if the others were idle.

    Raises DeviceError for none, or for more than the device has.
    """
    if not 1 <= multiprocessors <= device.sm_count:
        raise DeviceError(
            f"{device.name} has {device.sm_count} multiprocessors, of which {multiprocessors} were asked for; give 1 "
            f"to {device.sm_count}"
        )
    rates = {dtype: rate * multiprocessors // device.sm_count for dtype, rate in device.peak_flops.items()}
    return replace(device, sm_count=multiprocessors, peak_flops=rates)


def _number(architecture: str) -> int:
    """Return the number of an architecture, such as 90 for sm_90a."""
    return int(re.sub(r"\D", "", architecture))


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()
