"""The table of GPUs that code can be planned for, with the data that code generation and planning need; and a CPU as
the latency models see it.

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


@dataclass(frozen=True)
class CpuDevice:
    """Cores that share one memory. The defaults describe no product: they are low for a server core of the last years.

    vector_bytes: width of a register; vectors_per_cycle: vector multiply-adds, or additions, that a core starts per
    cycle; tile_bytes_per_cycle: multiply-adds of bytes that its tile unit performs per cycle, half as many of two bytes
    each; 0: it has none. Bandwidths are bytes per second of one core (for the second-level cache 48 bytes per cycle,
    for the last one 16), except dram_bytes_per_second, which all cores share. l1_bytes and l2_bytes are of one core,
    llc_bytes is shared. launch_us: from the end of one launch to the start of the next; hand_over_us: until other
    threads take part in it. transcendental_cycles: per vector of float32 results.
    """

    name: str = "generic CPU"
    cores: int = 1
    clock_hz: int = 2_500_000_000
    vector_bytes: int = 32
    vectors_per_cycle: int = 2
    tile_bytes_per_cycle: int = 0
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    llc_bytes: int = 32 << 20
    l2_bytes_per_second: int = 120_000_000_000
    llc_bytes_per_second: int = 40_000_000_000
    dram_bytes_per_second: int = 20_000_000_000
    launch_us: float = 0.3
    hand_over_us: float = 2.0
    transcendental_cycles: int = 16

    def __post_init__(self) -> None:
        if min(self.cores, self.clock_hz, self.vector_bytes, self.vectors_per_cycle) < 1:
            raise ValueError(f"{self.name}: a CPU has at least one core, lane, cycle and multiply-add; check its row")

    def lanes(self, itemsize: int) -> int:
        """Return the elements of `itemsize` bytes in a register."""
        return max(1, self.vector_bytes // itemsize)
