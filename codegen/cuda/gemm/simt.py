"""GEMMs on the ordinary arithmetic units: any dtype, any shape, any layout; fp32 is fp32.

A block computes a tile of the result. It walks along k in steps of `bk`: both operands' pieces are double-buffered in
shared memory as [k][row], and the next piece is fetched to registers while this one is multiplied. A thread holds tm x
tn sums, as groups of four neighbouring rows and columns. Small tiles are multiplied by several slices of threads, each
with its own share of every step's k, so that few tiles still give an SM enough warps; their sums are added at the end.
Results leave through shared memory, one row of every thread at a time: stores are coalesced, and the code of the
epilogue appears tm times rather than tm * tn times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage, storage_bits, storage_dtype, widen
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import CudaLaunch, Thread, barrier, shared_buffer
from tilestitch.codegen.cuda.before import begin, is_early
from tilestitch.codegen.cuda.gemm.codes import Waiting, Weights
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm, Operand, simplified, step_of
from tilestitch.codegen.cuda.gemm.partition import Sink, launch, locate
from tilestitch.codegen.cuda.pieces import named, registers, repeated, run, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Anchored, Surroundings
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.gemm.partition import Partition
from tilestitch.passes.plan.gemm.tiles import QUAD, WARP, SimtTile

BANKS_OF_QUADS = WARP // QUAD
"""Quads of neighbouring words in a wavefront of shared memory."""
VECTOR_DTYPES = frozenset({"float32", "int32", "uint32", "float64"})
"""Storage dtypes that CUDA has vector types for."""


def emit_simt(group: Anchored, gemm: IndexedGemm, tile: SimtTile, partition: Partition) -> tuple[CudaLaunch, ...]:
    """Return the launches for a given tile and partition."""

    def kernel(around: Surroundings, thread: Thread, sink: Sink, block: Expr) -> None:
        _Block(around, gemm, tile, partition, thread.thread[0], sink).run(block)

    return launch(group, gemm, "gemm_simt", partition, (tile.bm, tile.bn), tile.threads, kernel)


@dataclass(frozen=True)
class _Fetch:
    """How a block's threads bring one operand's piece [rows, bk] from memory to shared memory."""

    operand: Operand
    rows: int
    bk: int
    threads: int
    acc_dtype: str

    @property
    def vector(self) -> int:
        width = self.operand.vector() if storage_dtype(self.operand.dtype) in VECTOR_DTYPES else 1
        width = width if self.operand.codes is None else QUAD
        while self.rows * self.bk % (self.threads * width) or self._along % width:
            width //= 2
        return width

    @property
    def _along(self) -> int:
        return self.bk if self.operand.contiguous == "k" else self.rows

    @property
    def rounds(self) -> int:
        return self.rows * self.bk // (self.threads * self.vector)

    @property
    def dtype(self) -> str:
        """Dtype of the registers in between: as in memory if elements are read in vectors, else that of the sum."""
        return storage_dtype(self.operand.dtype) if self.vector > 1 else self.acc_dtype

    def place(self, thread: Expr, round_: Expr) -> tuple[Expr, Expr]:
        """Return row and k, within the piece, of a thread's first element in a round."""
        number = thread + round_ * self.threads
        vectors, blocks = self._along // self.vector, self._along // self.vector // BANKS_OF_QUADS
        if self.operand.contiguous == "k" and self.vector == QUAD and blocks > 1:
            # A warp writes as many quads of each of four rows as are in different banks.
            along = number % BANKS_OF_QUADS + number // WARP % blocks * BANKS_OF_QUADS
            return number // BANKS_OF_QUADS % QUAD + number // (WARP * blocks) * QUAD, along * QUAD
        along, across = number % vectors * self.vector, number // vectors
        return (across, along) if self.operand.contiguous == "k" else (along, across)

    def lane(self, row: Expr, k: Expr, lane: Expr) -> tuple[Expr, Expr]:
        return (row, k + lane) if self.operand.contiguous == "k" else (row + lane, k)


class _Block:
    """Emitter of one block's code: its methods share indices and buffers."""

    def __init__(
        self, around: Surroundings, gemm: IndexedGemm, tile: SimtTile, partition: Partition, thread: Expr, sink: Sink
    ) -> None:
        self.around, self.gemm, self.tile, self.partition, self.sink = around, gemm, tile, partition, sink
        self.thread = thread
        acc = gemm.acc_dtype
        self.fetches = (
            _Fetch(gemm.a, tile.bm, tile.bk, tile.threads, acc),
            _Fetch(gemm.b, tile.bn, tile.bk, tile.threads, acc),
        )
        self.shared = shared_buffer(tile.shared_elements, acc)
        self.acc = registers(tile.tm * tile.tn, acc)
        self.coded: list[Waiting | None] = [None, None]
        self.waiting: list[Any] = [
            registers(fetch.rounds * fetch.vector, fetch.dtype) if fetch.operand.codes is None else None
            for fetch in self.fetches
        ]
        self.slice = named(thread // tile.slice_threads) if tile.slices > 1 else 0
        in_slice = thread % tile.slice_threads
        self.row = named(in_slice // (tile.bn // tile.tn))
        self.column = named(in_slice % (tile.bn // tile.tn))

    def run(self, block: Expr) -> None:
        tile, steps = self.tile, self.partition.steps
        part, self.batch, m_block, n_block = locate(self.partition, block)
        self.first_row = (named(m_block * tile.bm), named(n_block * tile.bn))
        self.first_step = named(part * steps)
        with unrolled(tile.tm * tile.tn) as i:
            T.buffer_store(self.acc, zero(self.gemm.acc_dtype), [i])
        early = [side for side, fetch in enumerate(self.fetches) if steps and is_early(fetch.operand)]
        self._fetch(0, early)
        begin()
        self.coded = [_codes(self.around, fetch, self.batch) for fetch in self.fetches]
        if steps:
            self._fetch(0, [side for side in (0, 1) if side not in early])
            self._keep(0)
            barrier()
        if is_open(steps) or steps > 1:
            with repeated(steps - 1) as step:
                self._fetch(step + 1)
                self._multiply(step % 2)
                self._keep((step + 1) % 2)
                barrier()
        if steps:
            self._multiply(integer((steps - 1) % 2, "int32") if is_open(steps) else (steps - 1) % 2)
        self._finish()

    # -- operands ----------------------------------------------------------------------------------------------------

    def _fetch(self, step: Expr, sides: Sequence[int] = (0, 1)) -> None:
        """Fetch the operands' pieces of a step from memory to registers."""
        if not sides:
            return
        number = named(self.first_step + step)
        for side in sides:
            fetch = self.fetches[side]
            with unrolled(fetch.rounds) as round_:
                self._fetch_vector(side, fetch, round_, number)

    def _fetch_vector(self, side: int, fetch: _Fetch, round_: Expr, number: Expr) -> None:
        gemm, operand, waiting, width = self.gemm, fetch.operand, self.waiting[side], fetch.vector
        local_row, local_k = fetch.place(self.thread, round_)
        row = named(self.first_row[side] + local_row)
        k = step_of(self.around, number, self.tile.bk, named(local_k))
        reached = self.partition.parts * self.partition.steps * self.tile.bk
        whole = -(-operand.rows // fetch.rows) * fetch.rows
        exists = both(below(row, operand.rows, whole), below(k, gemm.k, reached))
        there = both(exists, simplified(self.around, operand.inside(self.batch, row, k)))
        coded, at = self.coded[side], round_ * width
        if coded is not None:
            coded.fetch(round_, row, k, there)
            return
        if there is not None:
            with unrolled(width) as lane:
                T.buffer_store(waiting, zero(fetch.dtype), [at + lane])
        with when(there):
            if width > 1:
                buffer, position = operand.cell(self.around, self.batch, row, k)
                # As a multiple of the width, so that TVM recognises the alignment and emits one access.
                start = named(position // width) * width
                T.buffer_store(waiting, buffer[T.ramp(start, 1, width)], [T.ramp(at, 1, width)])
            else:
                value = operand.element(self.around, self.batch, row, k, gemm.acc_dtype)
                T.buffer_store(waiting, value, [at])

    def _keep(self, stage: Expr) -> None:
        """Store both operands' pieces from registers to a stage of shared memory."""
        for side, fetch in enumerate(self.fetches):
            with unrolled(fetch.rounds) as round_:
                local_row, local_k = fetch.place(self.thread, round_)
                coded = self.coded[side]
                values = self.waiting[side] if coded is None else coded.values(round_)
                with unrolled(fetch.vector) as lane:
                    value = values[round_ * fetch.vector + lane] if coded is None else values[lane]
                    if fetch.vector > 1 and coded is None:
                        value = widen(from_storage(value, fetch.operand.dtype), fetch.operand.dtype, fetch.acc_dtype)
                    row, k = fetch.lane(local_row, local_k, lane)
                    T.buffer_store(self.shared, value, [self._shared_at(side, stage, k) + row])

    def _shared_at(self, side: int, stage: Expr, k: Expr) -> Expr:
        tile = self.tile
        offset, extent = (tile.piece(tile.bm), tile.bn) if side else (0, tile.bm)
        return stage * tile.stage + offset + tile.place(extent, k)

    # -- sums --------------------------------------------------------------------------------------------------------

    def _multiply(self, stage: Expr) -> None:
        tile, acc = self.tile, self.acc
        a, b = registers(tile.tm, self.gemm.acc_dtype), registers(tile.tn, self.gemm.acc_dtype)
        stage = named(stage)
        each = tile.bk // tile.slices
        with unrolled(each) as own:
            k = self.slice * each + own
            self._load_quads(a, self._shared_at(0, stage, k), self.row, tile.tm, tile.bm)
            self._load_quads(b, self._shared_at(1, stage, k), self.column, tile.tn, tile.bn)
            with unrolled(tile.tm) as i, unrolled(tile.tn) as j:
                at = i * tile.tn + j
                T.buffer_store(acc, acc[at] + a[i] * b[j], [at])

    def _load_quads(self, target: Any, start: Expr, thread: Expr, count: int, extent: int) -> None:
        """Load a thread's rows (or columns) of one k."""
        apart = extent // (count // QUAD)
        with unrolled(count // QUAD) as quad:
            at = start + quad * apart + thread * QUAD
            if storage_bits(self.gemm.acc_dtype) == 32:
                T.buffer_store(target, self.shared[T.ramp(at, 1, QUAD)], [T.ramp(quad * QUAD, 1, QUAD)])
                return
            with unrolled(QUAD) as lane:
                T.buffer_store(target, self.shared[at + lane], [quad * QUAD + lane])

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Pass one row of every thread at a time, through shared memory, where slices are added, to the sink."""
        tile = self.tile
        if self.sink.along_rows and tile.slices * tile.column_round <= tile.shared_elements:
            self._finish_columns()
            return
        quad_rows = tile.bm // (tile.tm // QUAD)
        with unrolled(tile.tm) as i:
            barrier()
            with unrolled(tile.tn) as j:
                column = j // QUAD * (tile.bn // (tile.tn // QUAD)) + self.column * QUAD + j % QUAD
                at = self._round_at(self.slice) + self.row * tile.result_stride + column
                T.buffer_store(self.shared, self.acc[i * tile.tn + j], [at])
            barrier()
            first = i // QUAD * quad_rows + i % QUAD
            store_rows(
                self.around, self.gemm, self.sink, self.batch, self.first_row,
                (tile.bm // tile.tm, tile.bn), tile.threads, self.thread, (tile.bm, tile.bn),
                lambda row, first=first: first + row * QUAD,  # type: ignore[misc]
                lambda row, column: row * tile.result_stride + column, self._added,
            )  # fmt: skip

    def _finish_columns(self) -> None:
        """Pass one column of every thread at a time, where neighbouring rows are contiguous in the destination."""
        tile = self.tile
        quad_rows, quad_columns = tile.bm // (tile.tm // QUAD), tile.bn // (tile.tn // QUAD)
        with unrolled(tile.tn) as j:
            barrier()
            with unrolled(tile.tm) as i:
                row = i // QUAD * quad_rows + self.row * QUAD + i % QUAD
                at = self.slice * tile.column_round + self.column * tile.column_stride + row
                T.buffer_store(self.shared, self.acc[i * tile.tn + j], [at])
            barrier()
            first = j // QUAD * quad_columns + j % QUAD
            store_columns(
                self.around, self.gemm, self.sink, self.batch, self.first_row, (tile.bm, tile.bn // tile.tn),
                tile.threads, self.thread, (tile.bm, tile.bn), tile.bm,
                lambda row: row, lambda column, first=first: first + column * QUAD,  # type: ignore[misc]
                lambda row, column: self._sum_of(column * tile.column_stride + row, 1, tile.column_round),
            )  # fmt: skip

    def _round_at(self, slice_: Expr) -> Expr:
        return slice_ * self.tile.round

    def _added(self, place: Expr, lanes: int) -> Expr:
        return self._sum_of(place, lanes, self.tile.round)

    def _sum_of(self, place: Expr, lanes: int, apart: int) -> Expr:
        """Return the sum over all slices, whose sums are `apart` elements apart."""
        total = self.shared[run(place, lanes)]
        for slice_ in range(1, self.tile.slices):
            total = total + self.shared[run(slice_ * apart + place, lanes)]
        return total


def _codes(around: Surroundings, fetch: _Fetch, batch: Expr) -> Waiting | None:
    """Return the waiting codes, if the operand is blockwise-quantised weights."""
    codes = fetch.operand.codes
    if codes is None:
        return None
    return Waiting(Weights(around, fetch.operand.value, codes, batch), fetch.rounds, fetch.vector)


def store_rows(
    around: Surroundings, gemm: IndexedGemm, sink: Sink, batch: Expr, first: tuple[Expr, Expr],
    extents: tuple[int, int], threads: int, thread: Expr, tile: tuple[int, int], tile_row: Callable[[Expr], Expr],
    at: Callable[[Expr, Expr], Expr], read: Callable[[Expr, int], Expr],
) -> None:  # fmt: skip
    """Pass sums from shared memory to the sink, neighbouring units by neighbouring threads.

    extents: rows and columns there. first: the tile's first row and column. tile_row(row): the row of the tile that a
    row there is. at(row, column): where its sum lies. read(at, lanes): the sum there, or a vector of neighbours as long
    as the sink allows and every thread gets one.
    """
    rows, lanes, units = extents[0], sink.lanes, sink.units
    wide = units.within(extents[1])
    while lanes > 1 and rows * wide < lanes * threads:
        lanes //= 2
    columns = wide // lanes
    rounds = -(-rows * columns // threads)
    with repeated(rounds) as round_:
        number = named(round_ * threads + thread)
        row, column = named(number // columns), named(number % columns)
        m, vector = named(first[0] + tile_row(row)), named(units.first(first[1]) // lanes + column)
        n = vector * lanes
        exists = both(
            below(row, rows, -(-rounds * threads // columns)),
            below(m, gemm.m, -(-gemm.m // tile[0]) * tile[0]),
            below(n, units.width, units.within(-(-gemm.n // tile[1]) * tile[1])),
        )
        with when(exists):
            place = at(row, units.column(column * lanes))
            if lanes * units.gates == 1:
                sink(around, batch, m, n, read(place, 1))
            else:
                _store_vector(around, gemm, sink, (batch, m, vector), place, read, lanes)


def store_columns(
    around: Surroundings, gemm: IndexedGemm, sink: Sink, batch: Expr, first: tuple[Expr, Expr],
    extents: tuple[int, int], threads: int, thread: Expr, tile: tuple[int, int], together: int,
    tile_row: Callable[[Expr], Expr], tile_column: Callable[[Expr], Expr], read: Callable[[Expr, Expr], Expr],
) -> None:  # fmt: skip
    """Pass sums from shared memory to the sink, neighbouring rows by neighbouring threads.

    extents: rows and columns there. together: so many neighbours among these rows are neighbours in the tile, too.
    tile_row(row), tile_column(column): the row and column of the tile. read(row, column): the sum there.
    """
    rows, columns = extents
    rounds = -(-rows * columns // threads)
    with repeated(rounds) as round_:
        number = named(round_ * threads + thread)
        row = named(number // (together * columns) * together + number % together)
        column = named(number // together % columns)
        m, n = named(first[0] + tile_row(row)), named(first[1] + tile_column(column))
        exists = both(
            below(number, rows * columns, rounds * threads),
            below(m, gemm.m, -(-gemm.m // tile[0]) * tile[0]),
            below(n, gemm.n, -(-gemm.n // tile[1]) * tile[1]),
        )
        with when(exists):
            sink(around, batch, m, n, read(row, column))


def _store_vector(
    around: Surroundings, gemm: IndexedGemm, sink: Sink, place: tuple[Expr, Expr, Expr], at: Expr,
    read: Callable[[Expr, int], Expr], lanes: int,
) -> None:  # fmt: skip
    batch, m, vector = place
    count = lanes * sink.units.gates
    around.evaluator.assume(m, 0, gemm.m)
    around.evaluator.assume(vector, 0, sink.units.width // lanes)
    totals = registers(count, gemm.acc_dtype)
    if sink.units.dense and count <= QUAD and storage_bits(gemm.acc_dtype) == 32:
        # As a multiple of the lanes, so that TVM recognises the alignment and emits one access.
        T.buffer_store(totals, read(named(at // count) * count, count), [run(0, count)])
    else:
        start = named(at)
        with unrolled(count) as i:
            T.buffer_store(totals, read(start + i, 1), [i])
    sink(around, batch, m, vector * lanes, *[totals[i] for i in range(count)])
