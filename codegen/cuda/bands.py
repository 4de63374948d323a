"""Row-wise work behind a product, in its launch: whoever stores the last of a band of rows computes the band.

Blocks (or warps) that have stored their part of a band count up the band's word, and the last one finds what the others
have stored in the L2 cache. It need not be alone: some that came before look at the word a few times more, and if the
last one comes meanwhile, each takes a share of the band. Taking a share is atomic, and the last one goes through all of
them, so nobody is relied upon, and nobody waits for a block that may not have begun.

The words are 0 when the model is loaded. A run flips the top bit of the band's word, and sets the words of its shares
to that bit, so that nothing needs clearing between runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, storage_bits
from tilestitch.codegen.compute.indexing import index_dtype
from tilestitch.codegen.groups import GroupView, roles_in
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.fusion.spread import WARP
from tilestitch.passes.plan.roles import Part, Roles
from tilestitch.passes.plan.row_loops import REGISTER_ELEMENTS, RowLoops, row_loops

from .abi import barrier
from .pieces import when
from .product import both
from .rows import RowEmitter
from .team import Team

POLLS = 12
"""How often a block looks whether the last one of its band has come: for about as long as two launches take."""
HAND_OVER_CYCLES = 1500
"""From the last store of a band until those that compute it have read the first of it: three trips to the L2 cache."""
ROW_CYCLES = 500
REDUCTION_CYCLES = 150
"""Of a row: reading it from the L2 cache and storing results; and of each reduction. Planning figures."""
L2_BYTES_PER_CYCLE = 48


@dataclass(frozen=True)
class Band:
    """`rows` rows of a product that so many writers store: blocks, or `warps`, of `threads` threads. They share the
    band if they can, `share_rows` each.
    """

    rows: int
    writers: int
    threads: int
    share_rows: int
    warps: bool = False

    @property
    def shares(self) -> int:
        return ceil(self.rows / self.share_rows)

    @property
    def words(self) -> int:
        """Of the launch's own memory: who has come, and who has each share, if there are several."""
        return 0 if self.writers == 1 else 1 if self.shares == 1 else 1 + self.shares


@dataclass(frozen=True)
class Turn:
    """Where a writer stands that has stored its part of a band.

    row: the row of the product that a row of the band is; rows from `end` on are not there. column: its number among
    the writers. polls: how often it may look whether the others have come. lane: of a thread among the writer's.
    memory, word: where the words of the band begin. exact: all rows of every band are there.
    """

    row: Callable[[Expr], Expr]
    end: Expr
    column: Expr
    polls: Expr
    lane: Expr
    memory: Any
    word: Expr
    exact: bool


@dataclass(frozen=True)
class RowsBehind:
    """A row-wise group that reads what a product stores; a row of the product, `columns` long, has whole rows of it."""

    nodes: tuple[Node, ...]
    roles: Roles
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    columns: int

    @staticmethod
    def of(view: GroupView, columns: int) -> RowsBehind:
        """All results of a legal group have elements."""
        return RowsBehind(view.nodes, roles_in(view), view.inputs, view.outputs, columns)

    @property
    def values(self) -> tuple[Value, ...]:
        """What it reads and writes in memory."""
        return (*self.inputs, *self.outputs)

    @cached_property
    def walk(self) -> RowLoops:
        """The loops, for one thread a row."""
        return row_loops(self.nodes, self.roles, self.inputs, self.outputs)

    @property
    def rows_each(self) -> int:
        """Rows for each row of the product."""
        return self.columns // prod(self.walk.line_extents)

    def work(self, threads: int) -> RowLoops:
        """How a block, or a warp, of so many threads shares rows: as few threads a row as can keep it in registers."""
        vectors, length = self.walk.vectors, prod(self.walk.line_extents)
        team = min(WARP, threads, 1 << max(0, vectors - 1).bit_length())
        while team >= WARP and team * REGISTER_ELEMENTS < length and threads % (2 * team) == 0:
            team *= 2
        return replace(self.walk, team=team, rows=threads // team)

    def band(self, rows: int, writers: int, threads: int, warps: bool = False) -> Band:
        """How the writers of a band share it: as evenly as whole turns of their threads allow."""
        turn = max(1, self.work(threads).rows // self.rows_each)
        return Band(rows, writers, threads, ceil(ceil(rows / writers) / turn) * turn, warps)

    def cycles(self, band: Band) -> float:
        """Estimated cycles from the last store of a band until its last row is done."""
        work = self.work(band.threads)
        reductions = sum(part is Part.REDUCTION for part in self.roles.parts.values())
        turns = ceil(band.share_rows * self.rows_each / work.rows)
        full = [v for v in self.values if v.tensor_type.num_elements >= work.row_count * prod(work.line_extents)]
        moved = band.share_rows * self.columns * sum(storage_bits(v.dtype) for v in full) / 8
        longer = ceil(work.steps * work.lanes / REGISTER_ELEMENTS)
        serial = turns * longer * (ROW_CYCLES + reductions * REDUCTION_CYCLES)
        return HAND_OVER_CYCLES + max(serial, moved / L2_BYTES_PER_CYCLE)

    # -- code --------------------------------------------------------------------------------------------------------

    def finish(self, buffers: Mapping[Value, Any], band: Band, turn: Turn) -> None:
        """What a writer does when it has stored its part; all its threads come here."""
        suffix = "_warp" if band.warps else ""
        if band.writers == 1:
            if band.warps:
                T.evaluate(T.call_extern("void", "ts_grid_sync_warp"))
            else:
                barrier()
            self._rows(buffers, band, turn, 0)
            return
        here = T.address_of(turn.memory[turn.word])
        if band.shares == 1:
            with T.If(last_of(turn.memory[turn.word], band.writers, f"ts_grid_last{suffix}")), T.Then():
                self._rows(buffers, band, turn, 0)
            return
        column = T.bind(T.cast(turn.column, "int32"))
        first = T.cast(tirx.EQ(column, 0), "int32")
        arrive = T.call_extern("int32", f"ts_grid_arrive{suffix}", here, first, band.writers, turn.polls)
        found = T.bind(arrive)
        shares = T.Select(found >= 2, band.shares, T.Select(found == 1, 1, 0))
        with T.serial(0, shares) as number:
            share = T.bind((column + number) % band.shares)
            word = T.address_of(turn.memory[turn.word + 1 + share])
            with T.If(T.call_extern("int32", f"ts_grid_take{suffix}", word, here) != 0), T.Then():
                self._rows(buffers, band, turn, share)

    def _rows(self, buffers: Mapping[Value, Any], band: Band, turn: Turn, share: Expr) -> None:
        """Compute what belongs to a share of a band."""
        work, each = self.work(band.threads), self.rows_each
        dtype = index_dtype(self.values)
        across = 0 if work.rows == 1 else T.bind(turn.lane // work.team)
        along = 0 if work.team == 1 else turn.lane if work.rows == 1 else T.bind(turn.lane % work.team)
        team = Team(work.team, work.rows, False, along, across)
        size = band.share_rows * each
        start = T.bind(share * size)
        even = band.rows % band.share_rows == 0
        own = [buffers[v] for v in self.values]
        with T.serial(0, ceil(size / work.rows)) as number:
            base = T.bind(start + number * work.rows)
            some = None if even else base < band.rows * each
            with when(both(some, None if turn.exact else turn.row(base // each) < turn.end)):
                local = T.bind(base + across)
                row = T.bind(turn.row(local // each))
                place = T.bind(T.cast(row, dtype) * each + local % each)
                active = both(
                    None if size % work.rows == 0 else local < start + size,
                    None if even or work.rows == 1 else local < band.rows * each,
                    None if turn.exact or work.rows == 1 else row < turn.end,
                )
                if active is not None:
                    # A thread that has no row computes the band's first one, too, and does not store it.
                    place = T.bind(T.Select(active, place, T.cast(turn.row(0), dtype) * each))
                RowEmitter(work, self.nodes, self.roles, self.inputs, self.outputs, own, dtype).row(team, place, active)
                if work.team > WARP:
                    # The next turn writes the shared memory that slower threads may still read.
                    barrier()


def last_of(counter: Any, count: int, function: str = "ts_grid_last") -> Expr:
    """Whether the block (or warp, by another function) is the last of `count` that come here with a counter."""
    return T.call_extern("int32", function, T.address_of(counter), count) != 0
