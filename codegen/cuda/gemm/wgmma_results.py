"""Output of a warpgroup's sums: a few rows at a time through shared memory, to the epilogue or to partial sums.

A warp has 16 rows of every 64. It writes 8 rows x 64 columns to shared memory of its own and reads them back as vectors
along the columns: residuals are read and results are written in whole lines of memory, up to 16 bytes a thread. Where
neighbouring rows are contiguous in memory instead, it writes 16 rows x 16 columns and reads them back along the rows.

Where the reduction is in parts, warps leave partial sums in temporary memory; the last one with the same rows of a tile
adds all parts in order, and runs the epilogue. Warps do not wait for each other. Row-wise work after the GEMM is done
by warps, too: their rows are a band, shared by the warps with the same rows of the tiles beside.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.abi import CountersArg, Parameter, TemporaryArg
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm
from tilestitch.codegen.cuda.gemm.partition import COUNTER_BYTES, kept_at, results_lie_along_rows
from tilestitch.codegen.cuda.pieces import named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.rows.bands import BandWriter, last_of
from tilestitch.codegen.cuda.surroundings import Anchored, Surroundings
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.access.vectors import lanes_of
from tilestitch.passes.plan.gemm.partition import Partition
from tilestitch.passes.plan.gemm.rows_after import WARP_ROWS, Band

WARP = 32
ROWS = 8
COLUMNS = 64
STRIDE = COLUMNS + 8
"""Row stride of sums, so that neither writes nor reads cause bank conflicts."""
PLANE = COLUMNS // 2 + 4
"""Offset from the first to the second quads of vectors of eight sums, so that lanes reading quads use different
banks.
"""
TURNED = WARP_ROWS
"""Columns written at a time if rows are contiguous."""
TURNED_STRIDE = WARP_ROWS + 4
"""Column stride of sums in that case."""
CHUNK_BYTES = 4 * ROWS * STRIDE
BLOCK_ROWS = 64
"""Offset from a warp's 16 rows to those of the next wgmma."""
QUAD = 4
MOST_SUMS = 8
"""Most neighbouring sums that a thread has at a time."""


@dataclass(frozen=True)
class Results:
    """Destination of a GEMM's sums. `tile`: the extents of a tile, or of a cluster's tiles together. `blocks`: number
    of 64-row blocks of a tile that a warpgroup has, 16 rows per warp each.
    """

    group: Anchored
    gemm: IndexedGemm
    partition: Partition
    tile: tuple[int, int]
    blocks: int

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the launch reads besides the operands."""
        return self.group.read_after()

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.group.outputs

    @cached_property
    def sums(self) -> Parameter | None:
        """Partial sums, if the reduction is in parts."""
        if self.partition.parts == 1:
            return None
        size = self.partition.parts * self.gemm.elements
        return Parameter(TemporaryArg("sums", 4 * size), self.gemm.acc_dtype, size)

    @cached_property
    def counters(self) -> Parameter | None:
        """Number of finished parts for a warp's rows of each tile; followed by the words of the bands of rows."""
        batch, (bands, _) = self.gemm.batch, self._bands
        count = self._parts_counted + batch * bands * (self.band.words if self.band is not None else 0)
        return Parameter(CountersArg(COUNTER_BYTES * count), "uint32", count) if count else None

    @property
    def _parts_counted(self) -> int:
        bands, n_tiles = self._bands
        return 0 if self.sums is None else self.gemm.batch * n_tiles * bands

    @cached_property
    def band(self) -> Band | None:
        """A warp's rows, and how they are shared with the warps of the same rows in adjacent tiles."""
        after = self.group.after
        return after.band(WARP_ROWS * self.blocks, self._bands[1], WARP, warps=True) if after is not None else None

    @property
    def _bands(self) -> tuple[int, int]:
        """Number of 16-row bands, and of tiles along the columns."""
        bm, bn = self.tile
        return -(-self.gemm.m // bm) * bm // WARP_ROWS, -(-self.gemm.n // bn)

    @cached_property
    def lanes(self) -> int:
        """Neighbouring units whose results a thread stores at a time."""
        if self.along_rows:
            return 1
        units = self.gemm.units
        most = (QUAD if self.sums else MOST_SUMS) // units.gates if units.dense else 1
        lanes = min(lanes_of([*self.inputs, *self.outputs]), max(1, most))
        while units.width % lanes:
            lanes //= 2
        return lanes

    @cached_property
    def along_rows(self) -> bool:
        """Whether neighbouring lanes have neighbouring rows, which lie together in the outputs."""
        return results_lie_along_rows(self.group, self.gemm)

    @property
    def _together(self) -> int:
        """Sums of these units."""
        return self.lanes * self.gemm.units.gates

    def store(
        self, around: Surroundings, memory: Any, start: Expr, lane: Expr, acc: Any,
        place: tuple[Expr, Expr, Expr, Expr], last: Expr,
    ) -> None:  # fmt: skip
        """Output a warp's sums.

        start: the word in `memory` where the warp may store 8 x 64 of them. acc: registers as `wgmma.multiply`
        describes them, block after block. place: part, batch, and the row and column of the warp's first result. last:
        whether the warp has nothing to do afterwards.
        """
        part, batch, first_m, first_n = place
        shared = T.decl_buffer((memory.shape[0] // 4,), self.gemm.acc_dtype, data=memory.data, scope="shared.dyn")
        with self._pieces(unrolled) as (block, down, across):
            _sync()
            self._write(shared, start, lane, acc, block, down, across)
            _sync()
            m, n = named(first_m + block * BLOCK_ROWS + down), named(first_n + across)
            with self._vectors(around, lane, m, n) as (row, column, m, n):
                totals = self._read(shared, start, row, column)
                if self.sums is None:
                    self._finish(around, batch, m, n, totals)
                else:
                    self._keep(around, part, batch, m, n, totals)
        complete = None if self.sums is None else self._is_last_part(around, batch, first_m, first_n)
        with when(complete):
            if complete is not None:
                self._join(around, lane, batch, first_m, first_n)
            if self.band is not None:
                self._after(around, self.band, lane, batch, first_m, first_n, last)

    def _after(
        self, around: Surroundings, band: Band, lane: Expr, batch: Expr, first_m: Expr, first_n: Expr, last: Expr
    ) -> None:  # fmt: skip
        """Emit the row-wise work after the GEMM for a warp's rows."""
        assert self.group.after is not None
        (bands, n_tiles), gemm = self._bands, self.gemm
        column = named(first_n // self.tile[1])
        waits = both(last, below(column, band.shares, n_tiles))
        most = self.group.after.schedule.polls
        polls = most if waits is None else T.Select(waits, most, 0)
        exact, end = gemm.m % self.tile[0] == 0, named((batch + 1) * gemm.m)
        first = named(batch * gemm.m + first_m)
        word = named(self._parts_counted + (batch * bands + first_m // WARP_ROWS) * band.words)

        def row(number: Expr) -> Expr:
            return first + (number if self.blocks == 1 else number // WARP_ROWS * BLOCK_ROWS + number % WARP_ROWS)

        writer = BandWriter(row, end, column, polls, lane, around.counters, word, exact)
        with when(below(first_m, gemm.m, bands * WARP_ROWS)):
            self.group.after.finish(around.after, band, writer)

    def _is_last_part(self, around: Surroundings, batch: Expr, first_m: Expr, first_n: Expr) -> Expr:
        """Return whether this warp is the last one with a part of its results."""
        bands, n_tiles = self._bands
        number = named((batch * n_tiles + first_n // self.tile[1]) * bands + first_m // WARP_ROWS)
        return last_of(around.counters[number], self.partition.parts, "ts_grid_last_warp")

    def _join(self, around: Surroundings, lane: Expr, batch: Expr, first_m: Expr, first_n: Expr) -> None:
        """Add all parts of a warp's results."""
        parts = self.partition.parts
        with self._pieces(repeated) as (block, down, across):
            m, n = named(first_m + block * BLOCK_ROWS + down), named(first_n + across)
            with self._vectors(around, lane, m, n) as (_, _, m, n):
                totals = registers(self._together, self.gemm.acc_dtype)
                with unrolled(self._together) as i:
                    T.buffer_store(totals, zero(self.gemm.acc_dtype), [i])
                with repeated(parts) as part:
                    kept = self._kept(around, part, batch, m, n)
                    with unrolled(self._together) as i:
                        T.buffer_store(totals, totals[i] + kept[i], [i])
                self._finish(around, batch, m, n, totals)

    @property
    def _piece(self) -> tuple[int, int]:
        """Rows and columns that a warp writes to shared memory at a time."""
        return (WARP_ROWS, TURNED) if self.along_rows else (ROWS, COLUMNS)

    @contextmanager
    def _pieces(self, loop: Callable[[int], Any]) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Iterate over a warp's sums by pieces: the number of the 64 rows, and the first row and column of the
        piece.
        """
        rows, columns = self._piece
        with loop(self.blocks) as block, loop(self.tile[1] // columns) as across, loop(WARP_ROWS // rows) as down:
            yield block, down * rows, across * columns

    def _write(
        self, shared: Any, start: Expr, lane: Expr, acc: Any, block: Expr, first_row: Expr, first_column: Expr
    ) -> None:  # fmt: skip
        """Write a piece to shared memory. Of every 8 columns a lane has two of a row, and two of the row 8 below."""
        rows, columns = self._piece
        first = block * (self.tile[1] // 2) + first_column // 2 + first_row // ROWS * 2
        row, column = named(lane // 4), named(lane % 4 * 2)
        with unrolled(columns // 8) as j, unrolled(rows // ROWS) as half, unrolled(2) as e:
            at = self._at(row + half * ROWS, j * 8, column) + (TURNED_STRIDE if self.along_rows else 1) * e
            T.buffer_store(shared, acc[first + j * 4 + half * 2 + e], [start + at])

    def _at(self, row: Expr, eight: Expr, column: Expr) -> Expr:
        """Return the position of a sum in a piece: column `column` of the eight from `eight` on."""
        if self.along_rows:
            return (eight + column) * TURNED_STRIDE + row
        if self._together == MOST_SUMS:
            return row * STRIDE + column // QUAD * PLANE + eight // 2 + column % QUAD
        return row * STRIDE + eight + column

    def _read(self, shared: Any, start: Expr, row: Expr, column: Expr) -> Any:
        """Return neighbouring sums of a piece, from a column on."""
        if self.along_rows or self._together != MOST_SUMS:
            return self._load(shared, named(start + self._at(row, column, 0)))
        totals = registers(MOST_SUMS, self.gemm.acc_dtype)
        at = named(start + self._at(row, column, 0))
        for quad in range(0, MOST_SUMS, QUAD):
            place = T.ramp(named(at // QUAD + quad // QUAD * (PLANE // QUAD)) * QUAD, 1, QUAD)
            T.buffer_store(totals, shared[place], [T.ramp(quad, 1, QUAD)])
        return totals

    @contextmanager
    def _vectors(
        self, around: Surroundings, lane: Expr, first_m: Expr, first_n: Expr
    ) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """Iterate over a thread's vectors of units in a piece: row and column in it, overall row and unit."""
        gemm, lanes, units = self.gemm, self.lanes, self.gemm.units
        bm, bn = self.tile
        rows, columns = self._piece
        across = units.within(columns) // lanes
        with repeated(rows * across // WARP) as round_:
            if self.along_rows:
                # The halves of a warp have columns four apart, which are in other banks.
                column = round_ // QUAD * (2 * QUAD) + round_ % QUAD + lane // rows * QUAD
                row, vector = named(lane % rows), named(column)
            else:
                row, vector = _place(round_, lane, across)
            m = named(around.wide(first_m + row))
            number = named(around.wide(units.first(first_n) // lanes + vector))
            n = number * lanes
            exists = both(
                below(m, gemm.m, -(-gemm.m // bm) * bm),
                below(n, units.width, units.within(-(-gemm.n // bn) * bn)),
                gemm.there(m),
            )
            with when(exists):
                around.evaluator.assume(m, 0, gemm.m)
                around.evaluator.assume(number, 0, units.width // lanes)
                yield row, units.column(vector * lanes), m, n

    def _finish(self, around: Surroundings, batch: Expr, m: Expr, n: Expr, totals: Any) -> None:
        places = [self.gemm.place(batch, m, n + i) for i in range(self.lanes)]
        around.finish_vector(places, [totals[i] for i in range(self._together)])

    def _load(self, buffer: Any, at: Expr) -> Any:
        """Load neighbouring sums to registers."""
        count = self._together
        totals = registers(count, self.gemm.acc_dtype)
        if count % QUAD:
            with unrolled(count) as i:
                T.buffer_store(totals, buffer[at + i], [i])
            return totals
        for quad in range(0, count, QUAD):
            T.buffer_store(totals, buffer[_quad(at, quad)], [T.ramp(quad, 1, QUAD)])
        return totals

    def _keep(self, around: Surroundings, part: Expr, batch: Expr, m: Expr, n: Expr, totals: Any) -> None:
        at, count = named(self._sum_at(part, batch, m, n)), self._together
        if count % QUAD:
            with unrolled(count) as i:
                T.buffer_store(around.extra, totals[i], [at + i])
            return
        for quad in range(0, count, QUAD):
            T.buffer_store(around.extra, totals[T.ramp(quad, 1, QUAD)], [_quad(at, quad)])

    def _kept(self, around: Surroundings, part: Expr, batch: Expr, m: Expr, n: Expr) -> Any:
        return self._load(around.extra, self._sum_at(part, batch, m, n))

    def _sum_at(self, part: Expr, batch: Expr, m: Expr, n: Expr) -> Expr:
        gemm = self.gemm
        return part * gemm.elements + kept_at(gemm, batch, m, gemm.units.column(n), self.along_rows)


def _place(round_: Expr, lane: Expr, across: int) -> tuple[Expr, Expr]:
    """Return the row, and the number in it, of a lane's vector in a round, with `across` vectors per row."""
    if across % WARP == 0:
        return named(round_ * WARP // across), named(round_ * WARP % across + lane)
    if WARP % across == 0:
        return named(round_ * (WARP // across) + lane // across), named(lane % across)
    number = named(round_ * WARP + lane)
    return named(number // across), named(number % across)


def _quad(at: Expr, quad: int) -> Expr:
    """Return four neighbours' positions, as a multiple of four, so that TVM recognises the alignment and emits one
    access.
    """
    return T.ramp(named(at // QUAD + quad // QUAD) * QUAD, 1, QUAD)


def _sync() -> None:
    T.evaluate(T.call_extern("void", "ts_sm90_sync_warp"))
