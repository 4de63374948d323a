"""GEMMs with at most eight rows, bound by reading the large operand once at memory bandwidth.

The rows of the small operand a are in shared memory, a chunk of k at a time, with the prologue evaluated once per
block. If the large operand b is contiguous along k, a warp takes COLUMNS of its rows and its lanes share k, or fewer
lanes where k is short. If it is contiguous along its rows, eight lanes read 128 bytes of one k, and the lanes of a
block share k. Lanes are summed by shuffles, warps in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage, storage_bits, storage_dtype, widen
from tilestitch.codegen.cuda.abi import CudaLaunch, Thread, barrier, shared_buffer
from tilestitch.codegen.cuda.before import begin, is_early
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm
from tilestitch.codegen.cuda.gemm.partition import Sink, launch, locate
from tilestitch.codegen.cuda.pieces import named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Anchored, Surroundings
from tilestitch.passes.plan.gemm.gemv import (
    SEGMENT,
    WARP,
    WARPS,
    SmallRows,
    load_width,
    rows_of,
    warp_columns,
)
from tilestitch.passes.plan.gemm.partition import Partition
from tilestitch.passes.plan.gemm.tiles import GemvTile, OpenGemvTile

THREADS = WARP * WARPS
FULL = 0xFFFFFFFF
AHEAD_BYTES = 32 << 10
"""Bytes of the large operand that a block prefetches before it waits: half a GPU's L2 cache is 20 MB, and holds it for
all blocks.
"""


def emit_gemv(group: Anchored, gemm: IndexedGemm, tile: GemvTile, partition: Partition) -> tuple[CudaLaunch, ...]:
    """Return the launches for a given tile and partition; the large operand is the right one."""
    return launch_gemv(group, gemm, tile, partition, _along_k if tile.along_k else _along_rows)


def launch_gemv(
    group: Anchored, gemm: IndexedGemm, tile: GemvTile, partition: Partition, emit: Callable[[Block], None]
) -> tuple[CudaLaunch, ...]:
    """Return the launches of a kernel whose blocks `emit` emits."""

    def kernel(around: Surroundings, thread: Thread, sink: Sink, block: Expr) -> None:
        emit(Block(around, gemm, partition, tile, thread.thread[0], block, sink))

    return launch(group, gemm, "gemv", partition, (tile.bm, tile.bn), tile.threads, kernel)


class Block:
    """State shared by both forms: the indices of a block, and the small operand in shared memory."""

    def __init__(
        self, around: Surroundings, gemm: IndexedGemm, partition: Partition, tile: GemvTile, thread: Expr, block: Expr,
        sink: Sink,
    ) -> None:  # fmt: skip
        self.around, self.gemm, self.partition, self.sink = around, gemm, partition, sink
        self.thread = thread
        self.lane, self.warp = named(thread % WARP), named(thread // WARP)
        self.rows, self._many = rows_of(gemm, tile), isinstance(tile, OpenGemvTile)
        self.dtype = gemm.acc_dtype
        part, self.batch, row, column = locate(partition, block)
        self._first_row = named(row * self.rows) if self._many else 0
        self.columns, self.chunk = tile.bn, tile.bk
        self.first_column = named(column * self.columns)
        self.first_k = named(part * (partition.steps * self.chunk))
        self.small_rows = SmallRows.of(gemm, tile)
        self.small = shared_buffer(self.rows * self.small_rows.row, self.dtype)

    def row(self, number: Expr) -> Expr:
        """Return a row of the block as one of the small operand."""
        return self._first_row + number if self._many else number

    def row_exists(self, number: Expr) -> Expr | None:
        """Return whether the small operand has this row of the block."""
        return below(self.row(number), self.gemm.m, self.partition.m_blocks * self.rows) if self._many else None

    def column_exists(self, column: Expr) -> Expr | None:
        """Return whether the large operand has this row."""
        return below(column, self.gemm.n, self.partition.n_blocks * self.columns)

    def k_exists(self, k: Expr) -> Expr | None:
        """Return whether the reduction has this step."""
        return below(k, self.gemm.k, self.partition.parts * self.partition.steps * self.chunk)

    def bring_rows(self, k0: Expr) -> None:
        """Bring a chunk of the small operand to shared memory, padded with zeros."""
        operand = self.gemm.a
        barrier()
        count, rounds = self.rows * self.chunk, -(-self.rows * self.chunk // THREADS)
        with repeated(rounds) as round_, when(below(self._unit(round_), count, rounds * THREADS)):
            number = named(self._unit(round_))
            along_k = operand.contiguous == "k"
            row = named(number // self.chunk if along_k else number % self.rows)
            k = named(number % self.chunk if along_k else number // self.rows)
            value = registers(1, self.dtype)
            T.buffer_store(value, zero(self.dtype), [0])
            at = self.row(row)
            there = both(self.row_exists(row), self.k_exists(k0 + k), operand.inside(self.batch, at, k0 + k))
            with when(there):
                T.buffer_store(value, operand.element(self.around, self.batch, at, k0 + k, self.dtype), [0])
            T.buffer_store(self.small, value[0], [self.small_rows.at(row, k)])
        barrier()

    def _unit(self, round_: Expr) -> Expr:
        return round_ * THREADS + self.thread

    def read(self, target: Any, column: Expr, k: Expr, width: int, at: Expr) -> None:
        """Load `width` neighbours of the large operand to registers from `at` on, zeros where there are none."""
        operand = self.gemm.b
        dtype = storage_dtype(operand.dtype)
        there = both(self.column_exists(column), self.k_exists(k), operand.inside(self.batch, column, k))
        if there is not None:
            with unrolled(width) as lane:
                T.buffer_store(target, zero(dtype if width > 1 else self.dtype), [at + lane])
        with when(there):
            if width == 1:
                T.buffer_store(target, operand.element(self.around, self.batch, column, k, self.dtype), [at])
                return
            buffer, position = operand.cell(self.around, self.batch, column, k)
            T.evaluate(T.call_extern("void", "ts_load_16", T.address_of(target[at]), T.address_of(buffer[position])))

    def begin(self) -> None:
        """Wait for what others store, after prefetching the beginning of the large operand to the L2 cache."""
        operand = self.gemm.b
        if self.partition.steps and is_early(operand):
            each = self.chunk * self.columns * storage_bits(operand.dtype) // 8
            extent = self.chunk * min(self.partition.steps, max(1, AHEAD_BYTES // each))
            vector = operand.vector()
            along, across = (extent, self.columns) if operand.contiguous == "k" else (self.columns, extent)
            count, vectors = along // vector * across, along // vector
            rounds = -(-count // THREADS)
            with repeated(rounds) as round_, when(below(self._unit(round_), count, rounds * THREADS)):
                number = named(self._unit(round_))
                place = named(number % vectors * vector), named(number // vectors)
                own_k, own_column = place if operand.contiguous == "k" else place[::-1]
                self._ask_for(named(self.first_column + own_column), named(self.first_k + own_k))
        begin()

    def _ask_for(self, column: Expr, k: Expr) -> None:
        operand = self.gemm.b
        there = both(self.column_exists(column), self.k_exists(k), operand.inside(self.batch, column, k))
        with when(there):
            buffer, position = operand.cell(self.around, self.batch, column, k)
            T.evaluate(T.call_extern("void", "ts_ticket_prefetch", T.address_of(buffer[position])))

    def value(self, loaded: Any, at: Expr, width: int) -> Expr:
        """Return an element that was read, in the dtype of the sum."""
        operand = self.gemm.b
        if width == 1:
            return loaded[at]
        return widen(from_storage(loaded[at], operand.dtype), operand.dtype, self.dtype)

    def loaded(self, count: int, width: int) -> Any:
        """Return the registers for elements of the large operand."""
        return registers(count, storage_dtype(self.gemm.b.dtype) if width > 1 else self.dtype)


def _along_k(block: Block) -> None:
    gemm, rows, chunk = block.gemm, block.rows, block.chunk
    width, columns, lanes = load_width(gemm.b), warp_columns(gemm), block.small_rows.lanes
    lane, team = (block.lane, block.warp) if lanes == WARP else (named(block.thread % lanes), block.thread // lanes)
    acc = registers(rows * columns, block.dtype)
    with unrolled(rows * columns) as i:
        T.buffer_store(acc, zero(block.dtype), [i])
    first = named(block.first_column + team * columns)
    block.begin()
    with repeated(block.partition.steps) as step:
        k0 = named(block.first_k + step * chunk)
        block.bring_rows(k0)
        loaded = block.loaded(columns * width, width)
        with unrolled(chunk // (lanes * width)) as round_:
            k = named((round_ * lanes + lane) * width)
            with unrolled(columns) as c:
                block.read(loaded, named(first + c), named(k0 + k), width, c * width)
            with unrolled(rows) as m, unrolled(columns) as c, unrolled(width) as i:
                near = block.small[block.small_rows.of_lane(m, round_, lane, i)]
                term = near * block.value(loaded, c * width + i, width)
                T.buffer_store(acc, acc[m * columns + c] + term, [m * columns + c])
    with unrolled(rows * columns) as i:
        _add_lanes(acc, i, tuple(d for d in (16, 8, 4, 2, 1) if d < lanes))
    _share_out(block, acc, first, columns, lane)


def _share_out(block: Block, acc: Any, first: Expr, columns: int, lane: Expr) -> None:
    """Finish the sums that all lanes which share rows have: lane i of them finishes the i-th unit."""
    units = block.sink.units
    each, count = units.gates, columns // units.gates
    reached = units.within(block.partition.n_blocks * block.columns)
    lanes = block.small_rows.lanes
    for base in range(0, block.rows * count, lanes):
        here = min(lanes, block.rows * count - base)
        own = registers(each, block.dtype)
        with unrolled(here) as i, when(tirx.EQ(lane, i)), unrolled(each) as gate:
            T.buffer_store(own, acc[(base + i) * each + gate], [gate])
        number = named(base + lane)
        m, unit = named(number // count), named(first // each + number % count)
        exists = both(below(lane, here, lanes), block.row_exists(m), below(unit, units.width, reached))
        with when(exists):
            block.sink(block.around, block.batch, block.row(m), unit, *[own[gate] for gate in range(each)])


def _along_rows(block: Block) -> None:
    gemm, rows, chunk = block.gemm, block.rows, block.chunk
    vector = gemm.b.vector()
    width = load_width(gemm.b)
    together = THREADS // SEGMENT
    acc = registers(rows * vector, block.dtype)
    with unrolled(rows * vector) as i:
        T.buffer_store(acc, zero(block.dtype), [i])
    own = named(block.lane % SEGMENT * vector)
    offset = named(block.thread // SEGMENT)
    block.begin()
    with repeated(block.partition.steps) as step:
        k0 = named(block.first_k + step * chunk)
        block.bring_rows(k0)
        with repeated(chunk // together) as round_:
            k = named(round_ * together + offset)
            loaded = block.loaded(vector, width)
            with unrolled(vector // width) as piece:
                column = named(block.first_column + own + piece * width)
                block.read(loaded, column, named(k0 + k), width, piece * width)
            with unrolled(rows) as m, unrolled(vector) as lane:
                term = block.small[block.small_rows.at(m, k)] * block.value(loaded, lane, width)
                T.buffer_store(acc, acc[m * vector + lane] + term, [m * vector + lane])
    with unrolled(rows * vector) as i:
        _add_lanes(acc, i, (16, 8))
    add_warps(block, acc, SEGMENT, vector)


def _add_lanes(acc: Any, at: Expr, distances: tuple[int, ...]) -> None:
    """Sum a register over lanes whose numbers differ in the bits `distances`."""
    for distance in distances:
        other = T.tvm_warp_shuffle_xor(T.uint32(FULL), acc[at], distance, WARP, WARP)
        T.buffer_store(acc, acc[at] + other, [at])


def add_warps(block: Block, acc: Any, lanes: int, vector: int) -> None:
    """Sum over all warps, in order, and pass the results to the sink. The first lanes of each warp have a vector of
    columns.
    """
    rows, columns = block.rows, block.columns
    # The chunk of the small operand is no longer needed if the sums fit in its place.
    count = WARPS * rows * columns
    sums = block.small if count <= rows * block.small_rows.row else shared_buffer(count, block.dtype)
    barrier()
    with when(below(block.lane, lanes, WARP)), unrolled(rows) as m, unrolled(vector) as lane:
        at = (block.warp * rows + m) * columns + block.lane * vector + lane
        T.buffer_store(sums, acc[m * vector + lane], [at])
    barrier()
    units = block.sink.units
    wide = units.within(columns)
    rounds = -(-rows * wide // THREADS)
    with repeated(rounds) as round_:
        number = named(round_ * THREADS + block.thread)
        m, own = named(number // wide), named(number % wide)
        unit = named(units.first(block.first_column) + own)
        reached = units.within(block.partition.n_blocks * columns)
        inside = below(m, rows, -(-rounds * THREADS // wide))
        exists = both(inside, block.row_exists(m), below(unit, units.width, reached))
        with when(exists):
            totals = registers(units.gates, block.dtype)
            start = named(m * columns + units.column(own))
            with unrolled(units.gates) as gate:
                T.buffer_store(totals, zero(block.dtype), [gate])
                with unrolled(WARPS) as warp:
                    at = warp * (rows * columns) + start + gate
                    T.buffer_store(totals, totals[gate] + sums[at], [gate])
            block.sink(block.around, block.batch, block.row(m), unit, *[totals[gate] for gate in range(units.gates)])
