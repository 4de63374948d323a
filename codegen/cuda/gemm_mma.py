"""Products of float16 and bfloat16 on the tensor cores (sm_80 and up), with sums in float32.

A block computes a tile of the result, a warp a part of it as m16n8k16 fragments. Pieces of both operands travel through
a ring of stages in shared memory: asynchronous copies of 16 bytes where an operand is read as it is and lies suitably,
else through registers (odd sizes, a prologue). Pieces lie in shared memory as in global memory, along k or along rows,
in lines of 16-byte chunks whose order is permuted (swizzled) from line to line: ldmatrix meets no bank conflict.
Results leave through shared memory, sixteen rows of every warp at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import HALVES, Expr, storage_dtype, to_storage

from .abi import CudaLaunch, Thread, barrier
from .gemm_simt import store_rows
from .partition import Partition, Sink, choose, launches, named, registers, repeated, unrolled, when, zero
from .product import Operand, Product, below, both
from .surroundings import Anchored, Surroundings
from .target import CudaTarget

CHUNK = 8
"""Half floats in 16 bytes."""

WARP = 32
STEP = 16
"""Steps of the reduction of one tensor-core instruction."""


@dataclass(frozen=True)
class MmaTile:
    """A tile bm x bn, `bk` steps of the reduction a stage; wm x wn warps share it."""

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    speed: float
    stages: int = 4

    @property
    def threads(self) -> int:
        return WARP * self.wm * self.wn

    @property
    def rows(self) -> int:
        """Fragments of 16 rows of a warp."""
        return self.bm // self.wm // 16

    @property
    def columns(self) -> int:
        """Fragments of 8 columns of a warp; an even number."""
        return self.bn // self.wn // 8

    @property
    def stage(self) -> int:
        """Elements of one stage of both operands."""
        return (self.bm + self.bn) * self.bk

    @property
    def result_stride(self) -> int:
        """Sums from one row to the next where results wait for the epilogue."""
        return self.bn + 8

    @property
    def shared_bytes(self) -> int:
        return max(2 * self.stages * self.stage, 4 * 16 * self.wm * self.result_stride)


TILES = (
    MmaTile(128, 128, 32, 2, 4, 1.0),
    MmaTile(128, 64, 32, 2, 2, 0.8),
    MmaTile(64, 128, 32, 2, 2, 0.8),
    MmaTile(64, 64, 32, 2, 2, 0.6),
    MmaTile(32, 64, 32, 2, 2, 0.35),
    MmaTile(64, 32, 32, 2, 2, 0.35),
)
MMA = {"float16": "ts_mma_m16n8k16_f16", "bfloat16": "ts_mma_m16n8k16_bf16"}
AMPERE = 80
MOST_WAITING = 16
"""Registers of a thread in which one operand may wait."""

AT_ONCE = 4
"""Elements that a thread fetches together where they do not wait."""


def fits_mma(product: Product, target: CudaTarget) -> bool:
    """Whether the tensor cores compute this product."""
    same = product.a.dtype == product.b.dtype
    return same and product.a.dtype in HALVES and product.acc_dtype == "float32" and target.capability >= AMPERE


def lower_mma(group: Anchored, product: Product) -> tuple[CudaLaunch, ...]:
    """The launches of a product on the tensor cores."""
    tile, partition = choose(product, TILES, group.target.device.sm_count)
    return emit_mma(group, product, tile, partition)


def emit_mma(group: Anchored, product: Product, tile: MmaTile, partition: Partition) -> tuple[CudaLaunch, ...]:
    """The launches for a tile and partition that are given."""

    def kernel(around: Surroundings, thread: Thread, sink: Sink, block: Expr) -> None:
        _Block(around, product, tile, partition, thread.thread[0], sink).run(block)

    return launches(group, product, "gemm_mma", partition, tile.threads, kernel, tile.shared_bytes)


@dataclass(frozen=True)
class _Piece:
    """One operand's piece [rows, bk] of a stage: how it lies in shared memory, and how threads bring it there."""

    operand: Operand
    rows: int
    bk: int
    threads: int
    offset: int

    @cached_property
    def copied(self) -> bool:
        """Whether asynchronous copies bring it."""
        return self.operand.vector() == CHUNK

    @property
    def prefetched(self) -> bool:
        """Whether it waits in registers while the piece before is multiplied: if they are few, and found easily."""
        return not self.copied and self.operand.memory is not None and self.rounds <= MOST_WAITING

    @property
    def line(self) -> int:
        """Elements that lie together: along k or along rows."""
        return self.bk if self.operand.contiguous == "k" else self.rows

    @property
    def rounds(self) -> int:
        each = self.threads * (CHUNK if self.copied else 1)
        assert self.rows * self.bk % each == 0, (self.rows, self.bk, self.threads)
        return self.rows * self.bk // each

    def place(self, thread: Expr, round_: Expr) -> tuple[Expr, Expr]:
        """Row and k, within the piece, of what a thread brings in a round."""
        number = thread + round_ * self.threads
        width = CHUNK if self.copied else 1
        units = self.line // width
        along, across = number % units * width, number // units
        return (across, along) if self.operand.contiguous == "k" else (along, across)

    def at(self, row: Expr, k: Expr) -> Expr:
        """Position of an element within a stage."""
        across, along = (row, k) if self.operand.contiguous == "k" else (k, row)
        chunks = self.line // CHUNK
        turn = across % 8 if chunks >= 8 else across // 2 % 4
        inner = along % CHUNK if not isinstance(along, int) or along % CHUNK else 0
        return self.offset + across * self.line + T.bitwise_xor(along // CHUNK, turn) * CHUNK + inner


class _Block:
    """One block's code: the pieces share its indices and buffers."""

    def __init__(
        self, around: Surroundings, product: Product, tile: MmaTile, partition: Partition, thread: Expr, sink: Sink
    ) -> None:
        self.around, self.product, self.tile, self.partition, self.sink = around, product, tile, partition, sink
        self.thread = thread
        self.pieces = (
            _Piece(product.a, tile.bm, tile.bk, tile.threads, 0),
            _Piece(product.b, tile.bn, tile.bk, tile.threads, tile.bm * tile.bk),
        )
        self.asynchronous = any(piece.copied for piece in self.pieces)
        memory = T.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn")
        self.dtype = storage_dtype(product.a.dtype)
        self.shared = _view(memory, tile.stages * tile.stage, self.dtype)
        self.results = _view(memory, 16 * tile.wm * tile.result_stride, "float32")
        self.acc = registers(tile.rows * tile.columns * 4, "float32")
        self.waiting: list[Any] = [
            None if p.copied else registers(p.rounds if p.prefetched else AT_ONCE, self.dtype) for p in self.pieces
        ]
        self.lane = named(thread % WARP)
        warp = named(thread // WARP)
        self.warp_row, self.warp_column = named(warp // tile.wn), named(warp % tile.wn)

    def run(self, block: Expr) -> None:
        tile, steps = self.tile, self.partition.steps
        part, self.batch, m_block, n_block = self.partition.locate(block)
        self.first_row = (named(m_block * tile.bm), named(n_block * tile.bn))
        self.first_k = named(part * (steps * tile.bk))
        with unrolled(tile.rows * tile.columns * 4) as i:
            T.buffer_store(self.acc, zero("float32"), [i])
        ahead = tile.stages - 1
        for step in range(ahead):
            if step < steps:
                self._fetch(step, step)
                self._keep(step)
            self._commit()
        if steps:
            with repeated(steps) as step:
                self._wait(tile.stages - 2)
                barrier()
                later = None if steps <= ahead else step + ahead < steps
                stage = named((step + ahead) % tile.stages)
                if steps > ahead:
                    with when(later):
                        self._fetch(step + ahead, stage)
                self._commit()
                self._multiply(named(step % tile.stages))
                if steps > ahead and any(piece.prefetched for piece in self.pieces):
                    with when(later):
                        self._keep(stage)
        self._wait(0)
        self._finish()

    # -- operands ----------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        if self.asynchronous:
            T.evaluate(T.call_extern("void", "ts_cp_async_commit"))

    def _wait(self, pending: int) -> None:
        if self.asynchronous:
            T.evaluate(T.call_extern("void", "ts_cp_async_wait", pending))

    def _fetch(self, step: Expr, stage: Expr) -> None:
        """Both operands' pieces of a step: on their way to a stage, in registers, or there."""
        k0 = named(self.first_k + step * self.tile.bk)
        for side, piece in enumerate(self.pieces):
            if piece.copied or piece.prefetched:
                with unrolled(piece.rounds) as round_:
                    self._fetch_unit(side, piece, round_, round_, k0, stage)
                continue
            with repeated(piece.rounds // AT_ONCE) as some:
                with unrolled(AT_ONCE) as i:
                    self._fetch_unit(side, piece, some * AT_ONCE + i, i, k0, stage)
                with unrolled(AT_ONCE) as i:
                    self._keep_unit(side, piece, some * AT_ONCE + i, i, stage)

    def _fetch_unit(self, side: int, piece: _Piece, round_: Expr, at: Expr, k0: Expr, stage: Expr) -> None:
        """What a thread brings in a round: on its way, or in the register `at`."""
        product, operand = self.product, piece.operand
        local_row, local_k = piece.place(self.thread, round_)
        row, k = named(self.first_row[side] + local_row), named(k0 + local_k)
        reached = self.partition.parts * self.partition.steps * self.tile.bk
        whole = -(-operand.rows // piece.rows) * piece.rows
        exists = both(below(row, operand.rows, whole), below(k, product.k, reached))
        there = both(exists, operand.inside(self.batch, row, k))
        if piece.copied:
            buffer, position = operand.cell(self.around, self.batch, row, k)
            target = stage * self.tile.stage + piece.at(local_row, local_k)
            if there is not None:
                there = named(T.cast(there, "int32"))
                position = tirx.Select(tirx.NE(there, 0), position, 0)
            source, count = T.address_of(buffer[position]), 16 if there is None else there * 16
            T.evaluate(T.call_extern("void", "ts_cp_async_16", T.address_of(self.shared[target]), source, count))
            return
        waiting = self.waiting[side]
        if there is not None:
            T.buffer_store(waiting, zero(self.dtype), [at])
        with when(there):
            value = operand.element(self.around, self.batch, row, k, "float32")
            T.buffer_store(waiting, to_storage(value, operand.dtype), [at])

    def _keep(self, stage: Expr) -> None:
        """Pieces that wait in registers into a stage."""
        for side, piece in enumerate(self.pieces):
            if piece.prefetched:
                with unrolled(piece.rounds) as round_:
                    self._keep_unit(side, piece, round_, round_, stage)

    def _keep_unit(self, side: int, piece: _Piece, round_: Expr, at: Expr, stage: Expr) -> None:
        target = stage * self.tile.stage + piece.at(*piece.place(self.thread, round_))
        T.buffer_store(self.shared, self.waiting[side][at], [target])

    # -- sums --------------------------------------------------------------------------------------------------------

    def _multiply(self, stage: Expr) -> None:
        tile, lane = self.tile, self.lane
        start = named(stage * tile.stage)
        a, b = registers(tile.rows * 4, "uint32"), registers(tile.columns * 2, "uint32")
        # Matrices 0 to 3 of an ldmatrix, whose rows lanes 8 i to 8 i + 7 name: left (0, 0), (8, 0), (0, 8), (8, 8) as
        # (row, k); right (0, 0), (0, 8), (8, 0), (8, 8).
        low, high = named(lane // 8 % 2 * 8), named(lane // 16 * 8)
        within = named(lane % 8)
        first_m = named(self.warp_row * (tile.rows * 16))
        first_n = named(self.warp_column * (tile.columns * 8))
        with unrolled(tile.bk // STEP) as kk:
            with unrolled(tile.rows) as i:
                self._load_matrices(0, start, a, i, (first_m + i * 16, low), (kk * STEP, high), within)
            with unrolled(tile.columns // 2) as j:
                self._load_matrices(1, start, b, j, (first_n + j * 16, high), (kk * STEP, low), within)
            with unrolled(tile.rows) as i, unrolled(tile.columns) as j:
                total = T.address_of(self.acc[(i * tile.columns + j) * 4])
                left, right = T.address_of(a[i * 4]), T.address_of(b[j * 2])
                T.evaluate(T.call_extern("void", MMA[self.product.a.dtype], total, left, right))

    def _load_matrices(
        self, side: int, start: Expr, target: Any, number: Expr, row: tuple[Expr, Expr], k: tuple[Expr, Expr],
        within: Expr,
    ) -> None:  # fmt: skip
        """Four 8 x 8 matrices from rows `sum(row)` and steps `sum(k)` on."""
        piece = self.pieces[side]
        along_k = piece.operand.contiguous == "k"
        at = piece.at(row[0] + row[1] + (within if along_k else 0), k[0] + k[1] + (0 if along_k else within))
        # The lane names a whole line of a matrix, which begins with its chunk.
        load = "ts_ldmatrix_x4" if along_k else "ts_ldmatrix_x4_trans"
        T.evaluate(T.call_extern("void", load, T.address_of(target[number * 4]), T.address_of(self.shared[start + at])))

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Sixteen rows of every warp at a time, through shared memory, to the sink."""
        tile, stride = self.tile, self.tile.result_stride
        row = named(self.warp_row * 16 + self.lane // 4)
        column = named(self.warp_column * (tile.columns * 8) + self.lane % 4 * 2)
        with unrolled(tile.rows) as i:
            barrier()
            with unrolled(tile.columns) as j, unrolled(4) as e:
                at = (row + e // 2 * 8) * stride + column + j * 8 + e % 2
                T.buffer_store(self.results, self.acc[(i * tile.columns + j) * 4 + e], [at])
            barrier()
            store_rows(
                self.around, self.product, self.sink, self.batch, self.first_row, (16 * tile.wm, tile.bn),
                tile.threads, self.thread, (tile.bm, tile.bn),
                lambda r, i=i: r // 16 * (tile.rows * 16) + i * 16 + r % 16,  # type: ignore[misc]
                lambda r, c: self.results[r * stride + c],
            )  # fmt: skip


def _view(memory: Any, elements: int, dtype: str) -> Any:
    """Dynamic shared memory as elements of another dtype."""
    return T.decl_buffer((elements,), dtype, data=memory.data, scope="shared.dyn")
