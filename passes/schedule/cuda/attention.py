"""Schedules of attention on GPUs: the tile, and into how many parts the keys are cut. From counting; none was timed."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tilestitch.compiler.ir.types import HALVES, storage_bytes
from tilestitch.passes.plan.anchored import AnchoredGroup
from tilestitch.passes.plan.attention import AttentionShape, attention_of
from tilestitch.passes.plan.attention_check import doubles, fits_mma, shared
from tilestitch.passes.plan.attention_tiles import ACROSS, QUAD, STEP, AttentionMmaTile, AttentionSimtTile, padded
from tilestitch.passes.plan.schedules import AttentionSchedule

from .gpu import Gpu

MOST_DOUBLED, DOUBLED_KEYS = 64, 32
"""Width of operands for which the registers of a thread hold two fragments of rows, and keys of such a tile."""
MOST_PARTS = 32
LEAST_PART = 256
"""Keys that are worth a part of their own."""


def choose_attention(group: AnchoredGroup, gpu: Gpu) -> AttentionSchedule | None:
    """The schedule of an attention group; None if no tile fits the shared memory of a block."""
    what = attention_of(group)
    tile = _mma(what, gpu) if fits_mma(what, gpu.capability) else _simt(what, gpu)
    return AttentionSchedule(tile, _parts(what, tile, gpu.device.sm_count)) if tile else None


def _fits(tile: AttentionMmaTile | AttentionSimtTile, what: AttentionShape, gpu: Gpu) -> bool:
    return next(shared(tile, what, gpu.device.shared_bytes_per_block), None) is None


def _mma(what: AttentionShape, gpu: Gpu) -> AttentionMmaTile | None:
    return next((tile for tile in _mma_tiles(what, gpu) if _fits(tile, what, gpu)), None)


def _mma_tiles(what: AttentionShape, gpu: Gpu) -> Iterator[AttentionMmaTile]:
    """Tiles to try, the best first.

    Each warp has a tensor core of its own: fewer warps in more blocks would only read keys and values more often.
    """
    width, columns = padded(what.width), padded(what.columns)
    line_bytes = max(width, columns) * storage_bytes(what.query.dtype)
    bn = min(64 if line_bytes <= 256 else 32 if line_bytes <= 512 else 16, padded(what.keys))
    double = AttentionMmaTile(4, min(bn, DOUBLED_KEYS), width, columns, 2)
    narrow = what.query.dtype in HALVES and max(width, columns) <= MOST_DOUBLED
    if narrow and what.batch * (what.rows // double.bm) >= gpu.device.sm_count:
        yield double
    for warps in (1, 2, 4) if what.rows <= STEP else (2, 4, 1) if what.rows <= 2 * STEP else (4, 2, 1):
        yield AttentionMmaTile(warps, bn, width, columns)


def _simt(what: AttentionShape, gpu: Gpu) -> AttentionSimtTile | None:
    itemsize, most = storage_bytes(what.acc_dtype), ceil(what.keys / ACROSS) * ACROSS
    tiles = [
        AttentionSimtTile(bm, min(bn, most), what.width, what.columns, itemsize, rows)
        for bm, rows in ((64, 8), (64, 4), (32, 4), (16, 4))
        for bn in (64, 32, 16)
        if bm == 16 or bm < 2 * what.rows
    ]
    fitting = [t for t in tiles if _fits(t, what, gpu) and (t.rows == QUAD or doubles(t))]
    if not fitting:
        return None
    full = (t for t in fitting if t.bm >= 32 and what.batch * ceil(what.rows / t.bm) >= gpu.device.sm_count)
    # Where tiles are fewer than SMs, smaller ones keep more of these at work.
    small = [t for t in fitting if t.bm >= 32] or fitting
    return next(full, None) or next(t for t in small if t.bm == small[-1].bm)


def _parts(what: AttentionShape, tile: AttentionMmaTile | AttentionSimtTile, sm_count: int) -> int:
    """Several where tiles are fewer than SMs and keys are many."""
    blocks, steps = what.batch * ceil(what.rows / tile.bm), ceil(what.keys / tile.bn)
    most = min(MOST_PARTS, what.keys // LEAST_PART, ceil(2 * sm_count / blocks))
    if blocks >= sm_count or most < 2:
        return 1
    each = ceil(steps / most)
    return ceil(steps / each)
