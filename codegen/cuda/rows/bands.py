"""Row-wise work after a GEMM, in its launch: the block that stores the last part of a band of rows computes the band.

Blocks (or warps) that have stored their part of a band increment the band's word, and the last one finds the others'
results in the L2 cache. It may get help: some earlier ones poll the word a few times, and if the last one arrives
meanwhile, each takes a share of the band. Taking a share is atomic, and the last one goes through all of them, so
progress depends on no other block, and none waits for one that may not have begun.

The words are 0 when the model is loaded. A run flips the top bit of the band's word, and sets the words of its shares
to that bit, so that nothing needs clearing between runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.abi import barrier, part_of_block
from tilestitch.codegen.cuda.pieces import when
from tilestitch.codegen.cuda.positions import both, index_dtype
from tilestitch.codegen.cuda.rows.rows import RowEmitter
from tilestitch.codegen.cuda.rows.team import Team
from tilestitch.codegen.groups import GroupView
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.access.row_loops import RowLoops
from tilestitch.passes.plan.gemm.rows_after import WARP, Band, RowsAfter
from tilestitch.passes.plan.schedules import BandSchedule, RowSchedule


@dataclass(frozen=True)
class BandWriter:
    """A block or warp that has stored its part of a band.

    `row`: the row of the GEMM for a row of the band; rows from `end` on do not exist. `column`: its number among the
    writers. `polls`: how often it may poll whether the others have arrived. `lane`: of a thread among the writer's.
    `memory`, `word`: start of the band's words. `exact`: all rows of every band exist.
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
class BandRows(RowsAfter):
    """The code of a row-wise group that follows a GEMM in its launch, by their schedules."""

    schedule: BandSchedule
    row_schedule: RowSchedule

    @staticmethod
    def scheduled(view: GroupView, columns: int, schedule: BandSchedule, rows: RowSchedule) -> BandRows:
        after = RowsAfter.of(view, columns)
        return BandRows(after.nodes, after.roles, after.inputs, after.outputs, columns, schedule, rows)

    def work(self, threads: int) -> RowLoops:
        """Return how a block, or a warp, of `threads` threads shares rows."""
        loops = self.walk.scheduled(self.row_schedule)
        assert loops.team * loops.rows == threads, (loops, threads)
        return loops

    def band(self, rows: int, writers: int, threads: int, warps: bool = False) -> Band:
        """Return how the writers of a band share it."""
        return Band(rows, writers, threads, self.schedule.share_rows, warps)

    # -- code --------------------------------------------------------------------------------------------------------

    def finish(self, buffers: Mapping[Value, Any], band: Band, writer: BandWriter) -> None:
        """Emit what a writer does when it has stored its part; all its threads come here."""
        suffix = "_warp" if band.warps else ""
        if band.writers == 1:
            if band.warps:
                T.evaluate(T.call_extern("void", "ts_grid_sync_warp"))
            else:
                barrier()
            self._rows(buffers, band, writer, 0)
            return
        here = T.address_of(writer.memory[writer.word])
        if band.shares == 1:
            with T.If(last_of(writer.memory[writer.word], band.writers, f"ts_grid_last{suffix}")), T.Then():
                self._rows(buffers, band, writer, 0)
            return
        column = T.bind(T.cast(writer.column, "int32"))
        first = T.cast(tirx.EQ(column, 0), "int32")
        arrive = T.call_extern("int32", f"ts_grid_arrive{suffix}", here, first, band.writers, writer.polls)
        found = T.bind(arrive)
        shares = T.Select(found >= 2, band.shares, T.Select(found == 1, 1, 0))
        with T.serial(0, shares) as number:
            share = T.bind((column + number) % band.shares)
            word = T.address_of(writer.memory[writer.word + 1 + share])
            with T.If(T.call_extern("int32", f"ts_grid_take{suffix}", word, here) != 0), T.Then():
                self._rows(buffers, band, writer, share)

    def _rows(self, buffers: Mapping[Value, Any], band: Band, writer: BandWriter, share: Expr) -> None:
        """Compute a share of a band."""
        work, each = self.work(band.threads), self.rows_each
        dtype = index_dtype(self.values)
        across = 0 if work.rows == 1 else T.bind(writer.lane // work.team)
        along = 0 if work.team == 1 else writer.lane if work.rows == 1 else T.bind(writer.lane % work.team)
        team = Team(work.team, work.rows, False, along, across)
        size = band.share_rows * each
        start = T.bind(share * size)
        even = band.rows % band.share_rows == 0
        own = [buffers[v] for v in self.values]
        with T.serial(0, ceil(size / work.rows)) as number:
            base = T.bind(start + number * work.rows)
            some = None if even else base < band.rows * each
            with when(both(some, None if writer.exact else writer.row(base // each) < writer.end)):
                local = T.bind(base + across)
                row = T.bind(writer.row(local // each))
                place = T.bind(T.cast(row, dtype) * each + local % each)
                active = both(
                    None if size % work.rows == 0 else local < start + size,
                    None if even or work.rows == 1 else local < band.rows * each,
                    None if writer.exact or work.rows == 1 else row < writer.end,
                )
                if active is not None:
                    # A thread without a row recomputes the band's first one without storing it.
                    place = T.bind(T.Select(active, place, T.cast(writer.row(0), dtype) * each))
                RowEmitter(work, self.nodes, self.roles, self.inputs, self.outputs, own, dtype).row(team, place, active)
                if work.team > WARP:
                    # The next iteration writes the shared memory that slower threads may still read.
                    barrier()


def last_of(counter: Any, count: int, function: str = "ts_grid_last") -> Expr:
    """Return whether the block (or warp, by another function) is the last of `count` that arrive at a counter."""
    scope = part_of_block()
    if function == "ts_grid_last" and scope is not None:
        part = T.call_extern("int32", f"{function}_part", T.address_of(counter), count, scope.threads)
        return T.bind(part) != 0
    return T.call_extern("int32", function, T.address_of(counter), count) != 0
