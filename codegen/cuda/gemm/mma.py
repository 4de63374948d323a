"""GEMMs on the tensor cores (sm_80 and up): float16, bfloat16, TF32 where requested, and 8-bit integers.

A block computes a tile of the result, a warp a part of it as fragments of 16 x 8. Pieces of both operands travel
through a ring of stages in shared memory: asynchronous copies of 16 bytes where an operand is read unchanged in a
suitable layout, else through registers (odd sizes, a prologue). Layouts of pieces, and loads of fragments from them,
are in `fragments`. Sums are float32, or int32 for integers. Results leave through shared memory, sixteen rows of every
warp at a time.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, compute_dtype, dtype_of, storage_dtype, to_storage
from tilestitch.codegen.cuda.abi import CudaLaunch, Thread, barrier
from tilestitch.codegen.cuda.before import begin, is_early
from tilestitch.codegen.cuda.gemm.codes import Waiting, Weights
from tilestitch.codegen.cuda.gemm.fragments import Instruction, Piece, find_instruction, load_fragments
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm, simplified, step_of
from tilestitch.codegen.cuda.gemm.partition import Sink, launch, locate
from tilestitch.codegen.cuda.gemm.simt import store_columns, store_rows
from tilestitch.codegen.cuda.pieces import named, registers, repeated, run, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Anchored, Surroundings
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.gemm.partition import Partition
from tilestitch.passes.plan.gemm.tiles import MmaTile

PACKING = {"float16": "ts_pack_f16", "bfloat16": "ts_pack_bf16"}
"""Device functions that round two float32 and pack them in a register."""
WORDS = 4
"""Number of 32-bit words stored in one access."""


class CodesPiece:
    """The right operand's piece of a stage, where it is blockwise-quantised weights: a thread reads eight codes and
    stores eight half floats, or four and four TF32. They stay packed while they wait in registers. `words`: shared
    memory as uint32.
    """

    def __init__(self, around: Surroundings, piece: Piece, words: Any, batch: Expr) -> None:
        codes = piece.operand.codes
        assert codes is not None
        self.piece, self.to, self.words = piece, codes.to, words
        self.waiting = Waiting(Weights(around, piece.operand.value, codes, batch), piece.rounds, piece.width)

    def keep(self, round_: Expr, stage: Expr, row: Expr, k: Expr) -> None:
        """Store the floats of a round, a chunk of 16 bytes, to the stage that begins at an element."""
        values, chunk, stored = self.waiting.values(round_), self.piece.chunk, registers(WORDS, "uint32")
        with unrolled(WORDS) as i:
            T.buffer_store(stored, self._word(values, i * (chunk // WORDS)), [i])
        at = named((stage + self.piece.at(row, k)) // chunk) * WORDS
        T.buffer_store(self.words, stored[run(0, WORDS)], [run(at, WORDS)])

    def _word(self, values: Any, at: Expr) -> Expr:
        """Return a float32, or two half floats, from a value on."""
        packing = PACKING.get(self.to)
        if packing is None:
            return T.reinterpret("uint32", values[at])
        return tirx.call_extern("uint32", packing, values[at], values[at + 1])


WARP = 32


MOST_WAITING = 16
"""Most registers of a thread in which one operand may wait."""

AT_ONCE = 4
"""Elements that a thread fetches together if they do not wait."""


def emit_mma(group: Anchored, gemm: IndexedGemm, tile: MmaTile, partition: Partition) -> tuple[CudaLaunch, ...]:
    """Return the launches for a given tile and partition."""
    instruction = find_instruction(gemm)
    assert instruction is not None and instruction.itemsize == tile.itemsize

    def kernel(around: Surroundings, thread: Thread, sink: Sink, block: Expr) -> None:
        _Block(around, gemm, tile, instruction, partition, thread.thread[0], sink).run(block)

    return launch(group, gemm, "gemm_mma", partition, (tile.bm, tile.bn), tile.threads, kernel, tile.shared_bytes)


class _Block:
    """Emitter of one block's code: its methods share indices and buffers."""

    def __init__(
        self, around: Surroundings, gemm: IndexedGemm, tile: MmaTile, instruction: Instruction, partition: Partition,
        thread: Expr, sink: Sink,
    ) -> None:  # fmt: skip
        self.around, self.gemm, self.tile, self.partition, self.sink = around, gemm, tile, partition, sink
        self.instruction, self.thread = instruction, thread
        self.pieces = (
            Piece(gemm.a, tile.bm, tile.bk, tile.threads, 0, MOST_WAITING),
            Piece(gemm.b, tile.bn, tile.bk, tile.threads, tile.bm * tile.bk, MOST_WAITING),
        )
        self.asynchronous = any(piece.copied for piece in self.pieces)
        memory = T.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn")
        self.dtypes = tuple(storage_dtype(piece.operand.dtype) for piece in self.pieces)
        self.shared = tuple(_view(memory, tile.stages * tile.stage, dtype) for dtype in self.dtypes)
        self.results = _view(memory, 16 * tile.wm * tile.result_stride, instruction.sums)
        self.acc = registers(tile.rows * tile.columns * 4, instruction.sums)
        self.waiting: list[Any] = [
            None
            if piece.copied or piece.operand.codes is not None
            else registers(piece.rounds if piece.prefetched else AT_ONCE, dtype)
            for piece, dtype in zip(self.pieces, self.dtypes, strict=True)
        ]
        self.words = _view(memory, tile.itemsize * tile.stages * tile.stage // 4, "uint32")
        self.coded: list[CodesPiece | None] = [None, None]
        self.lane = named(thread % WARP)
        warp = named(thread // WARP)
        self.warp_row, self.warp_column = named(warp // tile.wn), named(warp % tile.wn)

    def run(self, block: Expr) -> None:
        tile, steps = self.tile, self.partition.steps
        part, self.batch, m_block, n_block = locate(self.partition, block)
        self.first_row = (named(m_block * tile.bm), named(n_block * tile.bn))
        self.first_step = named(part * steps)
        with unrolled(tile.rows * tile.columns * 4) as i:
            T.buffer_store(self.acc, zero(self.instruction.sums), [i])
        ahead = tile.stages - 1
        early = [side for side, piece in enumerate(self.pieces) if piece.copied and is_early(piece.operand)]
        for step in range(min(ahead, steps) if early else 0):
            self._fetch(step, step, early)
        begin()
        self.coded = [
            CodesPiece(self.around, piece, self.words, self.batch) if piece.operand.codes is not None else None
            for piece in self.pieces
        ]
        for step in range(ahead):
            if is_open(steps) or step < steps:
                with when(tirx.IntImm("int64", step) < steps if is_open(steps) else None):
                    self._fetch(step, step, [side for side in (0, 1) if side not in early])
                    self._keep(step)
            self._commit()
        if steps:
            with repeated(steps) as step:
                self._wait(tile.stages - 2)
                barrier()
                several = is_open(steps) or steps > ahead
                later = step + ahead < steps if several else None
                stage = named((step + ahead) % tile.stages)
                if several:
                    with when(later):
                        self._fetch(step + ahead, stage)
                self._commit()
                self._multiply(named(step % tile.stages))
                if several and any(piece.prefetched for piece in self.pieces):
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

    def _fetch(self, step: Expr, stage: Expr, sides: Sequence[int] = (0, 1)) -> None:
        """Fetch the operands' pieces of a step: asynchronously to a stage, to registers, or directly."""
        number = named(self.first_step + step)
        for side in sides:
            piece = self.pieces[side]
            if piece.copied or piece.prefetched:
                with unrolled(piece.rounds) as round_:
                    self._fetch_unit(side, piece, round_, round_, number, stage)
                continue
            with repeated(piece.rounds // AT_ONCE) as some:
                with unrolled(AT_ONCE) as i:
                    self._fetch_unit(side, piece, some * AT_ONCE + i, i, number, stage)
                with unrolled(AT_ONCE) as i:
                    self._keep_unit(side, piece, some * AT_ONCE + i, i, stage)

    def _fetch_unit(self, side: int, piece: Piece, round_: Expr, at: Expr, number: Expr, stage: Expr) -> None:
        """Fetch a thread's elements of a round, asynchronously or to the register `at`."""
        gemm, operand = self.gemm, piece.operand
        local_row, local_k = piece.place(self.thread, round_)
        row = named(self.first_row[side] + local_row)
        k = step_of(self.around, number, self.tile.bk, named(local_k))
        reached = self.partition.parts * self.partition.steps * self.tile.bk
        whole = -(-operand.rows // piece.rows) * piece.rows
        exists = both(below(row, operand.rows, whole), below(k, gemm.k, reached))
        there = both(exists, simplified(self.around, operand.inside(self.batch, row, k)))
        coded = self.coded[side]
        if coded is not None:
            coded.waiting.fetch(at, row, k, there)
            return
        if piece.copied:
            buffer, position = operand.cell(self.around, self.batch, row, k)
            target = stage * self.tile.stage + piece.at(local_row, local_k)
            if there is not None:
                there = named(T.cast(there, "int32"))
                position = tirx.Select(tirx.NE(there, 0), position, tirx.IntImm(dtype_of(position), 0))
            source, count = T.address_of(buffer[position]), 16 if there is None else there * 16
            T.evaluate(T.call_extern("void", "ts_cp_async_16", T.address_of(self.shared[side][target]), source, count))
            return
        waiting = self.waiting[side]
        if there is not None:
            T.buffer_store(waiting, zero(self.dtypes[side]), [at])
        with when(there):
            value = operand.element(self.around, self.batch, row, k, compute_dtype(operand.dtype))
            T.buffer_store(waiting, to_storage(value, operand.dtype), [at])

    def _keep(self, stage: Expr) -> None:
        """Store pieces that wait in registers to a stage."""
        for side, piece in enumerate(self.pieces):
            if piece.prefetched:
                with unrolled(piece.rounds) as round_:
                    self._keep_unit(side, piece, round_, round_, stage)

    def _keep_unit(self, side: int, piece: Piece, round_: Expr, at: Expr, stage: Expr) -> None:
        coded = self.coded[side]
        if coded is not None:
            coded.keep(at, stage * self.tile.stage, *map(named, piece.place(self.thread, round_)))
            return
        target = stage * self.tile.stage + piece.at(*piece.place(self.thread, round_))
        T.buffer_store(self.shared[side], self.waiting[side][at], [target])

    # -- sums --------------------------------------------------------------------------------------------------------

    def _multiply(self, stage: Expr) -> None:
        tile, step = self.tile, self.instruction.step
        start = named(stage * tile.stage)
        a, b = registers(tile.rows * 4, "uint32"), registers(tile.columns * 2, "uint32")
        first_m = named(self.warp_row * (tile.rows * 16))
        first_n = named(self.warp_column * (tile.columns * 8))
        with unrolled(tile.bk // step) as kk:
            with unrolled(tile.rows) as i:
                self._load(0, start, first_m + i * 16, kk * step, a, i)
            with unrolled(tile.columns // 2) as j:
                self._load(1, start, first_n + j * 16, kk * step, b, j)
            with unrolled(tile.rows) as i, unrolled(tile.columns) as j:
                total = T.address_of(self.acc[(i * tile.columns + j) * 4])
                left, right = T.address_of(a[i * 4]), T.address_of(b[j * 2])
                T.evaluate(T.call_extern("void", self.instruction.function, total, left, right))

    def _load(self, side: int, start: Expr, row: Expr, k: Expr, target: Any, number: Expr) -> None:
        load_fragments(
            self.instruction, self.pieces[side], self.shared[side], start, self.lane, row, k, target, number, side == 0
        )

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Pass sixteen rows of every warp at a time, through shared memory, to the sink."""
        tile, by_columns = self.tile, self.sink.along_rows
        stride = tile.turned_stride if by_columns else tile.result_stride
        row = named(self.warp_row * 16 + self.lane // 4)
        column = named(self.warp_column * (tile.columns * 8) + self.lane % 4 * 2)
        with unrolled(tile.rows) as i:
            barrier()
            with unrolled(tile.columns) as j, unrolled(4) as e:
                at = (row + e // 2 * 8) * stride + column + j * 8 + e % 2
                T.buffer_store(self.results, self.acc[(i * tile.columns + j) * 4 + e], [at])
            barrier()
            rows, columns, tile_row = 16 * tile.wm, tile.bn, self._tile_row(i)
            where = (self.around, self.gemm, self.sink, self.batch, self.first_row, (rows, columns), tile.threads)
            if by_columns:
                store_columns(
                    *where, self.thread, (tile.bm, tile.bn), 16, tile_row, lambda column: column,
                    lambda r, c: self.results[r * stride + c],
                )  # fmt: skip
            else:
                store_rows(
                    *where, self.thread, (tile.bm, tile.bn), tile_row, lambda r, c: r * stride + c,
                    lambda at, lanes: self.results[run(at, lanes)],
                )  # fmt: skip

    def _tile_row(self, fragment: Expr) -> Callable[[Expr], Expr]:
        """Return the map from the rows of one fragment of every warp to rows of the tile."""
        return lambda row: row // 16 * (self.tile.rows * 16) + fragment * 16 + row % 16


def _view(memory: Any, elements: int, dtype: str) -> Any:
    """View dynamic shared memory as elements of another dtype."""
    return T.decl_buffer((elements,), dtype, data=memory.data, scope="shared.dyn")
