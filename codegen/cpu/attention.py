"""Attention groups on CPUs: a task computes some queries of one head, from scores to results.

A task packs keys and values of its head into its workspace, and then takes a few queries at a time, a block. Both GEMMs
are those of `gemm.py`: the first leaves the block's scores in the workspace, where they stay in the nearest caches,
then every row is replaced by exponentials and reduced to their sum, and the second GEMM reads these as its left
operand. Results are divided by the sums as they are stored. Keys that no row of the block attends to are skipped in all
three.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import accumulate

import numpy as np
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers, vecmath
from tilestitch.codegen.compute.attention import Between, as_dtype
from tilestitch.codegen.compute.dtypes import Expr, from_storage, immediate, storage_dtype, to_storage, widen
from tilestitch.codegen.compute.evaluator import Source as ReadElement
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.gemm import Epilogue, GemmEmitter, Window, emit_gemm
from tilestitch.codegen.cpu.contraction.matrix_tiles import TileEmitter, configured
from tilestitch.codegen.cpu.contraction.panels import LoadedOperand, PackedOperand, pack_at_run_time
from tilestitch.codegen.cpu.contraction.words import pack_words
from tilestitch.compiler.ir.graph import Value
from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.compiler.ir.types import compute_dtype
from tilestitch.passes.plan.attention.hidden import may_hide
from tilestitch.passes.plan.attention.mask_band import band_of, same_inside
from tilestitch.passes.plan.attention.operands import Source
from tilestitch.passes.plan.cpu.attention import AttentionPlan
from tilestitch.passes.plan.cpu.gemm import GemmPlan
from tilestitch.passes.plan.cpu.isa import TILE_ROWS
from tilestitch.passes.plan.cpu.tiling import FEW, OverlappingSplit

from .abi import KernelLaunch
from .few_queries import Head, emit_few_queries
from .shown_keys import ShownKeys
from .surroundings import Operands, Surroundings


def lower_attention(group: Operands, plan: AttentionPlan) -> KernelLaunch:
    """Return the launch of an attention group."""

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        tiles = any(gemm.multiplies_tiles for gemm in (plan.first, plan.second))
        with configured(scratch, plan.scratch_bytes - plan.shapes_bytes) if tiles else nullcontext():
            _Task(group, plan, around, scratch).run(task)

    return group.launch("attention", plan.tasks, plan.scratch_bytes, None, _no_matrix, emit)


def _no_matrix(data: np.ndarray) -> np.ndarray:
    raise AssertionError("attention packs no constant")


_Range = tuple[tuple[Expr, Expr], Mapping[Value, float]]
"""Keys from a first one to an end, and the constants that some masks are for all of them."""


def _steps(gemm: GemmPlan, keys: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
    """Return the reduction steps over keys from a first one, at the beginning of a step, to an end."""
    group = gemm.neighbours
    if gemm.multiplies_tiles:
        whole = group * TILE_ROWS
        return keys[0] // group, (keys[1] + (whole - 1)) // whole * TILE_ROWS
    return keys if group == 1 else (keys[0] // group, (keys[1] + (group - 1)) // group)


def _emitter(gemm: GemmPlan) -> type[GemmEmitter]:
    return TileEmitter if gemm.multiplies_tiles else GemmEmitter


class _Task:
    """Emitter of one task: its parts share indices and buffers."""

    def __init__(self, group: Operands, plan: AttentionPlan, around: Surroundings, scratch: Expr) -> None:
        self.group, self.plan, self.around = group, plan, around
        softmax = group.roles.softmax
        assert softmax is not None
        self.softmax = softmax
        self.band = band_of(softmax)
        self.seen: tuple[Expr, Expr] = (0, softmax.keys)
        self.shown: ShownKeys | None = None
        self.dtype = plan.shape.acc_dtype
        self.between = Between(group.roles, softmax.queries, self.dtype)
        self.same = same_inside(softmax, self.band) if self.band is not None else {}
        self.lanes = plan.schedule.scores.lanes
        lead = softmax.matmul.output.shape[:-2]
        self.query = Source(group.nodes, softmax.query, lead)
        self.key = Source(group.nodes, softmax.key, lead)
        self.value = Source(group.nodes, group.anchor.inputs[1], group.result.shape[:-2])
        starts = [0, *accumulate(plan.pieces_bytes)]
        rows = plan.blocks.largest
        self.scores = mk.scratch_buffer(scratch, starts[0], (rows, plan.stride), self.dtype, "scores")
        self.factors = mk.scratch_buffer(scratch, starts[1], (rows,), self.dtype, "factors")
        self.keys, self.values = (
            mk.scratch_buffer(scratch, start, gemm.packing().shape, storage_dtype(gemm.shape.b_dtype), name)
            for start, gemm, name in zip(starts[2:], (plan.first, plan.second), ("keys", "values"))
        )
        self.queries = mk.scratch_buffer(scratch, starts[2], (rows, plan.shape.width), self.dtype, "queries")
        self.weights = None
        if plan.narrow_weights:
            narrow = storage_dtype(plan.shape.weights_dtype)
            self.weights = mk.scratch_buffer(scratch, starts[5], plan.weights_shape, narrow, "weights")
        pointer = tirx.Var("workspace", PointerType(PrimType("uint8")))
        T.bind(tirx.call_intrin(pointer.ty, "tirx.handle_add_byte_offset", scratch, starts[4]), var=pointer)
        self.workspace = pointer

    def run(self, task: Expr) -> None:
        plan = self.plan
        task = T.bind(T.cast(task, "int64"))
        self.head = T.bind(task // plan.parts)
        if not plan.in_place:
            self._packed(task)
            return
        if not is_open(plan.shape.queries):
            self._in_place()
            return
        with T.If(integer(plan.shape.queries, "int64") <= plan.in_place):
            with T.Then():
                self._in_place()
            with T.Else():
                self._packed(task)

    def _packed(self, task: Expr) -> None:
        plan = self.plan
        # The last queries of a causal head attend to the most keys: they come first.
        part = plan.parts - 1 - task % plan.parts
        first = T.bind(part * plan.per_task)
        last = T.bind(T.min(first + plan.per_task, plan.blocks.parts))
        first_row = T.bind(mk.start_of(plan.blocks, first))
        rows = T.bind(mk.start_of(plan.blocks, last) - first_row)
        if is_open(plan.shape.queries) or is_open(plan.shape.keys):  # so no band is known
            self.shown = self._shown()
            if self.shown is not None:
                self.seen = self.shown.of(first_row, rows, self.seen)
        self._pack(self._seen(first_row, rows))
        if isinstance(plan.blocks, OverlappingSplit):
            self._overlapping(plan.blocks, first_row, rows)
            return
        mk.for_each_part(
            plan.blocks, first, last,
            lambda block, size: self._block(mk.start_of(plan.blocks, block), size, lambda emit: emit(size)),
        )  # fmt: skip

    def _overlapping(self, blocks: OverlappingSplit, first_row: Expr, rows: Expr) -> None:
        """Emit blocks of a task's rows, large ones first. Where the last one of a size would end after the last row, it
        ends with it, so that some rows get the same results twice.
        """
        sizes = [size for size, _ in blocks.sizes()]
        large, few = sizes[0], min(sizes[0], FEW)
        place, end = T.alloc_buffer((1,), "int64", scope="local"), T.bind(first_row + rows)
        T.buffer_store(place, first_row, [0])
        with T.While(place[0] < end):
            rest = T.bind(end - place[0])
            # More than two small blocks take longer than a large one.
            fits = tirx.Or(rest >= large, tirx.And(rows >= large, rest > 2 * (few if few < large else 0)))
            count = T.bind(T.Select(fits, T.int64(large), T.Select(rows >= few, T.int64(few), T.int64(1))))
            start = T.bind(T.min(place[0], end - count))

            def each(emit: Callable[[int], None], count: Expr = count) -> None:
                for size in sizes:
                    with T.If(tirx.EQ(count, T.int64(size))), T.Then():
                        emit(size)

            self._block(start, count, each)
            T.buffer_store(place, start + count, [0])

    def _in_place(self) -> None:
        """Compute all queries of the head without packing its keys and values."""
        plan, dtype = self.plan, self.dtype
        query, key, value = plan.shape.transposed
        self.first_row = T.int64(0)
        shown = self._shown()
        keep = self._keeping({})
        emit_few_queries(Head(
            plan, self.lanes,
            lambda row, k: widen(self._load(self.query, row, k, query), plan.shape.query_dtype, dtype),
            lambda n, k: widen(self._load(self.key, n, k, key), plan.shape.key_dtype, dtype),
            lambda n, c: widen(self._load(self.value, n, c, value), plan.shape.value_dtype, dtype),
            lambda row, n, dot: keep(0, row, n, dot), lambda row: self._softmax(row, 0, self.softmax.keys),
            lambda row, column, total: self._finish(0, row, column, total),
            None if shown is None else lambda row, first: shown.none_of(row, first),
            self.scores, self.queries,
        ))  # fmt: skip

    def _shown(self) -> ShownKeys | None:
        """Return what masks show of the keys; None if they hide none."""
        if not may_hide(self.group.roles):
            return None
        return ShownKeys(
            self.between, self.around.evaluator, self.head, self.lanes, self.plan.columns, self.dtype
        )  # fmt: skip

    def _pack(self, seen: tuple[Expr, Expr]) -> None:
        """Pack the keys and values that the task's queries attend to."""
        plan = self.plan
        _, key, value = plan.shape.transposed
        columns = plan.columns
        keys = LoadedOperand(lambda b, k, n: self._load(self.key, n, k, key), "n" if key else "k")
        some = seen[0] // columns, (seen[1] + (columns - 1)) // columns
        self._pack_operand(plan.first, keys, self.keys, plan.first.shape.k, some, (0, plan.first.steps))
        values = LoadedOperand(lambda b, k, n: self._load(self.value, k, n, value), "k" if value else "n")
        steps = _steps(plan.second, seen)
        self._pack_operand(plan.second, values, self.values, self.softmax.keys, (0, plan.second.panels), steps)

    def _pack_operand(
        self, gemm: GemmPlan, operand: LoadedOperand, buffer: Expr, k: Size, some: tuple[Expr, Expr],
        steps: tuple[Expr, Expr],
    ) -> None:  # fmt: skip
        """Pack some steps of some panels of a right operand of `k` elements along the reduction."""
        if gemm.dot is not None:
            pack_words(operand, gemm.dot, k, gemm.shape.n, gemm.tile, some, steps, buffer)
            return
        pack_at_run_time(operand, gemm.shape.n, gemm.tile, some, steps, buffer, self.dtype)

    def _block(self, first_row: Expr, count: Expr, each: Callable[[Callable[[int], None]], None]) -> None:
        """Emit a block of `count` rows; `each(emit)` emits `emit(size)` for its possible sizes."""
        self.first_row = T.bind(first_row)
        seen = self._seen(self.first_row, count)
        if self.shown is not None:
            seen = self.shown.of(self.first_row, count, seen)
        each(lambda size: self._scores_of(size, seen))
        with mk.serial(0, count) as row:
            self._softmax(row, *seen)
        each(lambda size: self._results_of(size, seen))

    def _scores_of(self, count: int, seen: tuple[Expr, Expr]) -> None:
        gemm, query = self.plan.gemms(count)[0], self.plan.shape.transposed[0]
        for keys, known in self._ranges(seen, count):
            emit_gemm(
                gemm, lambda b, row, k: self._load(self.query, self.first_row + row, k, query),
                PackedOperand(self.keys), self._keeping(known), T.int64(0), self.workspace,
                Window(keys, (0, gemm.steps)), _emitter(gemm),
            )  # fmt: skip

    def _results_of(self, count: int, seen: tuple[Expr, Expr]) -> None:
        gemm = self.plan.gemms(count)[1]
        emit_gemm(
            gemm, lambda b, row, k: self._weight(row, k), PackedOperand(self.values), self._finish, T.int64(0),
            self.workspace, Window((0, gemm.shape.n), _steps(gemm, seen)), _emitter(gemm),
        )  # fmt: skip

    def _weight(self, row: Expr, key: Expr) -> Expr:
        """Return the left operand of the second GEMM."""
        if self.weights is None:
            return self.scores[row, key]
        if self.plan.second.multiplies_tiles:
            return self.weights[row, key]
        return from_storage(self.weights[row, key], self.plan.shape.weights_dtype)

    def _seen(self, row: Expr, count: Expr) -> tuple[Expr, Expr]:
        """Return the keys that `count` rows from `row` attend to, at least one: from a multiple of `columns` to an
        end.
        """
        band, keys, columns = self.band, self.softmax.keys, self.plan.columns
        first, last = self.seen
        if band is not None and band.first is not None:
            first = T.max(T.min(row + band.first, keys - 1), 0)
            first = T.bind(first // columns * columns)
        if band is not None and band.last is not None:
            last = T.bind(T.max(T.min(row + (count + band.last), keys), first + 1))
        return first, last

    def _ranges(self, seen: tuple[Expr, Expr], count: int) -> list[_Range]:
        """Return the keys that a block attends to, as ranges of whole panels: masks are read only at the borders of the
        band.
        """
        band, columns = self.band, self.plan.columns
        if band is None or not self.same:
            return [(seen, {})]
        first, last = T.bind(seen[0] // columns), T.bind((seen[1] + (columns - 1)) // columns)
        begin, end = first, last
        if band.first is not None:
            inner = (self.first_row + (count - 1 + band.first + columns - 1)) // columns
            begin = T.bind(T.min(T.max(inner, first), last))
        if band.last is not None:
            inner = (self.first_row + (band.last + 1)) // columns
            end = T.bind(T.max(T.min(inner, last), begin))
        ranges: list[_Range] = [((begin * columns, end * columns), self.same)]
        if band.first is not None:
            ranges.append(((first * columns, begin * columns), {}))
        if band.last is not None:
            ranges.append(((end * columns, last * columns), {}))
        return ranges

    def _load(self, source: Source, row: Expr, column: Expr, transposed: bool) -> Expr:
        return self.around.load(source.value, source.index(self.head, row, column, transposed))

    def _keeping(self, known: Mapping[Value, float]) -> Epilogue:
        """Return an epilogue that stores a score; `known`: the constants that some masks are for it."""
        evaluator = self.around.evaluator
        sources: dict[Value, ReadElement] = {
            value: lambda _, value=value, number=number: immediate(number, value.dtype)  # type: ignore[misc]
            for value, number in known.items()
        }

        def keep(batch: Expr, row: Expr, key: Expr, dot: Expr) -> None:
            before = dict(evaluator.sources)
            evaluator.sources.update(sources)
            with evaluator.scope():
                score = evaluator.bind(dot)
                if self.between.is_scored:
                    score = self.between.score(evaluator, self.head, self.first_row + row, key, score)
                T.buffer_store(self.scores, score, [row, key])
            evaluator.sources = before

        return keep

    def _finish(self, batch: Expr, row: Expr, column: Expr, total: Expr) -> None:
        result = self.group.result
        *lead, queries, _ = result.shape
        place = (*unravel(self.head, lead), 0 if queries == 1 else self.first_row + row, column)
        self.around.finish(place, as_dtype(total * self.factors[row], compute_dtype(result.dtype)))

    # -- softmax of one row ------------------------------------------------------------------------------------------

    def _softmax(self, row: Expr, first: Expr, last: Expr) -> None:
        """Turn the scores of keys from first to last into exponentials; the row's factor is the inverse of their sum.

        Where that sum is 0 or NaN, the weights are what the group computes for NaN, and the factor is 1.
        """
        keys, padded, bind = self.softmax.keys, self.plan.padded_keys, self.around.evaluator.bind
        columns = self.plan.columns
        runs = (first // columns, (last + (columns - 1)) // columns)
        self._fill(row, keys, padded)
        largest = bind(self._fold(runs, "max", lambda at, lane: self.scores[row, at + lane]))
        offset = bind(
            tirx.Select(tirx.EQ(largest, -immediate(float("inf"), self.dtype)), immediate(0.0, self.dtype), largest)
        )

        def weight(at: Expr, lane: Expr) -> Expr:
            value = bind(vecmath.exp_of_negative(bind(self.scores[row, at + lane] - offset), bind))
            T.buffer_store(self.scores, value, [row, at + lane])
            return value

        total = bind(self._fold(runs, "sum", weight))
        positive = bind(total > immediate(0.0, self.dtype))
        one = immediate(1.0, self.dtype)
        T.buffer_store(self.factors, tirx.Select(positive, one / total, one), [row])
        if self.between.is_weighed:
            self._for_each_key(runs, lambda key: self._weigh(row, key))
        with T.If(tirx.Not(positive)), T.Then(), self.around.evaluator.scope():
            flaw = bind(self.between.flawed(self.around.evaluator, self.head, self.first_row + row, total))
            mk.for_each_column(keys, self.lanes, lambda key: T.buffer_store(self.scores, flaw, [row, key]))
        if self.weights is not None:
            self._round(row, runs)

    def _round(self, row: Expr, runs: tuple[Expr, Expr]) -> None:
        """Round the weights for the multiplication; statistics are of unrounded ones."""
        columns, lanes, dtype = self.plan.columns, self.lanes, self.plan.shape.weights_dtype
        with mk.serial(runs[0], runs[1]) as run, mk.serial(0, columns // lanes) as number:
            first = T.bind(run * columns + number * lanes)

            def store(lane: Expr) -> None:
                weight = self.around.evaluator.bind(self.scores[row, first + lane])
                T.buffer_store(self.weights, to_storage(weight, dtype), [row, first + lane])

            mk.vector(lanes, store)

    def _fill(self, row: Expr, keys: Size, padded: Size) -> None:
        """Give the elements after the last score, up to a whole panel, weight zero."""
        none = -immediate(float("inf"), self.dtype)
        if is_open(keys):
            with mk.serial(keys, padded) as at:
                T.buffer_store(self.scores, none, [row, at])
            return
        for at in range(keys, padded):
            T.buffer_store(self.scores, none, [row, at])

    def _weigh(self, row: Expr, key: Expr) -> None:
        evaluator = self.around.evaluator
        with evaluator.scope():
            weight = evaluator.bind(self.scores[row, key])
            T.buffer_store(
                self.scores, self.between.weight(evaluator, self.head, self.first_row + row, key, weight), [row, key]
            )

    def _for_each_key(self, runs: tuple[Expr, Expr], emit: Callable[[Expr], None]) -> None:
        """Emit `emit(key)` for the keys of some runs of `columns`; indices past the last key are clamped to it."""
        keys, columns, lanes = self.softmax.keys, self.plan.columns, self.lanes
        whole = keys // columns
        with mk.serial(runs[0], T.min(runs[1], whole)) as run, mk.serial(0, columns // lanes) as number:
            mk.vector(lanes, lambda lane: emit(run * columns + number * lanes + lane))
        rest = keys - whole * columns
        if is_open(rest) or rest:
            last = mk.as_index(runs[1]) if is_open(runs[1]) else runs[1]
            with T.If(last > whole), T.Then():
                mk.for_each_column(rest, lanes, lambda key: emit(whole * columns + key))

    def _fold(self, runs: tuple[Expr, Expr], reducer: str, element: Callable[[Expr, Expr], Expr]) -> Expr:
        """Reduce `element(first, lane)` over all vectors of some runs of `columns`."""
        bind, lanes = self.around.evaluator.bind, self.lanes
        count = self.plan.columns // lanes
        # Enough partial results to hide their latency; a power of two.
        vectors = count & -count if count % 4 else 4
        wide = vectors * lanes
        partial = T.alloc_buffer((wide,), self.dtype, scope="local")
        start = reducers.identity(reducer, self.dtype)
        mk.vector(wide, lambda lane: T.buffer_store(partial, start, [lane]))
        with mk.serial(runs[0], runs[1]) as run, mk.serial(0, count // vectors) as some:

            def join(lane: Expr) -> None:
                value = element(run * (count * lanes) + some * wide, lane)
                before = bind(partial[lane])
                T.buffer_store(partial, reducers.combine(reducer, self.dtype, before, value), [lane])

            mk.vector(wide, join)
        return reducers.fold_lanes(reducer, self.dtype, partial, vectors, lanes, bind)
