"""Kernels as seen by the makespan law: each launch's needs of a GPU that runs others concurrently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from . import constants as c
from .analytical import ANALYTICAL
from .devices import Device
from .facts import KernelFacts, Launch, Traffic, merged
from .laws.makespan import Work
from .on_gpu import TENSOR_UNITS, rate_per_second, resident_blocks, room_of_block


def works_of(
    kernels: Mapping[str, KernelFacts], latencies_us: Mapping[str, float], gpu: Device
) -> dict[str, tuple[Work, ...]]:
    """Return the work of each kernel's launches, by name. The given latency of a kernel is divided among its launches
    in the proportions of the analytical model. Raises ValueError for a latency that is negative or not finite.
    """
    found = {}
    for name, kernel in kernels.items():
        if not 0 <= latencies_us[name] < inf:
            raise ValueError(
                f"kernel {name} is predicted to take {latencies_us[name]} us; repair the cost model, or choose another"
            )
        times = [1.0]
        if kernel.launches > 1:
            pieces = ANALYTICAL.predict([KernelFacts((one,)) for one in kernel.sequence], gpu)
            times = [piece.latency_us for piece in pieces]
        scale = latencies_us[name] / sum(times)
        found[name] = tuple(work_of(one, us * scale, gpu) for one, us in zip(kernel.sequence, times, strict=True))
    return found


def work_of(launch: Launch, latency_us: float, gpu: Device) -> Work:
    """Return the work of a launch with a given latency alone, from the end of its dependences."""
    gap_us = min(c.GPU_LAUNCH_US, latency_us)
    body_us = latency_us - gap_us
    distinct = merged(t for part in launch.parts for t in part.traffic)
    others = sum(t.footprint_bytes for t in distinct if t.role != "weight")
    cold = others > c.RESIDENT_L2_SHARE * gpu.l2_bytes
    dram_us, uncached_us = _dram_us(distinct, cold, gpu), _dram_us(distinct, True, gpu)
    spent = (dram_us, _l2_us(launch, gpu), *_arithmetic_us(launch, gpu))
    return Work(
        gap_us=gap_us,
        body_us=body_us,
        blocks=launch.grid,
        resident=max(1, resident_blocks(launch, gpu)) * gpu.sm_count,
        room=tuple(min(1.0, needed / there) / gpu.sm_count for needed, there in room_of_block(launch, gpu)),
        whole=launch.grid_barriers > 0,
        rates=tuple(_share(us, body_us) for us in spent),
        cache=min(1.0, others / (c.RESIDENT_L2_SHARE * gpu.l2_bytes)),
        uncached=_share(uncached_us, body_us),
    )


def _share(us: float, body_us: float) -> float:
    return min(1.0, us / body_us) if body_us > 0 else 0.0


def _dram_us(distinct: Iterable[Traffic], cold: bool, gpu: Device) -> float:
    nbytes = sum(t.footprint_bytes for t in distinct if cold or t.role == "weight")
    return nbytes / (gpu.dram_bytes_per_second * c.rates_of(gpu).bandwidth_share) * 1e6


def _l2_us(launch: Launch, gpu: Device) -> float:
    nbytes = sum(part.bytes_requested for part in launch.parts)
    return nbytes / (gpu.sm_count * c.rates_of(gpu).l2_bytes_per_cycle * gpu.clock_hz) * 1e6


def _arithmetic_us(launch: Launch, gpu: Device) -> tuple[float, float]:
    """Return the time of tensor cores, and of ordinary units."""
    tensor_us = ordinary_us = 0.0
    for work in (work for part in launch.parts for work in part.arithmetic):
        us = work.operations / rate_per_second(work, gpu) * 1e6
        if work.unit in TENSOR_UNITS:
            tensor_us += us
        else:
            ordinary_us += us
    return tensor_us, ordinary_us
