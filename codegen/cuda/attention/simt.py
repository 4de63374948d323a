"""Attention on the ordinary arithmetic units: any floats, any layout; fp32 is fp32.

Sixteen neighbouring threads share some query rows: each has every sixteenth key of a tile, then a part of the result's
columns. Queries, keys, values and weights are in shared memory; weights pass through it from the threads with the
scores to those that need whole rows of weights.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, storage_bits
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
from tilestitch.codegen.cuda.gemm.indexed import Operand
from tilestitch.codegen.cuda.pieces import named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Surroundings
from tilestitch.passes.plan.attention.tiles import ACROSS, QUAD, AttentionSimtTile

WARP = 32


def emit_simt(what: Attended, tile: AttentionSimtTile, walk: Walk) -> tuple[CudaLaunch, ...]:
    """Return the launches for a given tile and walk."""

    def body(around: Surroundings, thread: Thread, block: Expr, sink: Sink) -> None:
        _Block(what, tile, walk, around, thread.thread[0], sink).run(block)

    return launches(what, "attention_simt", walk, tile.threads, body, tile.shared_bytes)


class _Block:
    """Emitter of one block's code: its methods share indices and buffers."""

    def __init__(
        self, what: Attended, tile: AttentionSimtTile, walk: Walk, around: Surroundings, thread: Expr, sink: Sink
    ) -> None:  # fmt: skip
        self.what, self.tile, self.walk, self.around, self.sink = what, tile, walk, around, sink
        self.thread = thread
        self.dtype = what.acc_dtype
        memory = T.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn")
        self.shared = T.decl_buffer((tile.offsets[-1],), self.dtype, data=memory.data, scope="shared.dyn")
        self.across, self.first = named(thread % ACROSS), named(thread // ACROSS * tile.rows)
        self.scores = registers(tile.rows * tile.bn // ACROSS, self.dtype)
        self.sums = registers(tile.rows * tile.value_line // ACROSS, self.dtype)
        self.largest, self.total = registers(tile.rows, self.dtype), registers(tile.rows, self.dtype)

    @property
    def keys_each(self) -> int:
        """Keys of a thread."""
        return self.tile.bn // ACROSS

    @property
    def columns_each(self) -> int:
        return self.tile.value_line // ACROSS

    def run(self, block: Expr) -> None:
        what, tile = self.what, self.tile
        queries, keys, values, _, _ = tile.offsets
        part, self.batch, number = self.walk.locate(block)
        self.elements = Elements(what, self.walk, self.around, self.batch, self.dtype)
        self.first_row = named(number * tile.bm)
        begin, end = self.walk.steps_of(self.around, what, part, self.batch, self.first_row)
        with unrolled(self.tile.rows * self.columns_each) as i:
            T.buffer_store(self.sums, zero(self.dtype), [i])
        with unrolled(self.tile.rows) as r:
            T.buffer_store(self.largest, -infinity(self.dtype), [r])
            T.buffer_store(self.total, zero(self.dtype), [r])
        reached = self.walk.tiles * tile.bm
        self._bring(what.query, queries, tile.line, (tile.bm, tile.width), self.first_row, what.rows, reached)
        with T.serial(begin, end) as step:
            first, reached = named(step * tile.bn), self.walk.steps * tile.bn
            barrier()
            self._bring(what.key, keys, tile.line, (tile.bn, tile.width), first, what.keys, reached)
            self._bring_values(values, first, reached)
            barrier()
            self._multiply_keys()
            self._score(step)
            self._rescale(step)
            barrier()
            self._multiply_values()
        self._finish()

    # -- operands ----------------------------------------------------------------------------------------------------

    def _bring(
        self, operand: Operand, start: int, line: int, extents: tuple[int, int], first: Expr, rows: int, reached: int
    ) -> None:  # fmt: skip
        """Bring rows of queries or keys to shared memory, with zeros after the last one and beyond their width."""
        count, width = extents
        padded = -(-width // QUAD) * QUAD
        vector = operand.dtype == "float32" == self.dtype and operand.contiguous == "k" and operand.vector() == QUAD
        units = padded // QUAD if vector else padded
        rounds = -(-count * units // self.tile.threads)
        with repeated(rounds) as round_:
            number = named(round_ * self.tile.threads + self.thread)
            with when(below(number, count * units, rounds * self.tile.threads)):
                row, unit = (number // units, number % units)
                if operand.contiguous != "k":
                    row, unit = number % count, number // count
                row, k = named(row), named(unit * QUAD if vector else unit)
                exists = both(below(first + row, rows, reached), below(k, width, padded))
                self._bring_unit(operand, start + row * line + k, first + row, k, exists, QUAD if vector else 1)

    def _bring_unit(self, operand: Operand, at: Expr, row: Expr, k: Expr, exists: Expr | None, width: int) -> None:
        waiting = registers(width, self.dtype)
        with unrolled(width) as lane:
            T.buffer_store(waiting, zero(self.dtype), [lane])
        with when(exists):
            if width == 1:
                value = operand.element(self.around, self.batch, named(row), named(k), self.dtype)
                T.buffer_store(waiting, value, [0])
            else:
                buffer, position = operand.cell(self.around, self.batch, row, k)
                # As a multiple of the width, so that TVM recognises the alignment and emits one access.
                aligned = named(position // width) * width
                T.buffer_store(waiting, buffer[T.ramp(aligned, 1, width)], [T.ramp(0, 1, width)])
        with unrolled(width) as lane:
            T.buffer_store(self.shared, waiting[lane], [at + lane])

    def _bring_values(self, start: int, first: Expr, reached: int) -> None:
        """Bring a tile of values as [key, column], with zeros after the last key and column."""
        what, line, bn = self.what, self.tile.value_line, self.tile.bn
        operand = what.value
        rounds = -(-bn * line // self.tile.threads)
        with repeated(rounds) as round_:
            number = named(round_ * self.tile.threads + self.thread)
            with when(below(number, bn * line, rounds * self.tile.threads)):
                along_columns = operand.contiguous == "row"
                key = named(number // line if along_columns else number % bn)
                column = named(number % line if along_columns else number // bn)
                exists = both(below(first + key, what.keys, reached), below(column, what.columns, line))
                self._bring_unit(operand, start + key * line + column, column, first + key, exists, 1)

    # -- GEMMs ----------------------------------------------------------------------------------------------------

    def _load(self, target: Any, at: Expr, place: Expr, width: int) -> None:
        """Load neighbours in shared memory to registers."""
        if width > 1 and storage_bits(self.dtype) == 32:
            T.buffer_store(target, self.shared[T.ramp(place, 1, width)], [T.ramp(at, 1, width)])
            return
        with unrolled(width) as lane:
            T.buffer_store(target, self.shared[place + lane], [at + lane])

    def _multiply_keys(self) -> None:
        tile, count = self.tile, self.keys_each
        queries, keys = registers(tile.rows * QUAD, self.dtype), registers(count * QUAD, self.dtype)
        with unrolled(self.tile.rows * count) as i:
            T.buffer_store(self.scores, zero(self.dtype), [i])
        with repeated(-(-tile.width // QUAD)) as quad:
            with unrolled(self.tile.rows) as r:
                self._load(queries, r * QUAD, (self.first + r) * tile.line + quad * QUAD, QUAD)
            with unrolled(count) as j:
                place = tile.offsets[1] + (self.across + j * ACROSS) * tile.line + quad * QUAD
                self._load(keys, j * QUAD, place, QUAD)
            with unrolled(self.tile.rows) as r, unrolled(count) as j, unrolled(QUAD) as k:
                total = self.scores[r * count + j] + queries[r * QUAD + k] * keys[j * QUAD + k]
                T.buffer_store(self.scores, total, [r * count + j])

    def _multiply_values(self) -> None:
        tile, each, vector = self.tile, self.columns_each, self.tile.vector
        _, _, values_at, weights_at, _ = tile.offsets
        weights, values = registers(tile.rows * QUAD, self.dtype), registers(vector, self.dtype)
        with repeated(tile.bn // QUAD) as quad:
            with unrolled(self.tile.rows) as r:
                self._load(weights, r * QUAD, weights_at + (self.first + r) * tile.weight_line + quad * QUAD, QUAD)
            with unrolled(QUAD) as k, unrolled(each // vector) as j:
                place = values_at + (quad * QUAD + k) * tile.value_line + (j * ACROSS + self.across) * vector
                self._load(values, 0, place, vector)
                with unrolled(self.tile.rows) as r, unrolled(vector) as lane:
                    at = r * each + j * vector + lane
                    T.buffer_store(self.sums, self.sums[at] + weights[r * QUAD + k] * values[lane], [at])

    # -- softmax -----------------------------------------------------------------------------------------------------

    def _row(self, r: Expr) -> Expr:
        return self.first_row + self.first + r

    def _score(self, step: Expr) -> None:
        """Turn dot products of queries and keys into scores; -inf after the last key."""
        if not self.elements.masked:
            return
        with unrolled(self.tile.rows) as r, unrolled(self.keys_each) as j:
            key = step * self.tile.bn + j * ACROSS + self.across
            self.elements.score(self.scores, r * self.keys_each + j, self._row(r), key)

    def _rescale(self, step: Expr) -> None:
        """Compute the exponentials of this step, and rescale earlier sums to the new largest score.

        The factors of the values go to shared memory.
        """
        what, tile, count = self.what, self.tile, self.keys_each
        scale, newest = registers(1, self.dtype), registers(1, self.dtype)
        with unrolled(self.tile.rows) as r:
            T.buffer_store(newest, self.largest[r], [0])
            with unrolled(count) as j:
                T.buffer_store(newest, T.max(newest[0], self.scores[r * count + j]), [0])
            _over_row(newest, 0, T.max)
            reference = Reference.of(newest[0])
            T.buffer_store(scale, reference.scale(self.largest[r]), [0])
            T.buffer_store(self.largest, newest[0], [r])
            T.buffer_store(self.total, self.total[r] * scale[0], [r])
            with when(reference.shift), unrolled(count) as j:
                T.buffer_store(self.scores, reference.shifted(self.scores[r * count + j]), [r * count + j])
            with unrolled(count) as j:
                at = r * count + j
                T.buffer_store(self.scores, reference.weight(self.scores[at]), [at])
                T.buffer_store(self.total, self.total[r] + self.scores[at], [r])
                with self.around.evaluator.scope():
                    weight = self.around.evaluator.bind(self.scores[at])
                    if what.between.is_weighed:
                        key = step * tile.bn + j * ACROSS + self.across
                        weight = self.elements.weight(weight, self._row(r), key)
                    place = tile.offsets[3] + (self.first + r) * tile.weight_line + j * ACROSS + self.across
                    T.buffer_store(self.shared, weight, [place])
            with unrolled(self.columns_each) as i:
                at = r * self.columns_each + i
                T.buffer_store(self.sums, self.sums[at] * scale[0], [at])

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        tile, each = self.tile, self.columns_each
        barrier()
        with unrolled(self.tile.rows) as r:
            _over_row(self.total, r, lambda a, b: a + b)
            finished = self.elements.finish(
                self.sink, named(self._row(r)), tirx.EQ(self.across, 0), self.largest[r], self.total[r]
            )
            with unrolled(each // tile.vector) as j, unrolled(tile.vector) as lane:
                total = finished(self.sums[r * each + j * tile.vector + lane])
                place = (self.first + r) * tile.value_line + (j * ACROSS + self.across) * tile.vector + lane
                T.buffer_store(self.shared, total, [place])
        barrier()
        store_results(
            self.around, self.sink, self.walk, self.batch, self.first_row, self.thread, tile.threads, self.shared,
            tile.value_line,
        )  # fmt: skip


def _over_row(values: Any, at: Expr, join: Any) -> None:
    """Combine a register over the threads that share rows."""
    for distance in (1, 2, 4, 8):
        other = T.tvm_warp_shuffle_xor(T.uint32(0xFFFFFFFF), values[at], distance, WARP, WARP)
        T.buffer_store(values, join(values[at], other), [at])
