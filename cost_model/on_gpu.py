"""The analytical model on a GPU: sequential stages, each a roofline over the resources that its parts share.

    kernel = sum over launches (launch + barriers of the grid + sum over stages)
    stage  = the longer of: all parts together, and each of them as if it were alone in this launch
    either = longer + (1 - OVERLAP) * shorter of memory and arithmetic, + barriers in a block * rounds of blocks
    memory = the longest of DRAM, L2 cache, and the latency of loads that too few threads have on their way

Nothing moves, and nothing is multiplied, until the first blocks have started. Later blocks start while others of their
SM work; one that is alone on it keeps the SM waiting.

So a launch is never faster than its slowest part, nor than DRAM, arithmetic and launching at nominal rates allow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from . import constants as c
from .devices import Device
from .facts import CONTRACTING, Arithmetic, KernelFacts, Launch, Part, Tail, Traffic, Unit, merged
from .protocol import Bound, Prediction

TENSOR_UNITS: frozenset[Unit] = frozenset({"mma", "wgmma"})
RESERVES_SHARED = 80
"""From this compute capability on, some shared memory of each block is reserved for the system."""


def predict_on_gpu(kernel: KernelFacts, gpu: Device) -> Prediction:
    spent = defaultdict[Bound, float](float)
    added_us = 0.0
    for launch in kernel.sequence:
        parts_us, most_us = _launch(launch, gpu)
        for name, us in parts_us.items():
            spent[name] += us
        added_us += most_us
    bound, _ = max(spent.items(), key=lambda item: item[1])
    latency_us = sum(spent.values())
    return Prediction(latency_us, floor_us(kernel, gpu), max(added_us, latency_us), bound)


def floor_us(kernel: KernelFacts, gpu: Device) -> float:
    """Return a lower bound for any kernel with these facts: its launches, and DRAM and arithmetic at nominal rates.

    Weights are read from DRAM once; of the launch's other reads and writes, only what exceeds the L2 cache counts.
    """
    seen: set[str] = set()
    seconds = 0.0
    for launch in kernel.sequence:
        distinct = merged(t for part in launch.parts for t in part.traffic)
        others = sum(t.footprint_bytes for t in distinct if t.role != "weight")
        weights = sum(t.footprint_bytes for t in distinct if t.role == "weight" and t.value not in seen)
        seen.update(t.value for t in distinct)
        spent = {"dram": (weights + max(0, others - gpu.l2_bytes)) / gpu.dram_bytes_per_second}
        for work in (work for part in launch.parts for work in part.arithmetic):
            spent[work.unit] = spent.get(work.unit, 0.0) + work.operations / nominal_per_second(work, gpu)
        seconds += max(spent.values())
    return kernel.launches * c.GPU_LAUNCH_US + seconds * 1e6


# -- a launch ----------------------------------------------------------------------------------------------------------


def resident_blocks(launch: Launch, gpu: Device) -> int:
    """Return the blocks of the launch that fit an SM; 0 if a single one does not."""
    if launch.shared_bytes + launch.static_shared_bytes > gpu.shared_bytes_per_block:
        return 0
    room = min(there // needed for needed, there in room_of_block(launch, gpu) if needed)
    return min(room, launch.resident) if launch.resident else room


def room_of_block(launch: Launch, gpu: Device) -> tuple[tuple[int, int], ...]:
    """Return the limits on resident blocks: what one block needs, and what the SM has, of block slots, threads,
    registers and shared memory.
    """
    warps = ceil(max(1, launch.threads) / c.WARP)
    registers = ceil(max(16, launch.registers) * c.WARP / c.GPU_REGISTER_UNIT) * c.GPU_REGISTER_UNIT
    shared = launch.shared_bytes + launch.static_shared_bytes
    if gpu.capability >= RESERVES_SHARED:
        shared += c.GPU_RESERVED_SHARED_BYTES
    return (
        (1, gpu.blocks_per_sm), (warps * c.WARP, gpu.threads_per_sm), (warps * registers, gpu.registers_per_sm),
        (shared, gpu.shared_bytes_per_sm),
    )  # fmt: skip


def _launch(launch: Launch, gpu: Device) -> tuple[Mapping[Bound, float], float]:
    """Return the microseconds by cause, and their sum without overlap."""
    spent = defaultdict[Bound, float](float)
    spent["launch"] += 0.0 if launch.tie == "beside" else c.GPU_LAUNCH_US
    spent["barrier"] += launch.grid_barriers * c.GPU_GRID_BARRIER_US
    machine = _machine(launch, gpu)
    stages = [_banded(launch, gpu)] if launch.tie == "band" else [machine.stage(stage) for stage in launch.stages]
    for stage in stages:
        spent[stage.bound] += launch.pace * (stage.latency_us - stage.barriers_us)
        spent["barrier"] += launch.pace * stage.barriers_us
    overlapped_us = sum(stage.added_us - launch.pace * stage.latency_us for stage in stages)
    return spent, sum(spent.values()) + overlapped_us


def _machine(launch: Launch, gpu: Device) -> _Machine:
    resident = resident_blocks(launch, gpu)
    return _Machine(gpu, max(1, resident), spilled=not resident, cold=_is_cold(launch, gpu))


def _banded(launch: Launch, gpu: Device) -> _Stage:
    """Return the stage in which the blocks of the first do the work of the second as their own; no faster than either
    alone.
    """
    (first,), (second,) = launch.stages
    tail, share = second.tail, 1.0
    if tail is not None and second.bytes_requested:
        # Traffic of the last blocks is part of the tail.
        share -= min(1.0, tail.nbytes * min(tail.blocks, gpu.sm_count) / second.bytes_requested)
    both = replace(
        first,
        reads=first.reads + _asking(second.reads, share),
        writes=first.writes + _asking(second.writes, share),
        arithmetic=first.arithmetic + second.arithmetic,
        tail=tail,
    )
    machine = _machine(launch, gpu)
    # A band is complete when its tiles are, whose last blocks have combined the parts of the reduction.
    together = machine.stage([both]).after(machine.tail_us(first.tail, first.tasks))
    # With fewer blocks per SM, fewer tails coincide, but no tail finishes earlier for that.
    alone = [_machine(Launch(((part,),)), gpu).stage([part]) for part in (first, second)]
    options = together, machine.stage([first]), *alone
    return max(options, key=lambda stage: stage.latency_us)


def _asking(traffic: Sequence[Traffic], share: float) -> tuple[Traffic, ...]:
    """Return the same tensors with a share of the requested bytes."""
    return tuple(replace(t, bytes_requested=int(t.bytes_requested * share)) for t in traffic)


def _is_cold(launch: Launch, gpu: Device) -> bool:
    """Return whether data passed between kernels exceed the L2 cache."""
    distinct = merged(t for part in launch.parts for t in part.traffic if t.role != "weight")
    return sum(t.footprint_bytes for t in distinct) > c.RESIDENT_L2_SHARE * gpu.l2_bytes


# -- a stage -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stage:
    """The time of a stage, including block barriers; added_us: without overlap."""

    latency_us: float
    barriers_us: float
    added_us: float
    bound: Bound

    def after(self, wait_us: float) -> _Stage:
        """Return the stage with an additional wait before its end."""
        return _Stage(self.latency_us + wait_us, self.barriers_us + wait_us, self.added_us + wait_us, self.bound)


@dataclass(frozen=True)
class _Load:
    """Resource demands of parts, in microseconds of the whole machine. start: waiting of blocks at their start."""

    start: float
    dram: float
    l2: float
    latency: float
    arithmetic: Mapping[Unit, float]

    def stage(self, barriers_us: float) -> _Stage:
        memory_us = max(self.start + self.dram, self.start + self.l2, self.latency)
        arithmetic_us = self.start + sum(self.arithmetic.values())
        longer, shorter = max(memory_us, arithmetic_us), min(memory_us, arithmetic_us)
        latency_us = longer + (1 - c.OVERLAP) * (shorter - self.start) + barriers_us
        added_us = self.start + self.dram + self.l2 + self.latency + arithmetic_us + barriers_us
        return _Stage(latency_us, barriers_us, added_us, self._bound(memory_us, arithmetic_us))

    def _bound(self, memory_us: float, arithmetic_us: float) -> Bound:
        if arithmetic_us > memory_us:
            return max(self.arithmetic, key=lambda unit: self.arithmetic[unit])
        if memory_us == self.latency:
            return "latency"
        return "dram" if self.dram >= self.l2 else "l2"


@dataclass(frozen=True)
class _Machine:
    """A GPU that holds `resident` blocks of a launch per SM. spilled: a block does not fit, and its memory is global.
    cold: activations come from DRAM.
    """

    gpu: Device
    resident: int
    spilled: bool
    cold: bool

    def stage(self, parts: Sequence[Part]) -> _Stage:
        if len(parts) == 1:
            return self._load(parts).stage(self._barriers_us(parts))
        # With fewer blocks per SM, fewer tails coincide, but no tail finishes earlier for that.
        apart = (_machine(Launch(((part,),)), self.gpu) if part.tail is not None else self for part in parts)
        alone = [machine.stage([part]) for machine, part in zip(apart, parts, strict=True)]
        together = self._load(parts).stage(self._barriers_us(parts))
        slowest = max((together, *alone), key=lambda stage: stage.latency_us)
        return replace(slowest, added_us=max(slowest.added_us, together.added_us))

    def _load(self, parts: Sequence[Part]) -> _Load:
        blocks = sum(max(1, part.tasks) for part in parts)
        return _Load(
            max(self._start_us(part, blocks) for part in parts),
            self._dram_us(parts),
            self._l2_us(parts, blocks),
            sum(self._latency_us(part, blocks) for part in parts),
            self._arithmetic_us(parts, blocks),
        )

    def _barriers_us(self, parts: Sequence[Part]) -> float:
        """Return the time that threads of a block wait for each other, plus that of the last blocks."""
        blocks = sum(max(1, part.tasks) for part in parts)
        rounds = ceil(blocks / (self.gpu.sm_count * self.resident))
        tail_us = max(self.tail_us(part.tail, blocks) for part in parts)
        return max(part.barriers for part in parts) * c.GPU_BARRIER_US * rounds + tail_us

    def tail_us(self, tail: Tail | None, blocks: int) -> float:
        """Return the time from the last other result to the last result of a tail. Blocks of the last round have their
        tails together; those of earlier rounds overlapped with the work of others.
        """
        if tail is None:
            return 0.0
        rows_us = tail.rows * (c.GPU_ROW_US + tail.barriers * c.GPU_BARRIER_US)
        together = tail.nbytes * min(tail.blocks, self._at_once(blocks))
        cycles = max(tail.nbytes / c.GPU_SM_L2_BYTES_PER_CYCLE, together / self._l2_bytes_per_cycle)
        dram_us = together / self._dram_rate * 1e6 if self.cold else 0.0
        return c.GPU_HAND_OVER_US + max(rows_us, self._cycles_us(cycles), dram_us)

    def _dram_us(self, parts: Iterable[Part]) -> float:
        found: dict[str, int] = {}
        for t in (t for part in parts for t in part.traffic):
            found[t.value] = max(found.get(t.value, 0), self._dram_bytes(t))
        return sum(found.values()) / self._dram_rate * 1e6

    @property
    def _dram_rate(self) -> float:
        """Attainable bytes per second."""
        return self.gpu.dram_bytes_per_second * c.rates_of(self.gpu).bandwidth_share

    @property
    def _l2_bytes_per_cycle(self) -> float:
        """Bytes per cycle of all SMs together."""
        return self.gpu.sm_count * c.rates_of(self.gpu).l2_bytes_per_cycle

    def _dram_bytes(self, traffic: Traffic) -> int:
        return traffic.footprint_bytes if self.cold or traffic.role == "weight" else 0

    def _l2_bytes(self, part: Part) -> int:
        """Return all bytes requested by loads and stores, and of rows that do not fit the SM."""
        kept = part.shared_bytes + part.static_shared_bytes
        return part.bytes_requested + (2 * kept * part.tasks if self.spilled else 0)

    def _l2_us(self, parts: Sequence[Part], blocks: int) -> float:
        """Return the time of all SMs at their shared rate, or of the fullest one at its own."""
        nbytes = sum(map(self._l2_bytes, parts))
        fullest = nbytes / blocks * ceil(blocks / self.gpu.sm_count)
        return self._cycles_us(max(nbytes / self._l2_bytes_per_cycle, fullest / c.GPU_SM_L2_BYTES_PER_CYCLE))

    def _start_us(self, part: Part, blocks: int) -> float:
        """Return the time until the first blocks work, and whenever a block starts on an otherwise empty SM."""
        if not part.bytes_requested:
            return 0.0
        rounds = max(1, part.tasks) / self._at_once(blocks) if self.resident == 1 else 1.0
        return self._cycles_us(c.GPU_START_CYCLES) * rounds

    def _latency_us(self, part: Part, blocks: int) -> float:
        """Return the time of block starts and of dependent round trips to memory, of which each thread has two in
        flight (Little's law), or a tile as many steps as it loads in advance.
        """
        tasks, nbytes = max(1, part.tasks), part.bytes_requested
        if not nbytes:
            return 0.0
        dram = min(1.0, sum(map(self._dram_bytes, part.traffic)) / nbytes)
        trip_us = dram * c.GPU_DRAM_LATENCY_US + (1 - dram) * c.GPU_L2_LATENCY_US
        trips = nbytes / (tasks * max(1, part.threads) * c.GPU_BYTES_IN_FLIGHT)
        if part.steps:
            trips = part.steps / part.ahead
        start_us, steps_us = (self._cycles_us(n) for n in (c.GPU_START_CYCLES, part.steps * c.GPU_STEP_CYCLES))
        return (start_us + max(0.0, trips - 1) * trip_us + steps_us) * tasks / self._at_once(blocks)

    def _at_once(self, blocks: int) -> int:
        return min(blocks, self.gpu.sm_count * self.resident)

    def _cycles_us(self, cycles: float) -> float:
        return cycles / self.gpu.clock_hz * 1e6

    def _arithmetic_us(self, parts: Sequence[Part], blocks: int) -> dict[Unit, float]:
        """Return the time by unit, including SMs waiting for the fullest one: 133 blocks on 132 SMs take as long as
        264.
        """
        on_one = ceil(blocks / self.gpu.sm_count)
        balance = blocks / (on_one * self.gpu.sm_count)
        spent: dict[Unit, float] = {"alu": 0.0}
        for part in parts:
            busy = balance * _occupied(min(on_one, self.resident) * max(1, part.threads) / c.WARP)
            for work in part.arithmetic:
                seconds = work.operations / (rate_per_second(work, self.gpu) * busy)
                spent[work.unit] = spent.get(work.unit, 0.0) + seconds * 1e6
        return spent


def _occupied(warps: float) -> float:
    """Return the fraction of its rate that an SM reaches with this many warps, which hide each other's latencies. Each
    scheduler has a share of the units and of the warps: few warps leave some schedulers idle.
    """
    full = c.GPU_FULL_RATE_WARPS / (c.GPU_FULL_RATE_WARPS + c.GPU_HALF_RATE_WARPS)
    return min(1.0, warps / (max(warps, c.GPU_SCHEDULERS) + c.GPU_HALF_RATE_WARPS) / full)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def nominal_per_second(work: Arithmetic, gpu: Device) -> float:
    """Return the operations of a kind that the whole GPU performs per second according to its data sheet."""
    if work.unit in TENSOR_UNITS and work.dtype in gpu.peak_flops:
        return gpu.peak_flops[work.dtype] / 2
    if work.unit in CONTRACTING:
        return _ordinary(work.dtype, gpu)
    lanes = gpu.sm_count * gpu.clock_hz
    if work.unit == "special":
        return lanes * c.GPU_SPECIAL_LANES / c.GPU_SPECIAL_PER_CALL
    return lanes * c.GPU_LANES / (c.GPU_STAGED_CYCLES if work.unit == "scalar" else 1)


def _ordinary(dtype: str, gpu: Device) -> float:
    """Return the multiply-adds per second on ordinary units, where halves are multiplied as float32, and integers at
    half the rate.
    """
    if dtype in ("float64", "int64", "uint64"):
        return gpu.peak_flops["float64"] / 2
    halved = dtype in ("int32", "uint32")
    return gpu.peak_flops["float32"] / (4 if halved else 2)


def rate_per_second(work: Arithmetic, gpu: Device) -> float:
    """Return the rate that code reaches."""
    nominal, rates = nominal_per_second(work, gpu), c.rates_of(gpu)
    if work.unit not in CONTRACTING:
        return nominal * work.share
    share = min(rates.arithmetic_share, rates.mma_share) if work.unit == "mma" else rates.arithmetic_share
    return nominal * share * work.share
