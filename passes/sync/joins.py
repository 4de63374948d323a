"""Work of the last block to arrive: combining parts of a reduction, and bands of rows after a GEMM.

These are also edges, whose consumers draw no tickets: a block that has stored its part posts, and the one with the last
post (for a band, those that observe it) continues with what needs all of them. No block waits for one that may not have
begun. So the same proof applies: to tasks that begin when a semaphore has all its posts, and to what they read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.partition import partitioned
from tilestitch.passes.plan.gemm.rows_after import WARP_ROWS, Band, RowsAfter
from tilestitch.passes.plan.gemm.tiles import WARP, WgmmaTile
from tilestitch.passes.plan.schedules import BandSchedule, GemmSchedule
from tilestitch.passes.plan.sync.edges import Bound, Grouping, TileEdge
from tilestitch.passes.plan.sync.grid import Coordinates, Grid
from tilestitch.passes.plan.view import look_up

from .boxes import Range
from .check import MOST_CELLS, program_of, why_no_edge
from .dependence import Needs, needs_of
from .footprints import Relation
from .program import why_not
from .relations import contraction_relation, rows_relation

BLOCK_ROWS = 64
"""Rows of a wgmma tile, of which each of four warps has 16."""


@dataclass(frozen=True)
class Joined:
    """Steps of one kernel, each begun by the last blocks of the one before: the groups that they compute, their tiles,
    and the needs of these.
    """

    groups: tuple[Group, ...]
    relations: tuple[Relation, ...]
    needs: Mapping[tuple[int, int], Needs]
    edges: tuple[TileEdge, ...]


def why_not_joined(joined: Joined) -> str | None:
    """Return why a step might begin too early, or never; None if it cannot."""
    problem = next((p for edge in joined.edges if (p := why_no_edge(joined, edge)) is not None), None)
    return problem or why_not(program_of(joined, joined.edges))


def joined_of(nodes: Mapping[str, Node], group: Group) -> Joined | None:
    """Return the steps begun by last blocks of a kernel; None if there are none, and for bands with so many tiles that
    the sets of what they store would exceed memory.
    """
    banded = group.tie == "band"
    first = group.parts[0] if banded else group
    if not isinstance(first.schedule, GemmSchedule) or (group.stages and not banded):
        return None
    gemm = gemm_of(AnchoredGroup.of(look_up(nodes, first)))
    if gemm is None:
        return None
    tiles = _Tiles.of(gemm, first.schedule)
    if banded and max(gemm.m, gemm.n) * tiles.grid(1).blocks > MOST_CELLS:
        return None
    steps: list[tuple[Group, Relation]] = []
    needs: dict[tuple[int, int], Needs] = {}
    edges: list[TileEdge] = []
    if tiles.parts > 1:
        steps.append((first, Relation(tiles.grid(tiles.parts), (), _everything)))
        needs[0, 1] = _of_parts(tiles)
        edges.append(_join(tiles))
    if banded:
        view, columns = look_up(nodes, first), AnchoredGroup.of(look_up(nodes, first)).result.shape[-1]
        writers = contraction_relation(view, tiles.grid(1), tiles.spans)
        rows, number = _rows(nodes, group, tiles, columns), len(steps)
        steps += [(first, writers), (group.parts[1], rows)]
        needs[number, number + 1] = needs_of(writers, rows, _read(nodes, group))
        edges.append(_band(tiles, number))
    elif steps:
        steps.append((first, Relation(tiles.grid(1), (), _everything)))
    if not steps:
        return None
    groups, relations = zip(*steps, strict=True)
    return Joined(tuple(groups), tuple(relations), needs, tuple(edges))


def _everything(place: Coordinates) -> Iterator[tuple[Range, ...]]:
    yield ()


def _read(nodes: Mapping[str, Node], group: Group) -> list[Value]:
    """Return the values stored by the GEMM that the rows of a band read."""
    stored, after = group.parts
    values = {v.name: v for name in stored.nodes for v in nodes[name].outputs}
    return [values[name] for name in stored.outputs if name in after.inputs]


# -- tiles of the GEMM -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tiles:
    """How the blocks (or warps of wgmma) that store a GEMM are numbered, and the rows of each."""

    gemm: Gemm
    schedule: GemmSchedule
    parts: int
    bands: int
    columns: int
    tile_rows: int

    @staticmethod
    def of(gemm: Gemm, schedule: GemmSchedule) -> _Tiles:
        tile = schedule.tile
        gemm, found = partitioned(gemm, schedule)
        if isinstance(tile, WgmmaTile):
            bands = ceil(gemm.m / (BLOCK_ROWS * tile.rows)) * (BLOCK_ROWS // WARP_ROWS)
            return _Tiles(gemm, schedule, found.parts, bands, found.n_blocks, 1)
        return _Tiles(gemm, schedule, found.parts, found.m_blocks, found.n_blocks, found.tile_rows)

    def grid(self, parts: int) -> Grid:
        return Grid((parts, self.gemm.batch, self.bands, self.columns), self.tile_rows)

    @property
    def warps(self) -> bool:
        return isinstance(self.schedule.tile, WgmmaTile)

    @property
    def rows(self) -> int:
        """Rows per band."""
        tile = self.schedule.tile
        return WARP_ROWS * tile.rows if isinstance(tile, WgmmaTile) else min(tile.bm, self.gemm.m)

    def runs(self, band: int, start: int, end: int) -> Iterator[Range]:
        """Yield the rows of the GEMM that are rows [start, end) of a band, without those that do not exist."""
        tile, most = self.schedule.tile, self.gemm.m
        if not isinstance(tile, WgmmaTile):
            yield min(band * self.rows + start, most), min(band * self.rows + end, most)
            return
        first = band // 4 * BLOCK_ROWS * tile.rows + band % 4 * WARP_ROWS
        for block in range(start // WARP_ROWS, ceil(end / WARP_ROWS)):
            low, high = max(start, block * WARP_ROWS), min(end, (block + 1) * WARP_ROWS)
            at = first + block * (BLOCK_ROWS - WARP_ROWS)
            yield min(at + low, most), min(at + high, most)

    def spans(self, place: Coordinates) -> Iterator[tuple[int, Range, Range, Range]]:
        _, batch, band, column = place
        each = self.gemm.units.within(self.schedule.tile.bn)
        columns = column * each, min((column + 1) * each, self.gemm.units.width)
        for rows in self.runs(band, 0, self.rows):
            yield batch, rows, columns, (0, self.gemm.k)


# -- steps -------------------------------------------------------------------------------------------------------------


def _of_parts(tiles: _Tiles) -> Needs:
    """Return the needs of a tile's sum: all its parts."""
    grid = tiles.grid(1)
    numbers = np.arange(tiles.parts) * grid.blocks
    return Needs(tuple(numbers + block for block in range(grid.blocks)), tuple(range(grid.blocks)))


def _rows(nodes: Mapping[str, Node], group: Group, tiles: _Tiles, columns: int) -> Relation:
    """Return the relation of the shares of the bands."""
    schedule, view = group.schedule, look_up(nodes, group.parts[1])
    assert isinstance(schedule, BandSchedule), "a band has a schedule"
    band = Band(tiles.rows, tiles.columns, WARP, schedule.share_rows, tiles.warps)
    each, gemm = RowsAfter.of(view, columns).rows_each, tiles.gemm

    def intervals(place: Coordinates) -> Iterator[Range]:
        batch, number, share = place
        end = min((share + 1) * band.share_rows, band.rows)
        for low, high in tiles.runs(number, share * band.share_rows, end):
            yield (batch * gemm.m + low) * each, (batch * gemm.m + high) * each

    return rows_relation(view, Grid((gemm.batch, tiles.bands, band.shares)), intervals)


# -- edges -------------------------------------------------------------------------------------------------------------


def _join(tiles: _Tiles) -> TileEdge:
    """Return the edge by which all parts of a tile post to the tile's semaphore."""
    parts, *dims = tiles.grid(tiles.parts).dims
    bounds = _bounds(4, (None, 1, 2, 3))
    return TileEdge(0, 1, "join", (Grouping(parts, parts), *map(Grouping, dims)), bounds, bounds)


def _band(tiles: _Tiles, producer: int) -> TileEdge:
    """Return the edge by which all tiles of a band's rows post to the band's semaphore, with which each of its shares
    begins.
    """
    _, batch, bands, columns = tiles.grid(1).dims
    semaphores = Grouping(1), Grouping(batch), Grouping(bands), Grouping(columns, columns)
    bounds = _bounds(3, (None, 0, 1, None))
    return TileEdge(producer, producer + 1, "band", semaphores, bounds, bounds)


def _bounds(rank: int, axes: Sequence[int | None]) -> tuple[Bound, ...]:
    """Return for each dimension the semaphore given by a coordinate of the consumer's tile, or the first one."""
    return tuple(Bound(tuple(int(axis == own) for own in range(rank)), 0, 0, 1) for axis in axes)
