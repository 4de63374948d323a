"""Partitioning of attention into blocks, code that both kernels share, and the launch that combines parts.

`result[b, r, :] = sum over keys n of weight(b, r, n) * value(b, n, :)`, weights being the softmax of scores. A block
takes a tile of query rows and walks over the keys a tile at a time; scores live in registers and shared memory only.
Rows carry the largest score so far and the sum of exponentials; sums are scaled down when a larger score occurs
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2", 2023).

Few rows and many keys (decoding) are split along the keys: each part stores its sums, its largest scores and its sums
of exponentials in temporary memory, and a second launch combines them. Where sizes are open, the number of parts is an
expression, and the last block of a tile of queries combines its parts; a single part is not stored.
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
from tilestitch.codegen.cuda.abi import CountersArg, CudaLaunch, Parameter, TemporaryArg, Thread
from tilestitch.codegen.cuda.attention.operands import Attended
from tilestitch.codegen.cuda.functions import call
from tilestitch.codegen.cuda.pieces import move, named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.rows.bands import last_of
from tilestitch.codegen.cuda.surroundings import Surroundings
from tilestitch.compiler.ir.sizes import is_open, surely
from tilestitch.passes.plan.attention.bounds import Bound
from tilestitch.passes.plan.attention.operands import lanes_of_sums
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES
from tilestitch.passes.plan.schedules import AttentionSchedule, OpenAttentionSchedule


@dataclass(frozen=True)
class Walk:
    """Partition of the work: `tiles` tiles of `bm` rows, the keys in `steps` tiles of `bn`, in `parts` parts.

    kept_rows: those of all parts for whose sums there is memory, if the number of parts depends on sizes, else 0.
    """

    bm: int
    bn: int
    tiles: int
    steps: int
    parts: int
    batch: int
    kept_rows: int = 0

    @property
    def each(self) -> int:
        """Steps of one part."""
        return -(-self.steps // self.parts)

    @property
    def blocks(self) -> int:
        return self.batch * self.tiles * self.parts

    @property
    def is_split(self) -> bool:
        """Whether there may be several parts."""
        return self.kept_rows > 0 or self.parts > 1

    def locate(self, block: Expr) -> tuple[Expr, Expr, Expr]:
        """Return part, batch and tile of a block. Tiles with most work come first where queries attend to few later
        keys.
        """
        part, batch, tile = unravel(block, (self.parts, self.batch, self.tiles))
        return named(part), named(batch), named(0 if surely(lambda: self.tiles <= 1) else self.tiles - 1 - tile)

    def steps_of(
        self, around: Surroundings, attended: Attended, part: Expr, batch: Expr, first_row: Expr
    ) -> tuple[Expr, Expr]:
        """Return the first step of a block and the end of its steps."""
        begin: Expr = 0
        end: Expr = _index(self.steps)
        if self.is_split:
            each = named(_index(self.each))
            begin, end = T.min(part * each, end), T.min((part + 1) * each, end)
        for bound in attended.bounds:
            key = self._bound(around, attended, bound, batch, first_row)
            if bound.is_last:
                end = named(T.min(end, (key + (self.bn - 1)) // self.bn))
            else:
                begin = named(T.max(_index(begin), key // self.bn))
        band = attended.band
        if band is None:
            return _index(begin), _index(end)
        if band.last is not None:
            after = T.max(first_row + (self.bm + band.last), 0)
            end = T.min(end, (after + (self.bn - 1)) // self.bn)
        if band.first is not None:
            begin = T.max(_index(begin), T.max(first_row + band.first, 0) // self.bn)
        return named(_index(begin)), named(end)

    def _bound(self, around: Surroundings, attended: Attended, bound: Bound, batch: Expr, first_row: Expr) -> Expr:
        """Return the key that ends those that the rows of a tile see, or the first of them."""
        row = first_row
        if bound.of_last:
            row = named(T.min(first_row + (self.bm - 1), attended.rows - 1))
        with around.evaluator.scope():
            low, high = (
                named(attended.between.operand(around.evaluator, path, batch, row)) for path in (bound.low, bound.high)
            )  # fmt: skip
            far = 1 << (61 if str(low.ty.dtype) == "int64" else 30)
            near = tirx.And(*(_is_between(-far, end, far) for end in (low, high)))
            low, high = (T.cast(end, "int64") for end in (low, high))
            key = high - low + (not bound.strict) if bound.is_last else low - high + bound.strict
            # Numbers that are not near may have overflowed for other queries and keys.
            key = tirx.Select(near, key, T.cast(attended.keys if bound.is_last else 0, "int64"))
            return named(T.cast(T.max(T.min(key, T.cast(attended.keys, "int64")), T.int64(0)), "int32"))


def _is_between(least: int, value: Expr, most: int) -> Expr:
    return tirx.And(value >= least, value <= most)


def _index(value: Expr) -> Expr:
    return integer(value, "int32") if isinstance(value, int) or is_open(value) else value


def walk(attended: Attended, schedule: AttentionSchedule) -> Walk:
    """Return the walk over the tiles of a schedule."""
    bm, bn = schedule.tile.bm, schedule.tile.bn
    tiles, steps = -(-attended.rows // bm), -(-attended.keys // bn)
    kept_rows = schedule.kept_rows if isinstance(schedule, OpenAttentionSchedule) else 0
    return Walk(bm, bn, tiles, steps, attended.shape.parts(schedule), attended.batch, kept_rows)


BlockBody = Callable[[Surroundings, Thread, Expr, "Sink"], None]


KNOWN_TOGETHER, OPEN_TOGETHER = 8, 4
"""Parts that a thread loads at the same time. Where their number is open, the kernel does other work, too, and more
would cost blocks per multiprocessor.
"""


@dataclass(frozen=True)
class Kept:
    """Memory of the sums of `rows` rows, then of their largest scores and of their sums of exponentials.

    `row(part)`: where it has those of one row of queries.
    """

    attended: Attended
    buffer: Any
    rows: Expr
    row: Callable[[Expr], Expr]

    def sums(self, part: Expr, column: Expr) -> Expr:
        return self.row(part) * self.attended.columns + column

    def largest(self, part: Expr) -> Expr:
        return self.rows * self.attended.columns + self.row(part)

    def total(self, part: Expr) -> Expr:
        return self.rows * (self.attended.columns + 1) + self.row(part)

    def combined(self, around: Surroundings, parts: Expr, batch: Expr, row: Expr, column: Expr, lanes: int) -> None:
        """Add the parts of neighbouring results in a fixed order, each scaled to the overall largest score, and run the
        epilogue.
        """
        a = self.attended
        largest, state = registers(1, a.acc_dtype), registers(lanes + 1, a.acc_dtype)
        T.buffer_store(largest, -infinity(a.acc_dtype), [0])
        for i in range(lanes + 1):
            T.buffer_store(state, zero(a.acc_dtype), [i])
        together = min(parts, KNOWN_TOGETHER) if isinstance(parts, int) else OPEN_TOGETHER
        rounds = -(-parts // together) if isinstance(parts, int) else named((parts + (together - 1)) // together)
        with repeated(rounds) as round_:
            self._add(largest, state, parts, round_, column, (together, lanes))
        with around.evaluator.scope():
            flaw = a.between.flawed(around.evaluator, batch, row, state[lanes])
            over = inverse(state[lanes])
            totals = [divided(state[i], state[lanes], over, flaw) for i in range(lanes)]
            a.finish(around, batch, row, column, totals)

    def _add(
        self, largest: Any, state: Any, parts: Expr, round_: Expr, column: Expr, extents: tuple[int, int]
    ) -> None:  # fmt: skip
        """Add some parts, which are loaded at the same time."""
        (together, lanes), dtype = extents, self.attended.acc_dtype
        whole = isinstance(parts, int) and parts % together == 0
        highest, totals, sums = (registers(together * each, dtype) for each in (1, 1, lanes))
        newest, scale = registers(1, dtype), registers(1, dtype)
        with unrolled(together) as i:
            part = named(round_ * together + i)
            T.buffer_store(highest, -infinity(dtype), [i])
            T.buffer_store(totals, zero(dtype), [i])
            with unrolled(lanes) as lane:
                T.buffer_store(sums, zero(dtype), [i * lanes + lane])
            with when(None if whole else part < parts):
                T.buffer_store(highest, self.buffer[self.largest(part)], [i])
                T.buffer_store(totals, self.buffer[self.total(part)], [i])
                move(self.buffer, self.sums(part, column), sums, i * lanes, lanes)
        T.buffer_store(newest, largest[0], [0])
        with unrolled(together) as i:
            T.buffer_store(newest, T.max(newest[0], highest[i]), [0])
        reference = Reference.of(newest[0])
        T.buffer_store(scale, reference.scale(largest[0]), [0])
        for lane in range(lanes + 1):
            T.buffer_store(state, state[lane] * scale[0], [lane])
        with unrolled(together) as i:
            T.buffer_store(scale, reference.scale(highest[i]), [0])
            for lane in range(lanes):
                T.buffer_store(state, state[lane] + scale[0] * sums[i * lanes + lane], [lane])
            T.buffer_store(state, state[lanes] + scale[0] * totals[i], [lanes])
        T.buffer_store(largest, newest[0], [0])


class Sink:
    """Destination of a block's sums: the epilogue, or, of one of several parts, the memory that these are combined
    from. `kept(batch, row)`: where that is. `several`: whether there are several parts; known when compiling, or not.
    """

    def __init__(
        self, attended: Attended, part: Expr, several: Expr | bool, kept: Callable[[Expr, Expr], Kept] | None
    ) -> None:
        self.attended, self.part, self.several, self.kept = attended, part, several, kept

    def keep_statistics(self, around: Surroundings, batch: Expr, row: Expr, largest: Expr, total: Expr) -> None:
        """Store the largest score and the sum of exponentials of a row, if there are several parts."""
        if self.kept is None:
            return
        with when(None if self.several is True else self.several):
            kept = self.kept(batch, row)
            T.buffer_store(around.extra, largest, [kept.largest(self.part)])
            T.buffer_store(around.extra, total, [kept.total(self.part)])

    def keep(self, around: Surroundings, batch: Expr, row: Expr, column: Expr, totals: Sequence[Expr]) -> None:
        """Store up to `lanes` neighbouring sums of weighted values: divided by the row's sum, unless there are several
        parts.
        """
        a = self.attended
        if self.several is not True:
            with when(None if self.kept is None else tirx.Not(self.several)):
                a.finish(around, batch, row, column, totals)
        if self.kept is None:
            return
        with when(None if self.several is True else self.several):
            own = registers(len(totals), a.acc_dtype)
            for lane, total in enumerate(totals):
                T.buffer_store(own, total, [lane])
            move(own, 0, around.extra, self.kept(batch, row).sums(self.part, column), len(totals))

    @cached_property
    def lanes(self) -> int:
        """Number of neighbouring results that a thread stores at a time: 16 bytes where they are contiguous."""
        a = self.attended
        if self.kept is None:
            return a.lanes
        return lanes_of_sums(a.shape) if self.several is True else min(a.lanes, lanes_of_sums(a.shape))


def launches(
    attended: Attended, kind: str, walk: Walk, threads: int, body: BlockBody, shared_bytes: int
) -> tuple[CudaLaunch, ...]:
    """Return the launch of `body(around, thread, block, sink)`, and of the combining kernel if the keys are in a known
    number of parts.
    """
    group = attended.group
    if walk.kept_rows:
        return (_split_at_run_time(attended, kind, walk, threads, body, shared_bytes),)

    def emit(around: Surroundings, thread: Thread) -> None:
        block = around.wide(thread.block[0])
        kept = _of_all_rows(attended, around, walk) if walk.is_split else None
        body(around, thread, block, Sink(attended, walk.locate(block)[0], walk.is_split, kept))

    if not walk.is_split:
        return (group.launch(kind, walk.blocks, threads, emit, shared_bytes=shared_bytes),)
    sums = _memory(attended, walk.parts * attended.batch * attended.rows)
    first = group.launch(
        kind, walk.blocks, threads, emit, inputs=group.read_before(), outputs=(), extra=sums, shared_bytes=shared_bytes
    )
    return first, _join(attended, sums, walk)


def _memory(attended: Attended, rows: int) -> Parameter:
    size = rows * (attended.columns + 2)
    nbytes = size * storage_bits(attended.acc_dtype) // 8
    return Parameter(TemporaryArg("sums", nbytes), attended.acc_dtype, size)


def _of_all_rows(attended: Attended, around: Surroundings, walk: Walk) -> Callable[[Expr, Expr], Kept]:
    """Return where the sums of a row are, if there is memory for all rows of all parts."""
    rows = attended.batch * attended.rows

    def kept(batch: Expr, row: Expr) -> Kept:
        place = named(batch * attended.rows + row)
        return Kept(attended, around.extra, walk.parts * rows, lambda part: part * rows + place)

    return kept


def _split_at_run_time(
    attended: Attended, kind: str, walk: Walk, threads: int, body: BlockBody, shared_bytes: int
) -> CudaLaunch:
    """Return the launch of tiles of queries, whose keys are split into an open number of parts: the last block of a
    tile to store its sums combines them.
    """
    words = walk.kept_rows // walk.bm
    counters = Parameter(CountersArg(COUNTER_BYTES * words), "uint32", words)

    def emit(around: Surroundings, thread: Thread) -> None:
        block = around.wide(thread.block[0])
        part, batch, tile = walk.locate(block)
        number, tiles = named(batch * _index(walk.tiles) + tile), named(_index(walk.batch * walk.tiles))
        parts = named(_index(walk.parts))

        def kept(batch: Expr, row: Expr) -> Kept:
            local = named(row % walk.bm)
            return Kept(
                attended, around.extra, walk.kept_rows, lambda part: (part * tiles + number) * walk.bm + local
            )  # fmt: skip

        sink = Sink(attended, part, parts > 1, kept)
        body(around, thread, block, sink)
        with when(parts > 1), when(last_of(around.counters[number], parts)):

            def combine(row: Expr, _: Expr, column: Expr, lanes: int) -> None:
                kept(batch, row).combined(around, parts, batch, row, column, lanes)

            over_tile(around, attended, walk, named(tile * walk.bm), thread.thread[0], threads, sink.lanes, combine)

    return attended.group.launch(
        kind, walk.blocks, threads, emit, extra=_memory(attended, walk.kept_rows), counters=counters,
        shared_bytes=shared_bytes,
    )  # fmt: skip


THREADS_OF_JOIN = 128


def _join(attended: Attended, sums: Parameter, walk: Walk) -> CudaLaunch:
    """Return the launch that combines the parts of every result.

    A thread has as many neighbouring results as are contiguous in 16 bytes of both the sums and the results.
    """
    a = attended
    lanes = min(a.lanes, lanes_of_sums(a.shape))
    across = a.columns // lanes
    count = a.batch * a.rows * across
    blocks = -(-count // THREADS_OF_JOIN)

    def emit(around: Surroundings, thread: Thread) -> None:
        at = named(around.wide(thread.block[0]) * THREADS_OF_JOIN + thread.thread[0])
        with when(below(at, count, blocks * THREADS_OF_JOIN)):
            place, vector = named(at // across), named(at % across)
            batch, row = unravel(place, (a.batch, a.rows))
            batch, row = named(batch), named(row)
            for index, extent in ((batch, a.batch), (row, a.rows), (vector, across)):
                if isinstance(index, tirx.Var):
                    around.evaluator.assume(index, 0, extent)
            kept = _of_all_rows(a, around, walk)(batch, row)
            kept.combined(around, walk.parts, batch, row, vector * lanes, lanes)

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
    """Pass a tile's results from shared memory to the sink."""

    def store(row: Expr, local: Expr, column: Expr, lanes: int) -> None:
        totals = registers(lanes, sink.attended.acc_dtype)
        move(results, local * stride + column, totals, 0, lanes)
        sink.keep(around, batch, row, column, [totals[i] for i in range(lanes)])

    over_tile(around, sink.attended, walk, first_row, thread, threads, sink.lanes, store)


def over_tile(
    around: Surroundings, what: Attended, walk: Walk, first_row: Expr, thread: Expr, threads: int, lanes: int,
    emit: Callable[[Expr, Expr, Expr, int], None],
) -> None:  # fmt: skip
    """Emit `emit(row, row within the tile, column, lanes)` for every up to `lanes` neighbouring results of a tile,
    neighbouring columns by neighbouring threads.
    """
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
            emit(row, local, vector * lanes, lanes)


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
