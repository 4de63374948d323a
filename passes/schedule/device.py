"""The machine that a target is planned for, as seen by the latency models."""

from functools import cache

from tilestitch.cost_model.devices import CpuDevice, Device, find_device, representative, share_of, with_limits_of
from tilestitch.cost_model.protocol import AnyDevice
from tilestitch.passes.plan.cpu.isa import TILE_BYTES_A_CYCLE, Isa
from tilestitch.passes.plan.target import TargetInfo

DEFAULT_CAPABILITY = 90


def device_of(target: TargetInfo) -> AnyDevice:
    """Return the device that a target is planned for: a CPU with its threads and vector unit, or a GPU of the table.

    A bare `cuda` stands for Hopper, `cuda:sm_80` for the default GPU of an architecture, `cuda:h200` for that one. A
    block may have as much shared memory as all architectures allow. A target that is a share of a GPU gives that
    share. Raises DeviceError for a device that is not in the table.
    """
    if target.device or target.name.startswith("cuda"):
        share = target.multiprocessors if target.is_share else None
        return _gpu(target.name, target.device, target.architectures, share)
    return _cpu(target.core, max(1, target.threads))


@cache
def _gpu(name: str, device: str, architectures: tuple[str, ...], share: int | None) -> Device:
    """Return the GPU; cached, as planning calls it many thousands of times."""
    whole = _whole_gpu(name, device, architectures)
    return whole if share is None else share_of(whole, share)


def _whole_gpu(name: str, device: str, architectures: tuple[str, ...]) -> Device:
    if device:
        return with_limits_of(find_device(device), architectures)
    named = [part for part in name.partition(":")[2].split(",") if part]
    if not named:
        return representative(DEFAULT_CAPABILITY)
    if not all(part.startswith("sm_") for part in named):
        return find_device(named[0])
    usual = representative(min(int("".join(c for c in part if c.isdigit())) for part in named))
    return with_limits_of(usual, named)


def _cpu(isa: Isa, cores: int) -> CpuDevice:
    return CpuDevice(
        cores=cores, vector_bytes=isa.vector_bytes, vectors_per_cycle=isa.fma_ports, l1_bytes=isa.l1_bytes,
        l2_bytes=isa.l2_bytes, tile_bytes_per_cycle=TILE_BYTES_A_CYCLE if isa.tile_dots else 0,
    )  # fmt: skip


def multiprocessors_of(target: TargetInfo) -> int:
    """Return the number of multiprocessors that every GPU has on which code for `target` must run."""
    device = device_of(target)
    assert isinstance(device, Device)
    return device.sm_count if target.multiprocessors is None else target.multiprocessors
