"""Schedules of attention on a CPU: the queries of a task and of a block, and the GEMMs of a block."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import ceil

from tilestitch.passes.plan.cpu.attention import AttentionPlan, AttentionShape
from tilestitch.passes.plan.cpu.gemm import GemmShape
from tilestitch.passes.plan.cpu.isa import TILE_ROWS, Isa
from tilestitch.passes.plan.cpu.schedules import CpuAttentionSchedule, CpuGemmSchedule
from tilestitch.passes.plan.cpu.tiling import split_at_most

from .cycles import attention_cycles
from .gemm import choose_gemm, in_one_task, tile_gemm
from .tasks import SHAPES, UNEVENNESS
from .tiles import choose_tile

LEAST_QUERIES, PACKED_QUERIES = 8, 16
"""Least queries per task, and those whose GEMMs take as long as packing keys and values."""
LEAST_BLOCK = 8
"""Queries of a block, however much memory their scores take."""


@lru_cache(SHAPES)
def choose_attention(shape: AttentionShape, isa: Isa, threads: int) -> CpuAttentionSchedule:
    """Return the schedule, with blocks of one register tile of queries if keys and values of a head stay in half of the
    second-level cache.

    Otherwise blocks are larger, are multiplied by each panel while it is cached, and their scores take that half.
    """
    candidates = [in_vectors(shape, isa, threads), in_tiles(shape, isa, threads)]
    return min(filter(None, candidates), key=lambda schedule: attention_cycles(AttentionPlan(shape, schedule), isa))


def in_vectors(shape: AttentionShape, isa: Isa, threads: int) -> CpuAttentionSchedule:
    """Return the schedule with both GEMMs in vector registers."""
    isa = replace(isa, tile_dots=())
    queries, most = _cut(shape, threads)
    height = choose_tile(most, shape.keys, isa.lanes(shape.acc_dtype), isa)[0].rows
    block = split_at_most(most, _block(shape, height, isa)).largest
    draft = CpuAttentionSchedule(queries, block, _ONE, _ONE)
    rows = AttentionPlan(shape, draft).blocks.largest
    scores, weighed = (_gemm(_narrowest(gemm, rows, isa), isa) for gemm in (shape.scores, shape.weighed))
    return replace(draft, scores=scores, weighed=weighed)


def in_tiles(shape: AttentionShape, isa: Isa, threads: int) -> CpuAttentionSchedule | None:
    """Return the schedule with both GEMMs by a tile instruction, if one computes both. Weights are whole tiles of keys
    as they are rounded.
    """
    queries, most = _cut(shape, threads)
    height = TILE_ROWS if most <= TILE_ROWS else 2 * TILE_ROWS
    draft = CpuAttentionSchedule(queries, _block(shape, height, isa), _ONE, _ONE)
    rows = AttentionPlan(shape, draft).blocks.largest
    gemms = shape.scores(rows, True), shape.weighed(rows, True)
    dot = next((dot for dot in isa.tile_dots if all(gemm.multiplied_by(dot) for gemm in gemms)), None)
    if dot is None:
        return None
    scores = tile_gemm(gemms[0], dot, height, 2, stage=True)
    weighed = AttentionPlan(shape, replace(draft, scores=scores, weighed=scores)).second.shape
    beside = min(2, ceil(weighed.n / TILE_ROWS))
    return replace(draft, scores=scores, weighed=tile_gemm(weighed, dot, height, beside, stage=False))


_ONE = CpuGemmSchedule(1, 1, 2, 1, 1, 1)
"""Placeholder for a schedule that is not chosen yet."""


def _cut(shape: AttentionShape, threads: int) -> tuple[int, int]:
    """Return the queries of a task as scheduled, and the most that a task gets."""
    queries = attention_rows(shape.heads, max(1, shape.queries), threads)
    return queries, ceil(shape.queries / ceil(shape.queries / queries))


def _narrowest(gemm: Callable[[int, bool], GemmShape], rows: int, isa: Isa) -> GemmShape:
    """Return the GEMM of half floats, if an instruction multiplies these; else that in the dtype of the sums."""
    narrow = gemm(rows, True)
    return narrow if isa.dot_of(narrow) is not None else gemm(rows, False)


def _block(shape: AttentionShape, height: int, isa: Isa) -> int:
    """Return the most queries of a block, in register tiles of `height`."""
    near, row_bytes = isa.l2_bytes // 2, shape.keys * shape.item
    if shape.keys * (shape.width + shape.columns) * shape.item > near:
        height *= max(1, near // (height * row_bytes))
    return min(height, max(LEAST_BLOCK, near // row_bytes))


def _gemm(shape: GemmShape, isa: Isa) -> CpuGemmSchedule:
    """Return the schedule of a block's GEMM in one task, panel by panel."""
    chosen = in_one_task(choose_gemm(shape, isa, 1), shape)
    prefetch = chosen.block_panels > 1 and chosen.block_tiles >= chosen.vectors
    return replace(chosen, rows_outer=False, k_outer=False, prefetch_next=prefetch)


def attention_rows(heads: int, queries: int, threads: int) -> int:
    """Return the queries per task that minimise the time of the slowest thread.

    Every task packs the keys and values of its head.
    """
    parts = range(1, max(1, queries // LEAST_QUERIES) + 1)

    def makespan(rows: int) -> float:
        rounds = ceil(heads * ceil(queries / rows) / threads) + (UNEVENNESS if threads > 1 else 0.0)
        return rounds * (rows + PACKED_QUERIES)

    return min(dict.fromkeys(ceil(queries / p) for p in parts), key=lambda rows: (makespan(rows), -rows))
