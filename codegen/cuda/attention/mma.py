"""Attention on the tensor cores (sm_80 and up): float16, bfloat16, and float32 as TF32 where that was asked for.

A warp has sixteen or thirty-two query rows. Queries stay in registers as fragments, in shared memory if they are wide.
Keys and values pass through two stages of shared memory, asynchronously where 16 bytes of them are contiguous. The sums
of an instruction have the register layout of its left operand, so weights stay in registers: two neighbouring fragments
of scores, packed to half floats, are sixteen steps of the second GEMM. A fragment of TF32 is eight steps if keys 2 t
and 2 t + 1, and their values, are steps t and t + 4. Sums and statistics are float32.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, dtype_of, storage_dtype, to_storage
from tilestitch.codegen.cuda.abi import CudaLaunch, Thread, barrier
from tilestitch.codegen.cuda.attention.elements import Elements
from tilestitch.codegen.cuda.attention.operands import Attended
from tilestitch.codegen.cuda.attention.walk import (
    Reference,
    Sink,
    Walk,
    infinity,
    launches,
    store_results,
)
from tilestitch.codegen.cuda.gemm.fragments import INSTRUCTIONS
from tilestitch.codegen.cuda.gemm.indexed import Operand
from tilestitch.codegen.cuda.pieces import named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Surroundings
from tilestitch.passes.plan.attention.pieces import Piece, pieces_of, stage_bytes
from tilestitch.passes.plan.attention.tiles import COLUMNS, STAGES, STEP, WARP, AttentionMmaTile

MOST_IN_REGISTERS = 32
"""Most registers for the queries of one fragment of rows; wider queries stay in shared memory."""

PACK = {"float16": "ts_pack_f16", "bfloat16": "ts_pack_bf16"}


def emit_mma(what: Attended, tile: AttentionMmaTile, walk: Walk) -> tuple[CudaLaunch, ...]:
    """Return the launches for a given tile and walk."""

    def body(around: Surroundings, thread: Thread, block: Expr, sink: Sink) -> None:
        _Block(what, tile, walk, around, thread.thread[0], sink).run(block)

    shared_bytes = stage_bytes(tile, pieces_of(what.query, what.key, what.value, tile))
    return launches(what, "attention_mma", walk, tile.threads, body, shared_bytes)


class _Block:
    """Emitter of one block's code: its methods share indices and buffers."""

    def __init__(
        self, what: Attended, tile: AttentionMmaTile, walk: Walk, around: Surroundings, thread: Expr, sink: Sink
    ) -> None:  # fmt: skip
        self.what, self.tile, self.walk, self.around, self.sink = what, tile, walk, around, sink
        self.thread = thread
        self.pieces = pieces_of(what.query, what.key, what.value, tile)
        self.dtype = what.query.dtype
        self.instruction = INSTRUCTIONS[self.dtype, self.dtype]
        memory = T.alloc_buffer((stage_bytes(tile, self.pieces),), "uint8", scope="shared.dyn")
        elements = self.pieces[0].elements + STAGES * (self.pieces[1].elements + self.pieces[2].elements)
        self.shared = T.decl_buffer((elements,), storage_dtype(self.dtype), data=memory.data, scope="shared.dyn")
        self.results = T.decl_buffer((tile.bm * tile.result_stride,), "float32", data=memory.data, scope="shared.dyn")
        self.scores = registers(tile.fragments * self.scores_each, "float32")
        self.sums = registers(tile.fragments * self.sums_each, "float32")
        self.largest, self.total = (registers(2 * tile.fragments, "float32") for _ in range(2))
        self.in_registers = tile.width // self.instruction.step * 4 <= MOST_IN_REGISTERS
        self.queries = registers(tile.fragments * self.queries_each, "uint32")
        self.lane, self.warp = named(thread % WARP), named(thread // WARP)
        self.fragment_row, self.fragment_column = named(self.lane // 4), named(self.lane % 4 * 2)

    # Registers of one fragment of rows.

    @property
    def scores_each(self) -> int:
        return self.tile.bn // COLUMNS * 4

    @property
    def sums_each(self) -> int:
        return self.tile.columns // COLUMNS * 4

    @property
    def queries_each(self) -> int:
        return self.tile.width // self.instruction.step * 4 if self.in_registers else 4

    def run(self, block: Expr) -> None:
        what, tile = self.what, self.tile
        part, self.batch, number = self.walk.locate(block)
        self.elements = Elements(what, self.walk, self.around, self.batch, "float32")
        self.first_row = named(number * tile.bm)
        begin, end = self.walk.steps_of(self.around, what, part, self.batch, self.first_row)
        with unrolled(tile.fragments * self.sums_each) as i:
            T.buffer_store(self.sums, zero("float32"), [i])
        with unrolled(2 * tile.fragments) as r:
            T.buffer_store(self.largest, -infinity("float32"), [r])
            T.buffer_store(self.total, zero("float32"), [r])
        self._fetch(0, self.pieces[0], 0, self.first_row, 0, what.rows, what.width)
        with when(begin < end):
            self._fetch_step(begin)
        self._commit()
        self._wait()
        barrier()
        if self.in_registers:
            with unrolled(tile.width // self.instruction.step) as kk:
                self._load_queries(kk, kk)
        with T.serial(begin, end) as step:
            self._wait()
            barrier()
            with when(step + 1 < end):
                self._fetch_step(step + 1)
            self._commit()
            stage = named(self._stage(step))
            self._multiply_keys(stage)
            self._score(step)
            self._rescale()
            self._weigh(step)
            self._multiply_values(stage)
        self._wait()
        self._finish()

    # -- operands ----------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        if any(p.copied for p in self.pieces):
            T.evaluate(T.call_extern("void", "ts_cp_async_commit"))

    def _wait(self) -> None:
        if any(p.copied for p in self.pieces):
            T.evaluate(T.call_extern("void", "ts_cp_async_wait", 0))

    def _stage(self, step: Expr) -> Expr:
        """Return the start of a step's stage in shared memory: keys, then values."""
        query, key, value = self.pieces
        return query.elements + step % STAGES * (key.elements + value.elements)

    def _fetch_step(self, step: Expr) -> None:
        what = self.what
        stage, first = named(self._stage(step)), named(step * self.tile.bn)
        self._fetch(1, self.pieces[1], stage, first, 0, what.keys, what.width)
        self._fetch(2, self.pieces[2], stage + self.pieces[1].elements, 0, first, what.columns, what.keys)

    def _fetch(
        self, side: int, piece: Piece[Operand], start: Expr, first_row: Expr, first_k: Expr, rows: int, depth: int
    ) -> None:  # fmt: skip
        """Bring a piece from memory to shared memory, with zeros beyond the operand's `rows` and `depth`."""
        width = piece.chunk if piece.copied else 1
        units = piece.line // width
        count = piece.lines * units
        rounds = -(-count // self.tile.threads)
        with unrolled(rounds) if piece.copied else repeated(rounds) as round_:
            number = named(self.thread + round_ * self.tile.threads)
            with when(below(number, count, rounds * self.tile.threads)):
                along, across = named(number % units * width), named(number // units)
                row, k = (across, along) if piece.along_k else (along, across)
                exists = both(
                    below(first_row + row, rows, self._reached(side, "rows")),
                    below(first_k + k, depth, self._reached(side, "depth")),
                )
                place = start + piece.at(row, k)
                self._fetch_unit(piece, place, named(first_row + row), named(first_k + k), exists)

    def _reached(self, side: int, which: str) -> int:
        """Return the number of rows or steps of an operand that a walk reaches."""
        tile, walk = self.tile, self.walk
        keys = walk.steps * walk.bn
        table = {0: (walk.tiles * tile.bm, tile.width), 1: (keys, tile.width), 2: (tile.columns, keys)}
        return table[side][0 if which == "rows" else 1]

    def _fetch_unit(self, piece: Piece[Operand], place: Expr, row: Expr, k: Expr, exists: Expr | None) -> None:
        operand = piece.operand
        if piece.copied:
            buffer, position = operand.cell(self.around, self.batch, row, k)
            if exists is not None:
                exists = named(T.cast(exists, "int32"))
                position = tirx.Select(tirx.NE(exists, 0), position, tirx.IntImm(dtype_of(position), 0))
            count = 16 if exists is None else exists * 16
            target, source = T.address_of(self.shared[place]), T.address_of(buffer[position])
            T.evaluate(T.call_extern("void", "ts_cp_async_16", target, source, count))
            return
        waiting = registers(1, storage_dtype(self.dtype))
        T.buffer_store(waiting, zero(storage_dtype(self.dtype)), [0])
        with when(exists):
            value = operand.element(self.around, self.batch, row, k, "float32")
            T.buffer_store(waiting, to_storage(value, operand.dtype), [0])
        T.buffer_store(self.shared, waiting[0], [place])

    # -- GEMMs ----------------------------------------------------------------------------------------------------

    def _load_queries(self, kk: Expr, at: Expr) -> None:
        with unrolled(self.tile.fragments) as f:
            row, k = self.warp * self.tile.warp_rows + f * STEP, kk * self.instruction.step
            self._load(self.pieces[0], 0, self.queries, f * self.queries_each + at * 4, row, k, left=True)

    def _load(
        self, piece: Piece[Operand], start: Expr, target: Any, at: Expr, row: Expr, k: Expr, *, left: bool = False
    ) -> None:  # fmt: skip
        """Load four registers: one fragment of the left operand, or two of the right one, from (row, k) on.

        They are matrices 0 to 3 of eight lines: left (0, 0), (8, 0), (0, half), (8, half) as (rows, k) beyond the
        first, right (0, 0), (0, half), (8, 0), (8, half). Lanes 8 i to 8 i + 7 address the lines of matrix i.
        """
        low, high, within = self.lane // 8 % 2, self.lane // 16, self.lane % 8
        down, on = (low, high) if left else (high, low)
        along = piece.along_k
        place = (row + down * 8 + (within if along else 0), k + on * self.instruction.chunk + (0 if along else within))
        load = "ts_ldmatrix_x4" if along else "ts_ldmatrix_x4_trans"
        if along or self.instruction.itemsize == 2:
            source = T.address_of(self.shared[start + piece.at(*place)])
            T.evaluate(T.call_extern("void", load, T.address_of(target[at]), source))
        else:
            half = self.instruction.chunk
            with unrolled(4) as i:
                down, on = (i % 2, i // 2) if left else (i // 2, i % 2)
                self._load_word(piece, start, target, at + i, row + down * 8, k + on * half + self.lane % 4)
        self._round(target, at)

    def _load_word(self, piece: Piece[Operand], start: Expr, target: Any, at: Expr, row: Expr, k: Expr) -> None:
        """Load a 32-bit element, `lane // 4` rows further on."""
        place = start + piece.at(row + self.lane // 4, k)
        T.buffer_store(target, T.reinterpret("uint32", self.shared[place]), [at])

    def _round(self, target: Any, at: Expr) -> None:
        """Round four registers as the instruction requires."""
        if self.instruction.rounding:
            T.evaluate(T.call_extern("void", self.instruction.rounding, T.address_of(target[at])))

    def _mma(self, target: Any, at: Expr, left: Any, left_at: Expr, right: Any, right_at: int) -> None:
        operands = [T.address_of(target[at]), T.address_of(left[left_at]), T.address_of(right[right_at])]
        T.evaluate(T.call_extern("void", self.instruction.function, *operands))

    def _multiply_keys(self, stage: Expr) -> None:
        tile, step = self.tile, self.instruction.step
        keys = registers(4, "uint32")
        with unrolled(tile.fragments * self.scores_each) as i:
            T.buffer_store(self.scores, zero("float32"), [i])
        with unrolled(tile.width // step) as kk:
            if not self.in_registers:
                self._load_queries(kk, 0)
            left = kk * 4 if self.in_registers else 0
            with unrolled(tile.bn // STEP) as j:
                self._load(self.pieces[1], stage, keys, 0, j * STEP, kk * step)
                with unrolled(tile.fragments) as f:
                    queries, at = f * self.queries_each + left, f * self.scores_each + j * 8
                    self._mma(self.scores, at, self.queries, queries, keys, 0)
                    self._mma(self.scores, at + 4, self.queries, queries, keys, 2)

    def _multiply_values(self, stage: Expr) -> None:
        tile, step = self.tile, self.instruction.step
        start = named(stage + self.pieces[1].elements)
        weights, values = registers(4 * tile.fragments, "uint32"), registers(4, "uint32")
        with unrolled(tile.bn // step) as kk:
            with unrolled(tile.fragments) as f:
                self._weights_of_step(weights, f, kk)
            with unrolled(tile.columns // STEP) as j:
                self._load_values(start, values, j * STEP, kk * step)
                with unrolled(tile.fragments) as f:
                    at = f * self.sums_each + j * 8
                    self._mma(self.sums, at, weights, f * 4, values, 0)
                    self._mma(self.sums, at + 4, weights, f * 4, values, 2)

    def _weights_of_step(self, weights: Any, f: Expr, kk: Expr) -> None:
        """Convert exponentials to the left operand of a step of the second GEMM."""
        first = f * self.scores_each
        with unrolled(4) as i:
            if self.instruction.itemsize == 2:
                at = first + kk * 8 + i // 2 * 4 + i % 2 * 2
                value = T.call_extern("uint32", PACK[self.dtype], self.scores[at], self.scores[at + 1])
            else:
                value = T.reinterpret("uint32", self.scores[first + kk * 4 + i % 2 * 2 + i // 2])
            T.buffer_store(weights, value, [f * 4 + i])
        self._round(weights, f * 4)

    def _load_values(self, start: Expr, values: Any, row: Expr, k: Expr) -> None:
        """Load the right operand of a step of the second GEMM, with keys in the order of the weights."""
        if self.instruction.itemsize == 2:
            self._load(self.pieces[2], start, values, 0, row, k)
            return
        with unrolled(4) as i:
            self._load_word(self.pieces[2], start, values, i, row + i // 2 * 8, k + self.lane % 4 * 2 + i % 2)
        self._round(values, 0)

    # -- softmax -----------------------------------------------------------------------------------------------------

    def _local_row(self, half: Expr) -> Expr:
        """Return a thread's row of a half fragment, within the tile."""
        return self.warp * self.tile.warp_rows + self.fragment_row + half * 8

    def _row(self, half: Expr) -> Expr:
        """Return a thread's row of a half fragment, among all rows."""
        return self.first_row + self._local_row(half)

    def _score(self, step: Expr) -> None:
        """Turn dot products of queries and keys into scores; -inf after the last key."""
        if not self.elements.masked:
            return
        with unrolled(self.tile.fragments) as f, unrolled(self.tile.bn // COLUMNS) as i, unrolled(4) as e:
            key = step * self.walk.bn + i * COLUMNS + self.fragment_column + e % 2
            place = f * self.scores_each + i * 4 + e
            self.elements.score(self.scores, place, self._row(f * 2 + e // 2), key)

    def _weigh(self, step: Expr) -> None:
        """Turn exponentials into the factors of the values, where these depend on more than the score."""
        if not self.what.between.is_weighed:
            return
        with unrolled(self.tile.fragments) as f, unrolled(self.tile.bn // COLUMNS) as i, unrolled(4) as e:
            key = step * self.walk.bn + i * COLUMNS + self.fragment_column + e % 2
            place = f * self.scores_each + i * 4 + e
            with self.around.evaluator.scope():
                weight = self.around.evaluator.bind(self.scores[place])
                weight = self.elements.weight(weight, self._row(f * 2 + e // 2), key)
                T.buffer_store(self.scores, weight, [place])

    def _rescale(self) -> None:
        """Compute the exponentials of this step, and rescale earlier sums to the new largest score."""
        tile = self.tile
        newest, scale = registers(1, "float32"), registers(1, "float32")
        with unrolled(2 * tile.fragments) as r:
            first, first_sum = (r // 2 * each + r % 2 * 2 for each in (self.scores_each, self.sums_each))
            T.buffer_store(newest, self.largest[r], [0])
            with unrolled(tile.bn // COLUMNS) as i, unrolled(2) as e:
                T.buffer_store(newest, T.max(newest[0], self.scores[first + i * 4 + e]), [0])
            _over_quad(newest, 0, T.max)
            reference = Reference.of(newest[0])
            T.buffer_store(scale, reference.scale(self.largest[r]), [0])
            T.buffer_store(self.largest, newest[0], [r])
            T.buffer_store(self.total, self.total[r] * scale[0], [r])
            with when(reference.shift), unrolled(tile.bn // COLUMNS) as i, unrolled(2) as e:
                at = first + i * 4 + e
                T.buffer_store(self.scores, reference.shifted(self.scores[at]), [at])
            with unrolled(tile.bn // COLUMNS) as i, unrolled(2) as e:
                at = first + i * 4 + e
                T.buffer_store(self.scores, reference.weight(self.scores[at]), [at])
                T.buffer_store(self.total, self.total[r] + self.scores[at], [r])
            with unrolled(tile.columns // COLUMNS) as i, unrolled(2) as e:
                at = first_sum + i * 4 + e
                T.buffer_store(self.sums, self.sums[at] * scale[0], [at])

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Divide, and pass results to the sink through shared memory, neighbouring columns by neighbouring threads."""
        tile, stride = self.tile, self.tile.result_stride
        barrier()
        with unrolled(2 * tile.fragments) as r:
            _over_quad(self.total, r, lambda a, b: a + b)
            is_first = tirx.EQ(self.fragment_column, 0)
            finished = self.elements.finish(self.sink, named(self._row(r)), is_first, self.largest[r], self.total[r])
            with unrolled(tile.columns // COLUMNS) as i, unrolled(2) as e:
                total = finished(self.sums[r // 2 * self.sums_each + i * 4 + r % 2 * 2 + e])
                place = self._local_row(r) * stride + i * COLUMNS + self.fragment_column + e
                T.buffer_store(self.results, total, [place])
        barrier()
        store_results(
            self.around, self.sink, self.walk, self.batch, self.first_row, self.thread, tile.threads, self.results,
            stride,
        )  # fmt: skip


def _over_quad(values: Any, at: Expr, join: Any) -> None:
    """Combine a register over the four lanes that share a row."""
    for distance in (1, 2):
        other = T.tvm_warp_shuffle_xor(T.uint32(0xFFFFFFFF), values[at], distance, WARP, WARP)
        T.buffer_store(values, join(values[at], other), [at])
