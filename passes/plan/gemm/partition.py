"""How a GEMM is partitioned into tiles, and its reduction into parts."""

from dataclasses import dataclass, replace

from tilestitch.compiler.ir.sizes import smallest
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.gemv import seen_by
from tilestitch.passes.plan.gemm.tiles import GemvTile, WgmmaTile
from tilestitch.passes.plan.gemm.tma import cut_to_patches
from tilestitch.passes.plan.schedules import GemmSchedule, OpenGemmSchedule


@dataclass(frozen=True)
class Partition:
    """`batch` x `m_blocks` x `n_blocks` tiles, each `parts` times with `steps` steps of the reduction.

    tile_rows: tiles of this many neighbouring rows are computed together, column by column, so that they share operands
    in the L2 cache. kept_elements, counters: memory for partial sums, and counters of tiles, where rows are open and
    some case splits the reduction; else 0.
    """

    batch: int
    m_blocks: int
    n_blocks: int
    parts: int
    steps: int
    tile_rows: int = 1
    kept_elements: int = 0
    counters: int = 0

    @property
    def blocks(self) -> int:
        return self.batch * self.m_blocks * self.n_blocks * self.parts


TILE_ROWS = 8
"""The planner's default number of rows of tiles that are computed together."""


def cut(gemm: Gemm, tile: tuple[int, int, int], parts: int, tile_rows: int = TILE_ROWS) -> Partition:
    """Return the partition into tiles of extents (m, n, k), with the reduction in at most `parts` parts and at most
    `tile_rows` rows of tiles together.
    """
    steps = -(-gemm.k // tile[2])
    each = -(-steps // parts)
    used = 1 if parts == 1 else -(-steps // each) if each else 1
    m_blocks, n_blocks = -(-gemm.m // tile[0]), -(-gemm.n // tile[1])
    return Partition(gemm.batch, m_blocks, n_blocks, used, each, smallest(tile_rows, m_blocks))


def partitioned(gemm: Gemm, schedule: GemmSchedule) -> tuple[Gemm, Partition]:
    """Return a scheduled GEMM as its kernel sees it, with the large operand on the right or with rows of patches, and
    its partition.
    """
    tile = schedule.tile
    match tile:
        case GemvTile():
            gemm = seen_by(gemm, tile)
        case WgmmaTile():
            gemm = cut_to_patches(gemm, tile.bm)
    return gemm, partition_of(gemm, schedule)


def partition_of(gemm: Gemm, schedule: GemmSchedule) -> Partition:
    """Return the partition of a scheduled GEMM that is as its kernel sees it."""
    tile = schedule.tile
    found = cut(gemm, (tile.bm, tile.bn, tile.bk), schedule.split_k, schedule.tile_rows)
    if not isinstance(schedule, OpenGemmSchedule):
        return found
    return replace(found, kept_elements=schedule.kept_elements, counters=schedule.counters)
