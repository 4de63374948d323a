"""Schedules of attention on GPUs: the tile and the number of parts of the keys, by the latency model."""

from collections.abc import Iterable, Iterator
from itertools import islice
from math import ceil
from typing import TypeAlias

from tilestitch.compiler.ir.types import HALVES, storage_bytes
from tilestitch.cost_model.protocol import LatencyModel, fastest
from tilestitch.passes.plan.attention.check import doubles, fits_mma, shared
from tilestitch.passes.plan.attention.operands import AttentionShape, attention_of
from tilestitch.passes.plan.attention.tiles import ACROSS, QUAD, STEP, AttentionMmaTile, AttentionSimtTile, padded
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.schedules import AttentionSchedule
from tilestitch.passes.plan.view import GroupView

from .attention_facts import candidate_facts
from .gpu import Gpu

AttentionTile: TypeAlias = AttentionMmaTile | AttentionSimtTile

MOST_DOUBLED, DOUBLED_KEYS = 64, 32
"""Largest operand width for which a thread's registers hold two fragments of rows, and the keys of such a tile."""
TILE_KEYS = (64, 32, 16)
MOST_PARTS = 64
SPLIT_KEYS = 512
"""Least keys for which a launch that combines parts pays."""


def choose_attention(view: GroupView, gpu: Gpu, model: LatencyModel) -> AttentionSchedule | None:
    """Return the schedule that `model` predicts to be fastest for an attention group; None if no tile fits shared
    memory.
    """
    group = AnchoredGroup.of(view)
    what = attention_of(group)
    candidates = attention_schedules(what, gpu)
    if not candidates:
        return None
    return fastest(candidates, [candidate_facts(view, group, what, each) for each in candidates], gpu.device, model)


def attention_schedules(what: AttentionShape, gpu: Gpu) -> list[AttentionSchedule]:
    """Return the candidate schedules, those with few parts of the keys first; none if no tile fits shared memory."""
    schedules = (AttentionSchedule(tile, parts) for tile in _tiles(what, gpu) for parts in _parts(what, tile, gpu))
    return sorted(schedules, key=lambda schedule: schedule.split_keys)


def _tiles(what: AttentionShape, gpu: Gpu) -> Iterable[AttentionTile]:
    """Return the tiles to try: on tensor cores if they compute this attention, with as many keys as shared memory
    allows.
    """
    for keys in TILE_KEYS if fits_mma(what, gpu.capability) else ():
        tiles = [tile for tile in _mma_tiles(what, gpu, keys) if _fits(tile, what, gpu)]
        if tiles:
            return tiles
    return _simt_tiles(what, gpu)


def _fits(tile: AttentionTile, what: AttentionShape, gpu: Gpu) -> bool:
    return next(shared(tile, what, gpu.device.shared_bytes_per_block), None) is None


def _mma_tiles(what: AttentionShape, gpu: Gpu, most_keys: int) -> Iterator[AttentionTile]:
    """Yield candidate tiles, those that read keys and values least often for the given rows first.

    Each warp uses its own tensor core: fewer warps in more blocks multiply no faster.
    """
    width, columns = padded(what.width), padded(what.columns)
    line_bytes = max(width, columns) * storage_bytes(what.query.dtype)
    bn = min(64 if line_bytes <= 256 else 32 if line_bytes <= 512 else 16, padded(what.keys), most_keys)
    double = AttentionMmaTile(4, min(bn, DOUBLED_KEYS), width, columns, 2)
    narrow = what.query.dtype in HALVES and max(width, columns) <= MOST_DOUBLED
    if narrow and what.batch * (what.rows // double.bm) >= gpu.device.sm_count:
        yield double
    for warps in (1, 2, 4) if what.rows <= STEP else (2, 4, 1) if what.rows <= 2 * STEP else (4, 2, 1):
        yield AttentionMmaTile(warps, bn, width, columns)


def _simt_tiles(what: AttentionShape, gpu: Gpu) -> Iterator[AttentionTile]:
    """Yield, for each number of rows, the tile with the most keys that fits; only the largest if it gives every
    multiprocessor a block: it reads keys and values least often, from memory and from shared memory.
    """
    itemsize, most = storage_bytes(what.acc_dtype), ceil(what.keys / ACROSS) * ACROSS
    for bm, rows in ((64, 8), (64, 4), (32, 4), (16, 4), (8, 2)):
        if bm > STEP and bm >= 2 * what.rows:
            continue
        tiles = (AttentionSimtTile(bm, min(bn, most), what.width, what.columns, itemsize, rows) for bn in (64, 32, 16))
        for tile in islice((t for t in tiles if _fits(t, what, gpu) and (rows <= QUAD or doubles(t))), 1):
            yield tile
            if what.batch * ceil(what.rows / bm) >= gpu.device.sm_count:
                return


def _parts(what: AttentionShape, tile: AttentionTile, gpu: Gpu) -> list[int]:
    """Return the candidate numbers of parts of the keys, each at least one step of tiles.

    Where every multiprocessor has a block anyway, splitting would only even out the last wave of blocks, at the cost of
    another launch: the model treats waves as exact, and was not validated there.
    """
    steps, blocks = ceil(what.keys / tile.bn), what.batch * ceil(what.rows / tile.bm)
    if what.keys < SPLIT_KEYS or blocks >= gpu.device.sm_count:
        return [1]
    each = (ceil(steps / most) for most in (1, 2, 4, 8, 16, 32, MOST_PARTS))
    return list(dict.fromkeys(ceil(steps / count) for count in each))
