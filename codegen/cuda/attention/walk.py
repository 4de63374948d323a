"""Partitioning of attention into blocks, code that both kernels share, and the launch that combines parts.

`result[b, r, :] = sum over keys n of weight(b, r, n) * value(b, n, :)`, weights being the softmax of scores. A block
takes a tile of query rows and walks over the keys a tile at a time; scores live in registers and shared memory only.
Rows carry the largest score so far and the sum of exponentials; sums are scaled down when a larger score occurs
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2", 2023).

Few rows and many keys (decoding) are split along the keys: each part stores its sums, its largest scores and its sums
of exponentials in temporary memory, and a second launch combines them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, immediate, storage_bits
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import CudaLaunch, Parameter, TemporaryArg, Thread
from tilestitch.codegen.cuda.attention.operands import Attended
from tilestitch.codegen.cuda.functions import call
from tilestitch.codegen.cuda.pieces import move, named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Surroundings
from tilestitch.compiler.ir.sizes import is_open, surely
from tilestitch.passes.plan.attention.operands import lanes_of_sums


@dataclass(frozen=True)
class Walk:
    """Partition of the work: `tiles` tiles of `bm` rows, the keys in `steps` tiles of `bn`, in `parts` parts."""

    bm: int
    bn: int
    tiles: int
    steps: int
    parts: int
    batch: int

    @property
    def each(self) -> int:
        """Steps of one part."""
        return -(-self.steps // self.parts)

    @property
    def blocks(self) -> int:
        return self.batch * self.tiles * self.parts

    def locate(self, block: Expr) -> tuple[Expr, Expr, Expr]:
        """Return part, batch and tile of a block. Tiles with most work come first where queries attend to few later
        keys.
        """
        part, batch, tile = unravel(block, (self.parts, self.batch, self.tiles))
        return named(part), named(batch), named(0 if surely(lambda: self.tiles <= 1) else self.tiles - 1 - tile)

    def steps_of(self, attended: Attended, part: Expr, first_row: Expr) -> tuple[Expr, Expr]:
        """Return the first step of a block and the end of its steps."""
        begin: Expr = part * self.each if self.parts > 1 else 0
        end: Expr = T.min(begin + self.each, self.steps) if self.parts > 1 else self.steps
        band = attended.band
        if band is None:
            return _index(begin), _index(end)
        if band.last is not None:
            after = T.max(first_row + (self.bm + band.last), 0)
            end = T.min(_index(end), (after + (self.bn - 1)) // self.bn)
        if band.first is not None:
            begin = T.max(_index(begin), T.max(first_row + band.first, 0) // self.bn)
        return named(_index(begin)), named(_index(end))


def _index(value: Expr) -> Expr:
    return integer(value, "int32") if isinstance(value, int) or is_open(value) else value


def walk(attended: Attended, bm: int, bn: int, parts: int) -> Walk:
    """Return the walk over tiles of bm rows by bn keys, the keys in at most `parts` parts."""
    tiles, steps = -(-attended.rows // bm), -(-attended.keys // bn)
    each = -(-steps // parts)
    return Walk(bm, bn, tiles, steps, 1 if parts == 1 else -(-steps // each), attended.batch)


BlockBody = Callable[[Surroundings, Thread, Expr, "Sink"], None]


class Sink:
    """Destination of a block's sums: the epilogue, or the memory that the combining launch reads."""

    def __init__(self, attended: Attended, parts: int, part: Expr) -> None:
        self.attended, self.parts, self.part = attended, parts, part

    def keep_statistics(self, around: Surroundings, batch: Expr, row: Expr, largest: Expr, total: Expr) -> None:
        """Store the largest score and the sum of exponentials of a row; nothing to do without parts."""
        if self.parts == 1:
            return
        a = self.attended
        place = (self.part * a.batch + batch) * a.rows + row + self.parts * a.batch * a.rows * a.columns
        T.buffer_store(around.extra, largest, [place])
        T.buffer_store(around.extra, total, [place + self.parts * a.batch * a.rows])

    def keep(self, around: Surroundings, batch: Expr, row: Expr, column: Expr, totals: Sequence[Expr]) -> None:
        """Store up to `lanes` neighbouring sums of weighted values: divided by the row's sum, unless there are
        parts.
        """
        a = self.attended
        if self.parts == 1:
            a.finish(around, batch, row, column, totals)
            return
        place = ((self.part * a.batch + batch) * a.rows + row) * a.columns + column
        own = registers(len(totals), a.acc_dtype)
        for lane, total in enumerate(totals):
            T.buffer_store(own, total, [lane])
        move(own, 0, around.extra, place, len(totals))

    @cached_property
    def lanes(self) -> int:
        """Number of neighbouring results that a thread stores at a time: 16 bytes where they are contiguous."""
        return self.attended.lanes if self.parts == 1 else lanes_of_sums(self.attended.shape)


def launches(
    attended: Attended, kind: str, walk: Walk, threads: int, body: BlockBody, shared_bytes: int
) -> tuple[CudaLaunch, ...]:
    """Return the launch of `body(around, thread, block, sink)`, and of the combining kernel if the keys are in
    parts.
    """
    group = attended.group

    def emit(around: Surroundings, thread: Thread) -> None:
        block = around.wide(thread.block[0])
        body(around, thread, block, Sink(attended, walk.parts, walk.locate(block)[0]))

    if walk.parts == 1:
        return (group.launch(kind, walk.blocks, threads, emit, shared_bytes=shared_bytes),)
    size = walk.parts * attended.batch * attended.rows * (attended.columns + 2)
    nbytes = size * storage_bits(attended.acc_dtype) // 8
    sums = Parameter(TemporaryArg("sums", nbytes), attended.acc_dtype, size)
    first = group.launch(
        kind, walk.blocks, threads, emit, inputs=group.read_before(), outputs=(), extra=sums, shared_bytes=shared_bytes
    )
    return first, _join(attended, sums, walk.parts)


THREADS_OF_JOIN = 128


def _join(attended: Attended, sums: Parameter, parts: int) -> CudaLaunch:
    """Return the launch that adds the parts of every result in a fixed order, each scaled to the overall largest score.

    A thread has as many neighbouring results as are contiguous in 16 bytes of both the sums and the results.
    """
    a = attended
    lanes = min(a.lanes, lanes_of_sums(a.shape))
    rows = a.batch * a.rows
    across = a.columns // lanes
    count, kept = rows * across, rows * a.columns
    blocks = -(-count // THREADS_OF_JOIN)

    def emit(around: Surroundings, thread: Thread) -> None:
        at = named(around.wide(thread.block[0]) * THREADS_OF_JOIN + thread.thread[0])
        with when(below(at, count, blocks * THREADS_OF_JOIN)):
            place, vector = named(at // across), named(at % across)
            largest, state = registers(1, a.acc_dtype), registers(lanes + 1, a.acc_dtype)
            T.buffer_store(largest, -infinity(a.acc_dtype), [0])
            with unrolled(parts) as part:
                T.buffer_store(largest, T.max(largest[0], around.extra[parts * kept + part * rows + place]), [0])
            reference = Reference.of(largest[0])
            for i in range(lanes + 1):
                T.buffer_store(state, zero(a.acc_dtype), [i])
            with unrolled(parts) as part:
                scale, own = registers(1, a.acc_dtype), registers(lanes, a.acc_dtype)
                T.buffer_store(scale, reference.scale(around.extra[parts * kept + part * rows + place]), [0])
                move(around.extra, (part * count + at) * lanes, own, 0, lanes)
                for i in range(lanes):
                    T.buffer_store(state, state[i] + scale[0] * own[i], [i])
                total = around.extra[parts * (kept + rows) + part * rows + place]
                T.buffer_store(state, state[lanes] + scale[0] * total, [lanes])
            batch, row = unravel(place, (a.batch, a.rows))
            batch, row = named(batch), named(row)
            for index, extent in ((batch, a.batch), (row, a.rows), (vector, across)):
                if isinstance(index, tirx.Var):
                    around.evaluator.assume(index, 0, extent)
            with around.evaluator.scope():
                flaw = a.between.flawed(around.evaluator, batch, row, state[lanes])
                over = inverse(state[lanes])
                totals = [divided(state[i], state[lanes], over, flaw) for i in range(lanes)]
                a.finish(around, batch, row, vector * lanes, totals)

    return a.group.launch("join", blocks, THREADS_OF_JOIN, emit, extra=sums)


# -- pieces of both kernels --------------------------------------------------------------------------------------------


def infinity(dtype: str) -> Expr:
    return immediate(math.inf, dtype)


def below_or_last(index: Expr, end: int, reached: int) -> Expr:
    """Return `index` clamped below `end`; indices stay below `reached`."""
    return index if surely(lambda: reached <= end) else T.min(index, end - 1)


def store_results(
    around: Surroundings, sink: Sink, walk: Walk, batch: Expr, first_row: Expr, thread: Expr, threads: int,
    results: Any, stride: int,
) -> None:  # fmt: skip
    """Pass a tile's results from shared memory to the sink, neighbouring columns by neighbouring threads."""
    what, lanes = sink.attended, sink.lanes
    while lanes > 1 and walk.bm * what.columns < lanes * threads:
        lanes //= 2
    across = what.columns // lanes
    count = walk.bm * across
    rounds = -(-count // threads)
    with repeated(rounds) as round_:
        number = named(round_ * threads + thread)
        local, vector = named(number // across), named(number % across)
        row = named(first_row + local)
        exists = both(below(number, count, rounds * threads), below(row, what.rows, walk.tiles * walk.bm))
        with when(exists):
            for index, extent in ((row, what.rows), (vector, across)):
                if isinstance(index, tirx.Var):
                    around.evaluator.assume(index, 0, extent)
            totals = registers(lanes, what.acc_dtype)
            move(results, local * stride + vector * lanes, totals, 0, lanes)
            sink.keep(around, batch, row, vector * lanes, [totals[i] for i in range(lanes)])


def finite(largest: Expr) -> Expr:
    """Return the largest score of a row, or 0 while all are -inf, so that exponentials are 0 rather than NaN."""
    dtype = str(largest.ty.dtype)
    return tirx.Select(tirx.EQ(largest, -infinity(dtype)), zero(dtype), largest)


LOG2_E = 1.4426950408889634
LARGE = 1024.0
"""Beyond this, the product of a score and log2(e) is rounded so much that weights differ noticeably from those of the
difference of two scores.
"""


@dataclass(frozen=True)
class Reference:
    """The reference of a row's scores: `largest`, or 0 while all are -inf.

    A score's weight is 2 ** (score * log2(e) - offset), a multiply-add and one instruction more. The offset is rounded,
    but equally for all weights of the row, so that the error cancels in the division by their sum. With scores like
    masks of -1e9 that error would be too large: there `shift` is true, the offset 0, and the largest score is
    subtracted from the others first (`shifted`).
    """

    largest: Expr
    offset: Expr
    shift: Expr

    @staticmethod
    def of(largest: Expr) -> Reference:
        dtype = str(largest.ty.dtype)
        base = T.bind(finite(largest))
        shift = T.bind(tirx.Not(call("fabs", base) < immediate(LARGE, dtype)))
        offset = tirx.Select(shift, zero(dtype), times_log2_e(base))
        return Reference(base, T.bind(offset), shift)

    def scale(self, before: Expr) -> Expr:
        """Return the factor for weights relative to an earlier largest score, which was -inf if there were none."""
        apart = times_log2_e(before) - self.offset
        return power_of_2(tirx.Select(self.shift, times_log2_e(before - self.largest), apart))

    def shifted(self, score: Expr) -> Expr:
        """Return the replacement of a score where `shift` is true, to compute its weight from."""
        return score - self.largest

    def weight(self, score: Expr) -> Expr:
        return power_of_2(call("fma", score, immediate(LOG2_E, str(score.ty.dtype)), -self.offset))


def times_log2_e(score: Expr) -> Expr:
    """Return the product with log2(e), rounded as an offset is: the compiler must not contract it to a multiply-add."""
    dtype = str(score.ty.dtype)
    function = "__fmul_rn" if dtype == "float32" else "__dmul_rn"
    return T.call_pure_extern(dtype, function, score, immediate(LOG2_E, dtype))


def power_of_2(exponent: Expr) -> Expr:
    """Return a power of two; for a float32 by one instruction, as accurate as the library's, with results below the
    least normal number flushed to 0.
    """
    if str(exponent.ty.dtype) == "float32":
        return T.call_pure_extern("float32", "ts_exp2", exponent)
    return call("exp2", exponent)


def inverse(weights: Expr) -> Expr:
    """Return the inverse of a row's sum of exponentials."""
    return T.bind(immediate(1.0, str(weights.ty.dtype)) / weights)


def divided(total: Expr, weights: Expr, inverse: Expr, flaw: Expr) -> Expr:
    """Return a result from its sums; rows without a positive sum of exponentials get `flaw`."""
    return tirx.Select(weights > zero(str(weights.ty.dtype)), total * inverse, flaw)
