"""Schedules of contractions on GPUs: candidate kernels, tiles and split-K, of which a latency model chooses one."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import TypeAlias

from tilestitch.compiler.ir import Node
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.protocol import LatencyModel, fastest
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.access.windows import direct_schedules, direct_threads
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.gemv import gemv_tile, has_few_rows, with_large_right
from tilestitch.passes.plan.gemm.kernels import why_not_mma, why_not_wgmma
from tilestitch.passes.plan.gemm.partition import Partition, cut
from tilestitch.passes.plan.gemm.rows_after import RowsAfter
from tilestitch.passes.plan.gemm.tiles import GemvTile, MmaTile, SimtTile, Tile, WgmmaTile
from tilestitch.passes.plan.gemm.tma import cut_to_patches
from tilestitch.passes.plan.schedules import BandSchedule, DirectSchedule, GemmSchedule
from tilestitch.passes.plan.view import look_up

from .band_facts import band_of, banded_candidate, writer_threads
from .gemm_facts import candidate_facts
from .gemm_tiles import SIMT_TILES, WIDE_TILES, mma_tiles, resident_blocks, wgmma_tiles
from .gpu import Gpu

DIRECT_THREADS = 128
DIRECT_THREADS_OF_SM = 256
"""Threads per SM from which each may compute several results of a convolution of narrow groups."""
LEAST_PART = 128
"""Least steps of the reduction for a separate part."""
PARTS = (1, 2, 4, 8, 16, 32)
MANY_BLOCKS = 16
"""Number of blocks of rows from which one more is harmless."""
POLLS = 12
"""How often a block polls for the last one of its band: for about the time of two launches."""

Tiled: TypeAlias = SimtTile | MmaTile


def choose_contraction(group: AnchoredGroup, gpu: Gpu, model: LatencyModel) -> GemmSchedule | DirectSchedule:
    """Return the schedule of a contraction with a non-empty result."""
    gemm = gemm_of(group)
    return _direct(group, gpu) if gemm is None else choose_gemm(gemm, gpu, model)


def _direct(group: AnchoredGroup, gpu: Gpu) -> DirectSchedule:
    """Return the schedule with the most results per thread, which share operands, that leaves enough threads."""
    enough = gpu.device.sm_count * DIRECT_THREADS_OF_SM
    *several, single = direct_schedules(group, DIRECT_THREADS)
    return next((one for one in several if direct_threads(group, one) >= enough), single)


def choose_gemm(gemm: Gemm, gpu: Gpu, model: LatencyModel, after: RowsAfter | None = None) -> GemmSchedule:
    """Return the kernel and tile that `model` predicts to be fastest. after: row-wise work that follows in its
    launch.
    """
    return choose_among(gemm, gemm_schedules(gemm, gpu, after), gpu.device, model, after)


def choose_among(
    gemm: Gemm, candidates: Iterable[GemmSchedule], device: Device, model: LatencyModel, after: RowsAfter | None = None
) -> GemmSchedule:
    """Return the candidate that `model` predicts to be fastest, with few parts of the reduction, whose sums take
    memory, if that is hardly slower. There is one at least.
    """
    schedules = sorted(dict.fromkeys(candidates), key=lambda schedule: schedule.split_k)
    facts = (candidate_facts(gemm, schedule) for schedule in schedules)
    if after is not None:
        facts = (banded_candidate(gemm, each, part, after) for each, part in zip(schedules, facts, strict=True))
    return fastest(schedules, list(facts), device, model)


# -- candidates --------------------------------------------------------------------------------------------------------


def gemm_schedules(gemm: Gemm, gpu: Gpu, after: RowsAfter | None = None) -> Iterator[GemmSchedule]:
    """Yield the candidate schedules. Ordinary units are used for what tensor cores do not multiply."""
    if has_few_rows(gemm) and after is None:
        yield from gemv_schedules(gemm, gpu.device)
        return
    if _suits_wgmma(gemm, gpu, after):
        yield from wgmma_schedules(gemm, gpu.device)
    yield from tiled_schedules(gemm, gpu)


def _suits_wgmma(gemm: Gemm, gpu: Gpu, after: RowsAfter | None) -> bool:
    """Return whether wgmma is suitable: patches of pixels form no bands of rows."""
    if after is not None and gemm.a.pictures is not None:
        return False
    return why_not_wgmma(gemm, gpu.device.name, gpu.specific) is None


def gemv_schedules(gemm: Gemm, device: Device) -> Iterator[GemmSchedule]:
    """Yield schedules with one part, and with more until the SMs hold no more blocks: the fewer SMs there are, the more
    blocks each needs to keep DRAM busy.
    """
    gemm = with_large_right(gemm)
    tile = gemv_tile(gemm)
    full = device.sm_count * (device.threads_per_sm // tile.threads)
    for parts in PARTS:
        partition = _cut(gemm, tile, parts)
        yield _schedule(tile, partition)
        if partition.blocks >= full or partition.steps <= 1:
            return


def tiled_schedules(gemm: Gemm, gpu: Gpu) -> Iterator[GemmSchedule]:
    """Yield the schedules whose blocks compute one tile each: by mma.sync, or on the ordinary arithmetic units, which
    compute every GEMM.
    """
    tiles: Iterable[Tiled] = SIMT_TILES if storage_bytes(gemm.acc_dtype) <= 4 else WIDE_TILES
    if why_not_mma(gemm, gpu.capability) is None:
        tiles = mma_tiles(storage_bytes(gemm.a.dtype), gpu.capability)
    for tile in tiles:
        yield from (_schedule(tile, partition) for partition in _partitions(gemm, tile, gpu.device))


def wgmma_schedules(gemm: Gemm, device: Device) -> Iterator[GemmSchedule]:
    """Yield schedules of a GEMM that `why_not_wgmma` accepts."""
    for tile in wgmma_tiles(gemm):
        patched = cut_to_patches(gemm, tile.bm)
        if suits(tile, patched):
            for partition in _partitions(patched, tile, device):
                if blocks := persistent_blocks(tile, partition, device):
                    yield _schedule(tile, partition, blocks)


def suits(tile: WgmmaTile, gemm: Gemm) -> bool:
    """Return whether most blocks of a cluster have rows."""
    m_blocks = ceil(gemm.m / tile.bm)
    return m_blocks % tile.cluster == 0 or m_blocks >= MANY_BLOCKS


def persistent_blocks(tile: WgmmaTile, partition: Partition, device: Device) -> int:
    """Return the blocks of a launch of wgmma, which walk over clusters of tiles: as many as the device holds, or
    fewer. 0 if it does not hold a cluster.
    """
    clusters = partition.batch * ceil(partition.m_blocks / tile.cluster) * partition.n_blocks * partition.parts
    return tile.cluster * min(clusters, tile.resident * device.sm_count // tile.cluster)


def _partitions(gemm: Gemm, tile: Tile, device: Device) -> Iterator[Partition]:
    """Yield the reduction whole, and in parts where tiles leave SMs with a block or none."""
    whole = _cut(gemm, tile, 1)
    yield whole
    if whole.blocks < 2 * device.sm_count:
        yield from (_cut(gemm, tile, parts) for parts in PARTS if 1 < parts <= gemm.k // LEAST_PART)


def _schedule(tile: Tile, partition: Partition, blocks: int = 0) -> GemmSchedule:
    return GemmSchedule(tile, partition.parts, blocks, partition.tile_rows)


def _cut(gemm: Gemm, tile: Tile, parts: int) -> Partition:
    return cut(gemm, (tile.bm, tile.bn, tile.bk), parts)


# -- rows after a GEMM -------------------------------------------------------------------------------------------------


def gemm_and_rows(nodes: Mapping[str, Node], group: Group) -> tuple[Gemm, RowsAfter]:
    """Return the GEMM of a group tied by bands, and the rows after it."""
    first, rows = group.parts
    contraction = AnchoredGroup.of(look_up(nodes, first))
    gemm = gemm_of(contraction)
    assert gemm is not None, "a convolution that is computed directly has no rows after it"
    return gemm, RowsAfter.of(look_up(nodes, rows), contraction.result.shape[-1], contraction.outputs)


def band_schedule(gemm: Gemm, schedule: GemmSchedule, after: RowsAfter, device: Device) -> BandSchedule:
    """Return how the bands of a scheduled GEMM are shared."""
    tile = schedule.tile
    assert not isinstance(tile, GemvTile)
    band = band_of(gemm, schedule, after)
    return BandSchedule(band.share_rows, POLLS, device.sm_count * resident_blocks(tile, device))


def with_bands(group: Group, gemm: Gemm, schedule: GemmSchedule, after: RowsAfter, device: Device) -> Group:
    """Return the group of a GEMM and the rows after it with a schedule of the GEMM, and what follows from it."""
    first, rows = group.parts
    work = after.work(writer_threads(schedule.tile))
    parts = (replace(first, schedule=schedule),), (replace(rows, schedule=work.schedule),)
    return replace(group, stages=parts, schedule=band_schedule(gemm, schedule, after, device))
