"""Schedules of contractions on GPUs: which kernel, which tile, split-K; the least estimated time on the device.

An SM works on several blocks together, as many as it holds. A step of them all takes as long as the slowest of three:
the arithmetic, at a rate that grows with the warps that hide each other's latencies; the operands' way from the L2
cache; the latency of memory, shared by the steps that are fetched ahead. The constants are planning figures from
published microbenchmarks of Ampere and Hopper; none was fitted to these kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import TypeAlias

from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.cost_model.constants import (
    GPU_HALF_RATE_WARPS,
    GPU_RESERVED_SHARED_BYTES,
    GPU_SM_L2_BYTES_PER_CYCLE,
    GPU_START_CYCLES,
    rates_of,
)
from tilestitch.cost_model.devices import Device
from tilestitch.passes.plan.access.row_loops import REGISTER_ELEMENTS
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.gemv import gemv_tile, has_few_rows, with_large_right
from tilestitch.passes.plan.gemm.kernels import BYTES, why_not_mma, why_not_wgmma
from tilestitch.passes.plan.gemm.partition import Partition, cut
from tilestitch.passes.plan.gemm.patches import cut_to_patches
from tilestitch.passes.plan.gemm.rows_after import WARP_ROWS, Band, RowsAfter
from tilestitch.passes.plan.gemm.tiles import GemvTile, MmaTile, SimtTile, WgmmaTile
from tilestitch.passes.plan.parts import Part
from tilestitch.passes.plan.schedules import BandSchedule, DirectSchedule, GemmSchedule

from .gemm_tiles import SIMT_TILES, WIDE_TILES, mma_tiles, speed_of, wgmma_tiles
from .gpu import Gpu

DIRECT_THREADS = 128
LEAST_PART = 128
"""Steps of the reduction that are worth a part of their own."""
PARTS = (1, 2, 4, 8, 16, 32)
MEMORY_LATENCY_CYCLES = 500
BARRIER_CYCLES = 40
JOIN_CYCLES = 2000
"""Until the last block of a tile knows that it is the last, and has added a first round of partial sums."""
SUM_BYTES_PER_CYCLE = 16
"""Of one SM, for partial sums that are written and read again."""
MANY_BLOCKS = 16
"""Of the rows: so many that one more does no harm."""
POLLS = 12
"""How often a block looks whether the last one of its band has come: for about as long as two launches take."""
HAND_OVER_CYCLES = 1500
"""From the last store of a band until those that compute it have read the first of it: three trips to the L2 cache."""
ROW_CYCLES, REDUCTION_CYCLES = 500, 150
"""Of a row: reading it from the L2 cache and storing results; and of each reduction. Planning figures."""

TiledGemm: TypeAlias = SimtTile | MmaTile | WgmmaTile


@dataclass(frozen=True)
class Choice:
    """A tile, how a GEMM is cut by it, and the estimated cycles of an SM until the last one is done."""

    cycles: float
    gemm: Gemm
    tile: TiledGemm
    partition: Partition

    def schedule(self, blocks: int = 0) -> GemmSchedule:
        return GemmSchedule(self.tile, self.partition.parts, blocks, self.partition.tile_rows)


def choose_contraction(group: AnchoredGroup, gpu: Gpu, after: RowsAfter | None = None) -> GemmSchedule | DirectSchedule:
    """The schedule of a contraction whose result has elements. after: row-wise work that follows in its launch."""
    gemm = gemm_of(group)
    return DirectSchedule(DIRECT_THREADS) if gemm is None else choose_gemm(gemm, gpu, after)


def choose_gemm(gemm: Gemm, gpu: Gpu, after: RowsAfter | None = None) -> GemmSchedule:
    """The kernel that suits a GEMM's shape and dtypes, and its tile."""
    if has_few_rows(gemm) and after is None:
        return _gemv(with_large_right(gemm), gpu.device.sm_count)
    mma = choose_mma(gemm, gpu.device, after) if why_not_mma(gemm, gpu.capability) is None else None
    wgmma = choose_wgmma(gemm, gpu.device, after) if _suits_wgmma(gemm, gpu, after) else None
    # Where rows are computed after a GEMM, blocks may be done earlier than single warps.
    if wgmma is not None and (after is None or mma is None or mma.cycles >= wgmma.cycles):
        return wgmma.schedule(persistent_blocks(wgmma, gpu.device))
    return (mma or choose_simt(gemm, gpu.device, after)).schedule()


def _suits_wgmma(gemm: Gemm, gpu: Gpu, after: RowsAfter | None) -> bool:
    """Patches of pixels are no bands of rows."""
    if after is not None and gemm.a.pictures is not None:
        return False
    return why_not_wgmma(gemm, gpu.device.name, gpu.specific) is None


# -- few rows ----------------------------------------------------------------------------------------------------------


def _gemv(gemm: Gemm, sm_count: int) -> GemmSchedule:
    """One part, or as many as give every SM two blocks."""
    tile = gemv_tile(gemm)
    for parts in PARTS:
        partition = cut(gemm, (tile.bm, tile.bn, tile.bk), parts)
        if partition.blocks >= 2 * sm_count or partition.steps <= 1:
            break
    return GemmSchedule(tile, partition.parts, tile_rows=partition.tile_rows)


# -- tiles -------------------------------------------------------------------------------------------------------------


def choose_simt(gemm: Gemm, device: Device, after: RowsAfter | None = None) -> Choice:
    """On the ordinary arithmetic units, which compute every GEMM."""
    tiles = SIMT_TILES if storage_bytes(gemm.acc_dtype) <= 4 else WIDE_TILES
    return choose(gemm, tiles, device, gemm.acc_dtype, after)


def choose_mma(gemm: Gemm, device: Device, after: RowsAfter | None = None) -> Choice:
    """A GEMM that `why_not_mma` has nothing against."""
    dtype = "tfloat32" if gemm.a.dtype == "float32" else gemm.a.dtype
    tiles = mma_tiles(storage_bytes(gemm.a.dtype))
    return choose(gemm, tiles, device, dtype, after, rates_of(device).mma_share)


def choose_wgmma(gemm: Gemm, device: Device, after: RowsAfter | None = None) -> Choice:
    """A GEMM that `why_not_wgmma` has nothing against. Warps do what comes after for their rows."""
    dtype = "int8" if gemm.a.dtype in BYTES else gemm.a.dtype
    options: list[Choice] = []
    for tile in wgmma_tiles(gemm):
        patched = cut_to_patches(gemm, tile.bm)
        if not suits(tile, patched):
            continue
        found = choose(patched, [tile], device, dtype)
        tail = 0.0 if after is None else cycles_after(after, band_of(found, after))
        options.append(Choice(found.cycles + tail, patched, tile, found.partition))
    return min(options, key=lambda option: option.cycles)


def suits(tile: WgmmaTile, gemm: Gemm) -> bool:
    """Whether most blocks of a cluster have rows."""
    m_blocks = ceil(gemm.m / tile.bm)
    return m_blocks % tile.cluster == 0 or m_blocks >= MANY_BLOCKS


def choose(
    gemm: Gemm, tiles: Sequence[TiledGemm], device: Device, dtype: str, after: RowsAfter | None = None,
    share: float = 1,
) -> Choice:  # fmt: skip
    """The tile and the partition with the least estimated time; `dtype` is what the device multiplies (`tfloat32`).

    after: what blocks do for bands of rows after the GEMM. share: of the arithmetic rate that can be had at all.
    """
    options = []
    for tile in tiles:
        for parts in _parts(gemm, tile, device):
            partition = cut(gemm, (tile.bm, tile.bn, tile.bk), parts)
            found = Choice(estimated_cycles(gemm, tile, partition, device, dtype, share), gemm, tile, partition)
            tail = 0.0 if after is None else cycles_after(after, band_of(found, after))
            options.append(Choice(found.cycles + tail, gemm, tile, partition))
    return min(options, key=lambda option: option.cycles)


def _parts(gemm: Gemm, tile: TiledGemm, device: Device) -> list[int]:
    if cut(gemm, (tile.bm, tile.bn, tile.bk), 1).blocks >= 2 * device.sm_count:
        return [1]
    return [parts for parts in PARTS if parts == 1 or gemm.k >= parts * LEAST_PART]


def estimated_cycles(
    gemm: Gemm, tile: TiledGemm, partition: Partition, device: Device, dtype: str, share: float = 1
) -> float:
    """Cycles of an SM until the last one is done."""
    on_one = ceil(partition.blocks / device.sm_count)
    together = min(on_one, resident_blocks(tile, device))
    warps = together * tile.threads / 32
    rate = multiply_adds_per_cycle(device, dtype) * (share * speed_of(tile)) * warps / (warps + GPU_HALF_RATE_WARPS)
    step_bytes = (tile.bm * storage_bytes(gemm.a.dtype) + tile.bn * storage_bytes(gemm.b.dtype)) * tile.bk
    step = max(
        together * tile.bm * tile.bn * tile.bk / rate,
        together * step_bytes / GPU_SM_L2_BYTES_PER_CYCLE,
        MEMORY_LATENCY_CYCLES / tile.ahead + BARRIER_CYCLES,
    )
    cycles = ceil(on_one / together) * (GPU_START_CYCLES + partition.steps * step)
    if partition.parts == 1:
        return cycles
    sums_bytes = 2 * partition.parts * gemm.elements * storage_bytes(gemm.acc_dtype)
    return cycles + JOIN_CYCLES + sums_bytes / (device.sm_count * SUM_BYTES_PER_CYCLE)


def multiply_adds_per_cycle(device: Device, dtype: str) -> float:
    """Of one SM. Integers on the ordinary units: half the rate of float32."""
    if dtype not in device.peak_flops:
        return multiply_adds_per_cycle(device, "float32") / 2
    return device.peak_flops[dtype] / 2 / device.sm_count / device.clock_hz


def resident_blocks(tile: TiledGemm, device: Device) -> int:
    """Blocks that a multiprocessor holds, registers aside."""
    fits = device.shared_bytes_per_sm // (tile.shared_bytes + GPU_RESERVED_SHARED_BYTES)
    return max(1, min(device.blocks_per_sm, device.threads_per_sm // tile.threads, fits))


def persistent_blocks(choice: Choice, device: Device) -> int:
    """Blocks of a launch of wgmma, which walk over clusters of tiles: as many as the device holds, or fewer."""
    tile, partition = choice.tile, choice.partition
    assert isinstance(tile, WgmmaTile)
    clusters = partition.batch * ceil(partition.m_blocks / tile.cluster) * partition.n_blocks * partition.parts
    return tile.cluster * min(clusters, tile.resident * device.sm_count // tile.cluster)


# -- rows after a GEMM -------------------------------------------------------------------------------------------------


def band_of(choice: Choice, after: RowsAfter) -> Band:
    """The rows that a block, or a warp of wgmma, stores of a tile."""
    tile, n_blocks = choice.tile, choice.partition.n_blocks
    if isinstance(tile, WgmmaTile):
        return after.band(WARP_ROWS * tile.rows, n_blocks, 32, warps=True)
    return after.band(min(tile.bm, choice.gemm.m), n_blocks, tile.threads)


def band_schedule(gemm: Gemm, schedule: GemmSchedule, after: RowsAfter, device: Device) -> BandSchedule:
    """How the bands of a scheduled GEMM are shared."""
    tile = schedule.tile
    assert not isinstance(tile, GemvTile)
    partition = cut(gemm, (tile.bm, tile.bn, tile.bk), schedule.split_k)
    band = band_of(Choice(0, gemm, tile, partition), after)
    return BandSchedule(band.share_rows, POLLS, device.sm_count * resident_blocks(tile, device))


def cycles_after(after: RowsAfter, band: Band) -> float:
    """Estimated cycles from the last store of a band until its last row is done."""
    work = after.work(band.threads)
    reductions = sum(part is Part.REDUCTION for part in after.roles.parts.values())
    turns = ceil(band.share_rows * after.rows_each / work.rows)
    full = [v for v in after.values if v.tensor_type.num_elements >= work.row_count * prod(work.line_extents)]
    moved = band.share_rows * after.columns * sum(storage_bytes(v.dtype) for v in full)
    longer = ceil(work.steps * work.lanes / REGISTER_ELEMENTS)
    serial = turns * longer * (ROW_CYCLES + reductions * REDUCTION_CYCLES)
    return HAND_OVER_CYCLES + max(serial, moved / GPU_SM_L2_BYTES_PER_CYCLE)
