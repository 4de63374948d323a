"""Waits of blocks before a tile, and posts after it.

Before a tile, the threads of its block poll a semaphore each until all posts have arrived: an acquire, followed by a
barrier of the block. After a tile, a barrier of the block, and one thread's release. Semaphores keep counting from run
to run, and are compared by their difference from the start of the run, which is exact also when they wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import ravel, unravel
from tilestitch.codegen.cuda.gemm.partition import locate
from tilestitch.codegen.cuda.pieces import named, repeated, when
from tilestitch.codegen.cuda.positions import below
from tilestitch.passes.plan.gemm.partition import Partition
from tilestitch.passes.plan.sync.edges import Bound, Grouping, TileEdge
from tilestitch.passes.plan.sync.grid import Grid


def wait_for(
    edge: TileEdge, place: Sequence[Expr], lane: Expr, threads: int, memory: Any, start: int, runs: Expr
) -> None:
    """Let the `threads` of a block poll one semaphore each, and the next ones if there are more. A barrier of the block
    must follow. `start`: the word of `memory` with the edge's first semaphore. `runs`: number of finished runs.
    """
    firsts, extents = [], []
    for low, high, count in zip(edge.first, edge.last, edge.counts, strict=True):
        first, last = _inside(low, place, count), _inside(high, place, count)
        firsts.append(first)
        known = isinstance(first, int) and isinstance(last, int)
        extents.append(max(0, last - first + 1) if known else named(T.max(last - first + 1, 0)))
    total, most = named(_product(extents)), _most(edge)
    rounds = -(-most // threads) if isinstance(total, int) else (total + (threads - 1)) // threads
    with repeated(1 if most <= threads else rounds) as turn:
        number = named(turn * threads + lane)
        counted = isinstance(total, int) and isinstance(rounds, int)
        there = below(number, total, rounds * threads) if counted else number < total
        with when(there):
            at = [named(f + own) for f, own in zip(firsts, _unraveled(number, extents), strict=True)]
            word = T.address_of(memory[named(ravel(at, edge.counts) + start)])
            T.evaluate(T.call_extern("void", "ts_ticket_await", word, runs, _posts(edge.semaphores, at)))


def post(groupings: Sequence[Grouping], place: Sequence[Expr], memory: Any, start: int, *, alone: bool = False) -> None:
    """Post that the block has stored its tile. `start`: the word of `memory` with the first semaphore. `alone`: one
    thread posts, after synchronising with the others.
    """
    counts = tuple(grouping.count for grouping in groupings)
    own = ravel([0 if g.count == 1 else g.of(at) for g, at in zip(groupings, place, strict=True)], counts)
    T.evaluate(
        T.call_extern("void", f"ts_ticket_post{'_one' if alone else ''}", T.address_of(memory[named(own + start)]))
    )


def located(grid: Grid, block: Expr) -> tuple[Expr, ...]:
    """Return the tile of a block, as `Grid.place` defines it."""
    if not grid.tile_rows:
        *lead, last = unravel(block, grid.dims)
        last = grid.dims[-1] - 1 - last if grid.falling else last
        return tuple(named(at) for at in (*lead, last))
    parts, batch, rows, columns = grid.dims
    return locate(Partition(batch, rows, columns, parts, 1, grid.tile_rows), block)


def _inside(bound: Bound, place: Sequence[Expr], count: int) -> Expr:
    """Return a bound, clamped to a dimension of `count` semaphores. Negative values become 0 first, so that nothing
    negative is divided and no floor is needed.
    """
    if bound.constant is not None:
        return min(max(bound.constant, 0), count - 1)
    total = T.max(bound.dividend(place), 0)
    return named(T.min(tirx.truncdiv(total, tirx.IntImm("int32", bound.divisor)), count - 1))


def _product(extents: Sequence[Expr]) -> Expr:
    total: Expr = 1
    for extent in extents:
        total = extent if isinstance(total, int) and total == 1 else total * extent
    return total


def _most(edge: TileEdge) -> int:
    """Return the most semaphores that a tile waits for, as far as the bounds' constants tell."""
    most = 1
    for low, high, count in zip(edge.first, edge.last, edge.counts, strict=True):
        first, last = low.constant, high.constant
        most *= count if first is None or last is None else min(last, count - 1) - max(0, first) + 1
    return most


def _unraveled(number: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """Return the index of a number in extents that may be known only at run time."""
    index: list[Expr] = []
    for extent in reversed(extents):
        if isinstance(extent, int) and extent == 1:
            index.insert(0, 0)
            continue
        index.insert(0, number % extent)
        number = named(number // extent)
    return index


def _posts(groupings: Sequence[Grouping], at: Sequence[Expr]) -> Expr:
    """Return how many posts a semaphore gets in a run."""
    posts: Expr = 1
    for grouping, own in zip(groupings, at, strict=True):
        usual, last = grouping.posts(0), grouping.posts(grouping.count - 1)
        posts = posts * (usual if usual == last else T.Select(tirx.EQ(own, grouping.count - 1), last, usual))
    return posts
