"""The numbering of a kernel's thread blocks: which tile each computes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from tilestitch.compiler.ir.indexing import unravel
from tilestitch.passes.plan.access.row_loops import row_loops
from tilestitch.passes.plan.access.windows import direct_threads
from tilestitch.passes.plan.attention.operands import attention_of
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.partition import partitioned
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    DirectSchedule,
    ElementwiseSchedule,
    GemmSchedule,
    OpenAttentionSchedule,
    RowSchedule,
    Schedule,
)
from tilestitch.passes.plan.view import GroupView

Coordinates = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Blocks numbered over `dims`, the last dimension fastest.

    tile_rows: if not 0, the last two dimensions are rows and columns of tiles, and this many neighbouring rows are
    numbered together, column by column. falling: the last dimension is numbered downwards.
    """

    dims: tuple[int, ...]
    tile_rows: int = 0
    falling: bool = False

    @property
    def blocks(self) -> int:
        return prod(self.dims)

    def place(self, block: int) -> Coordinates:
        """Return the tile that a block computes."""
        if not self.tile_rows:
            *outer, last = unravel(block, self.dims)
            return (*outer, self.dims[-1] - 1 - last if self.falling else last)
        *sizes, rows, columns = self.dims
        lead, tile = unravel(block // (rows * columns), sizes), block % (rows * columns)
        first = tile // (self.tile_rows * columns) * self.tile_rows
        together = min(self.tile_rows, rows - first)
        within = tile - first * columns
        return (*lead, first + within % together, within // together)

    def places(self) -> Iterator[Coordinates]:
        """Return the tiles in the order of the blocks' numbers."""
        return iter(self._places)

    @cached_property
    def _places(self) -> tuple[Coordinates, ...]:
        return tuple(map(self.place, range(self.blocks)))


def grid_of(view: GroupView, schedule: Schedule | None) -> Grid | None:
    """Return the grid of a kernel's tiles, one per block, or several per persistent block (`walks`); None if the tiles
    are unknown or there are several launches.

    The grid of a GEMM: parts of the reduction, batch, rows and columns of tiles. That of attention: the matrices of the
    result's leading dimensions, and tiles of queries.
    """
    match schedule:
        case GemmSchedule(tile=tile):
            gemm = gemm_of(AnchoredGroup.of(view))
            if gemm is None:
                return None
            _, found = partitioned(gemm, schedule)
            rows = found.tile_rows * (tile.cluster if isinstance(tile, WgmmaTile) else 1)
            return Grid((found.parts, found.batch, found.m_blocks, found.n_blocks), min(rows, found.m_blocks))
        case AttentionSchedule(tile=tile):
            what = attention_of(AnchoredGroup.of(view))
            if isinstance(schedule, OpenAttentionSchedule) or what.parts(schedule) > 1:
                return None
            lead = what.result.shape[:-2] if what.merged == 1 else (what.batch,)
            return Grid((*lead, ceil(what.rows / tile.bm)), falling=True)
        case DirectSchedule():
            return Grid((ceil(direct_threads(AnchoredGroup.of(view), schedule) / schedule.threads),))
        case ElementwiseSchedule(threads=threads, lanes=lanes, vectors=vectors):
            count = view.stored[0].tensor_type.num_elements // lanes
            return Grid((ceil(count / (threads * vectors)),))
        case RowSchedule(blocks_per_row=1, rows=rows):
            return Grid((ceil(_rows(view) / rows),))
    return None


def grids_of(view: GroupView, schedule: Schedule | None, blocks: Sequence[int]) -> tuple[Grid, ...]:
    """Return the grids of a kernel's launches, given their numbers of blocks. Where the tile of a block is unknown, or
    there are several launches, blocks are just numbers.
    """
    known = grid_of(view, schedule) if len(blocks) == 1 else None
    if known is not None and (known.blocks == blocks[0] or walks(schedule)):
        return (known,)
    return tuple(Grid((count,)) for count in blocks)


def walks(schedule: Schedule | None) -> bool:
    """Return whether a kernel's blocks iterate over tiles: they wait before each, and post after it."""
    return isinstance(schedule, GemmSchedule) and isinstance(schedule.tile, WgmmaTile)


def _rows(view: GroupView) -> int:
    roles = legal_roles(view)
    return row_loops(view.nodes, roles, view.inputs, view.stored).row_count
