"""Attention groups on CPUs: a task computes some queries of one head, from scores to results.

The scores of a task's rows lie in its workspace, which stays in the second-level cache. Both products are those of
`gemm.py`, with one task each: the first leaves scores in the workspace, then every row becomes exponentials and their
sum, and the second reads these as its left operand. Results are divided by the sums as they are stored. Keys that no
row of the task sees are left out of all three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers, vecmath
from tilestitch.codegen.compute.attention import Between, Source, as_dtype, sum_dtype
from tilestitch.codegen.compute.dtypes import Expr, compute_dtype, immediate
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.fusion.band import Band, band_of
from tilestitch.passes.fusion.facts import LEAST_QUERIES, attention_rows
from tilestitch.passes.fusion.roles import Roles

from . import microkernel as mk
from .abi import KernelLaunch
from .gemm import GemmPlan, GemmShape, Window, emit_gemm, plan_gemm
from .isa import Isa, dtype_bytes
from .microkernel import Split
from .panels import LoadedOperand
from .surroundings import Operands, Surroundings

BAND_ROWS = 128
"""Rows of a task at most where each query sees a band of keys: larger tasks see keys that few of their rows need."""


@dataclass(frozen=True)
class AttentionPlan:
    """`rows` cuts the queries of a head into tasks; the scores of a task have `stride` elements a row.

    band: which keys a query sees. Scores are computed by whole `columns` of keys: those of a panel.
    """

    heads: int
    rows: Split
    columns: int
    stride: int
    acc_dtype: str
    band: Band | None
    products: tuple[tuple[int, GemmPlan, GemmPlan], ...]
    """By number of rows: the plans of both products."""

    @property
    def tasks(self) -> int:
        return self.heads * self.rows.parts

    @property
    def scores_bytes(self) -> int:
        return mk.align(self.rows.largest * self.stride * dtype_bytes(self.acc_dtype))

    @property
    def sums_bytes(self) -> int:
        return mk.align(self.rows.largest * dtype_bytes(self.acc_dtype))

    @property
    def scratch_bytes(self) -> int:
        return self.scores_bytes + self.sums_bytes + max(p.scratch_bytes for _, *both in self.products for p in both)


def lower_attention(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], isa: Isa, threads: int
) -> KernelLaunch:
    """The launch of an attention group; `outputs` are those that have elements."""
    group = Operands(tuple(nodes), roles, tuple(inputs), tuple(outputs), isa, threads)
    plan = plan_attention(group)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        _Task(group, plan, around, scratch).run(task)

    return group.launch("attention", plan.tasks, plan.scratch_bytes, None, _no_matrix, emit)


def _no_matrix(data: np.ndarray) -> np.ndarray:
    raise AssertionError("attention packs no constant")


def plan_attention(group: Operands) -> AttentionPlan:
    """How many queries a task takes: no more than keep their scores in half of the second-level cache."""
    softmax, acc = group.roles.softmax, sum_dtype(group.roles)
    assert softmax is not None
    band = band_of(softmax)
    most = max(LEAST_QUERIES, group.isa.l2_bytes // 2 // (softmax.keys * dtype_bytes(acc)))
    most = min(most, attention_rows(softmax.heads, softmax.queries, group.threads))
    rows = mk.split_at_most(softmax.queries, most if band is None else min(most, BAND_ROWS))
    plans = tuple((size, *_products(group, size, acc)) for size, _ in rows.sizes())
    columns = math.lcm(*(first.tile.columns for _, first, _ in plans))
    return AttentionPlan(softmax.heads, rows, columns, -(-softmax.keys // columns) * columns, acc, band, plans)


def _products(group: Operands, rows: int, acc: str) -> tuple[GemmPlan, GemmPlan]:
    softmax = group.roles.softmax
    assert softmax is not None
    value = group.anchor.inputs[1]
    width = softmax.product.inputs[0].shape[-2 if softmax.product.attrs.get("trans_a") else -1]
    query, key = softmax.query, softmax.key
    first = plan_gemm(
        GemmShape(rows, softmax.keys, width, 1, query.dtype, key.dtype, acc), group.isa, threads=1, b_packed=False,
        a_plain=group.is_plain(query), a_contiguous="m" if _transposed(group)[0] else "k",
    )  # fmt: skip
    second = plan_gemm(
        GemmShape(rows, group.result.shape[-1], softmax.keys, 1, acc, value.dtype, acc), group.isa, threads=1,
        b_packed=False, long_epilogue=group.has_long_epilogue,
    )  # fmt: skip
    return _whole(first), _whole(second)


def _whole(plan: GemmPlan) -> GemmPlan:
    """The plan with everything in one task."""
    return replace(plan, block_tiles=plan.rows.parts, block_panels=plan.panels)


def _transposed(group: Operands) -> tuple[bool, bool, bool]:
    """Whether queries, keys and values lie the other way round than [rows, width], [keys, width], [keys, width]."""
    softmax = group.roles.softmax
    assert softmax is not None
    trans_a, trans_b = (bool(softmax.product.attrs.get(name)) for name in ("trans_a", "trans_b"))
    first, second = (not trans_b, trans_a) if softmax.swapped else (trans_a, not trans_b)
    return first, second, bool(group.anchor.attrs.get("trans_b"))


class _Task:
    """Emits one task: the pieces share its indices and buffers."""

    def __init__(self, group: Operands, plan: AttentionPlan, around: Surroundings, scratch: Expr) -> None:
        self.group, self.plan, self.around, self.scratch = group, plan, around, scratch
        softmax = group.roles.softmax
        assert softmax is not None
        self.softmax = softmax
        self.between = Between(group.roles, softmax.queries, plan.acc_dtype)
        self.lanes = group.isa.lanes(plan.acc_dtype)
        self.dtype = plan.acc_dtype
        lead = softmax.product.output.shape[:-2]
        self.query = Source(group.nodes, softmax.query, lead)
        self.key = Source(group.nodes, softmax.key, lead)
        self.value = Source(group.nodes, group.anchor.inputs[1], group.result.shape[:-2])
        shape = (plan.rows.largest, plan.stride)
        self.scores = mk.scratch_buffer(scratch, 0, shape, self.dtype, "scores")
        self.factors = mk.scratch_buffer(scratch, plan.scores_bytes, shape[:1], self.dtype, "factors")
        pointer = tirx.Var("workspace", PointerType(PrimType("uint8")))
        offset = plan.scores_bytes + plan.sums_bytes
        T.bind(tirx.call_intrin(pointer.ty, "tirx.handle_add_byte_offset", scratch, offset), var=pointer)
        self.workspace = pointer

    def run(self, task: Expr) -> None:
        rows = self.plan.rows
        task = T.bind(T.cast(task, "int64"))
        self.head = T.bind(task // rows.parts)
        part = T.bind(task % rows.parts)
        self.first_row = T.bind(rows.start(part))
        plans = self.plan.products
        if len(plans) == 1:
            self._rows(*plans[0])
            return
        with T.If(part < rows.larger_parts):
            with T.Then():
                self._rows(*plans[0])
            with T.Else():
                self._rows(*plans[1])

    def _rows(self, count: int, first: GemmPlan, second: GemmPlan) -> None:
        query, key, value = _transposed(self.group)
        seen = self._seen(count)
        emit_gemm(
            first, lambda b, row, k: self._load(self.query, self.first_row + row, k, query),
            LoadedOperand(lambda b, k, n: self._load(self.key, n, k, key), "n" if key else "k"),
            self._keep_score, T.int64(0), self.workspace, Window(seen, (0, first.shape.k)),
        )  # fmt: skip
        with mk.serial(0, count) as row:
            self._softmax(row, *seen)
        emit_gemm(
            second, lambda b, row, k: self.scores[row, k],
            LoadedOperand(lambda b, k, n: self._load(self.value, k, n, value), "k" if value else "n"),
            self._finish, T.int64(0), self.workspace, Window((0, second.shape.n), seen),
        )  # fmt: skip

    def _seen(self, count: int) -> tuple[Expr, Expr]:
        """The keys that `count` rows see, at least one: from the first, a multiple of `columns`, to behind the last."""
        band, keys, columns = self.plan.band, self.softmax.keys, self.plan.columns
        first: Expr = 0
        last: Expr = keys
        if band is not None and band.first is not None:
            first = T.max(T.min(self.first_row + band.first, keys - 1), 0)
            first = T.bind(first // columns * columns)
        if band is not None and band.last is not None:
            last = T.bind(T.max(T.min(self.first_row + (count + band.last), keys), first + 1))
        return first, last

    def _load(self, source: Source, row: Expr, column: Expr, transposed: bool) -> Expr:
        return self.around.load(source.value, source.index(self.head, row, column, transposed))

    def _keep_score(self, batch: Expr, row: Expr, key: Expr, product: Expr) -> None:
        evaluator = self.around.evaluator
        with evaluator.scope():
            score = evaluator.bind(product)
            if self.between.is_scored:
                score = self.between.score(evaluator, self.head, self.first_row + row, key, score)
            T.buffer_store(self.scores, score, [row, key])

    def _finish(self, batch: Expr, row: Expr, column: Expr, total: Expr) -> None:
        result = self.group.result
        *lead, queries, _ = result.shape
        place = (*unravel(self.head, lead), 0 if queries == 1 else self.first_row + row, column)
        self.around.finish(place, as_dtype(total * self.factors[row], compute_dtype(result.dtype)))

    # -- softmax of one row ------------------------------------------------------------------------------------------

    def _softmax(self, row: Expr, first: Expr, last: Expr) -> None:
        """Scores of keys from first to last become exponentials; the row's factor the inverse of their sum.

        Where that sum is 0 or NaN, the weights are what the group makes of NaN, and the factor is 1.
        """
        keys, stride, bind = self.softmax.keys, self.plan.stride, self.around.evaluator.bind
        columns = self.plan.columns
        runs = (first // columns, (last + (columns - 1)) // columns)
        for at in range(keys, stride):
            T.buffer_store(self.scores, -immediate(float("inf"), self.dtype), [row, at])
        largest = bind(self._fold(runs, "max", lambda at, lane: self.scores[row, at + lane]))
        offset = bind(
            tirx.Select(tirx.EQ(largest, -immediate(float("inf"), self.dtype)), immediate(0.0, self.dtype), largest)
        )

        def weight(at: Expr, lane: Expr) -> Expr:
            value = bind(vecmath.exp(bind(self.scores[row, at + lane] - offset), bind))
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

    def _weigh(self, row: Expr, key: Expr) -> None:
        evaluator = self.around.evaluator
        with evaluator.scope():
            weight = evaluator.bind(self.scores[row, key])
            T.buffer_store(
                self.scores, self.between.weight(evaluator, self.head, self.first_row + row, key, weight), [row, key]
            )

    def _for_each_key(self, runs: tuple[Expr, Expr], emit: Callable[[Expr], None]) -> None:
        """`emit(key)` for the keys of some runs of `columns`; keys behind the last one are taken for the last."""
        keys, columns, lanes = self.softmax.keys, self.plan.columns, self.lanes
        whole = keys // columns
        with mk.serial(runs[0], T.min(runs[1], whole)) as run, mk.serial(0, columns // lanes) as number:
            mk.vector(lanes, lambda lane: emit(run * columns + number * lanes + lane))
        if keys > whole * columns:
            with T.If(runs[1] > whole), T.Then():
                mk.for_each_column(keys - whole * columns, lanes, lambda key: emit(whole * columns + key))

    def _fold(self, runs: tuple[Expr, Expr], reducer: str, element: Callable[[Expr, Expr], Expr]) -> Expr:
        """`element(first, lane)` of all vectors of some runs of `columns`, joined."""
        bind, lanes = self.around.evaluator.bind, self.lanes
        count = self.plan.columns // lanes
        # So many partial results that one does not wait for the other; a power of two.
        vectors = count & -count if count % 4 else 4
        partial = T.alloc_buffer((vectors * lanes,), self.dtype, scope="local")
        start = reducers.identity(reducer, self.dtype)
        for v in range(vectors):
            mk.vector(lanes, lambda lane, v=v: T.buffer_store(partial, start, [v * lanes + lane]))  # type: ignore[misc]

        def add(number: Expr, v: int) -> None:
            def join(lane: Expr) -> None:
                value = element(number * lanes, lane)
                before = bind(partial[v * lanes + lane])
                T.buffer_store(partial, reducers.combine(reducer, self.dtype, before, value), [v * lanes + lane])

            mk.vector(lanes, join)

        with mk.serial(runs[0], runs[1]) as run, mk.serial(0, count // vectors) as some:
            for v in range(vectors):
                add(run * count + some * vectors + v, v)
        return reducers.fold_lanes(reducer, self.dtype, partial, vectors, lanes, bind)
