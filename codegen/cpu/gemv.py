"""Matrices times vectors, where the matrix is known at run time only: every element is read once, as it lies.

``result[b, r] = sum over k of matrix(b, r, k) * vector(b, k)``: a product of one row or one column, whose large operand
would cost more to pack than to multiply. A matrix that lies along k is multiplied by rows: a few rows at a time, each
with a vector of partial sums. One that lies along its rows is multiplied by columns: a few of them at a time are scaled
and added to the sums in the workspace. Either way a few long streams come from memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu import microkernel as mk
from tilestitch.codegen.cpu.isa import Isa, dtype_bytes
from tilestitch.codegen.cpu.microkernel import Expr

STREAMS = 8
"""Rows, or columns, of the matrix that are read at the same time."""

MOST_SUMS = 4096
"""Results of one task: their sums stay in the first-level cache."""

TASKS_A_THREAD = 3

TASK_ELEMENTS = 16384
"""The least that a task reads of the matrix where there are several: a few microseconds, as long as a thread takes to
wake up.
"""

LoadMatrix = Callable[[Expr, Expr, Expr], Expr]
"""``load(batch, row, k)``; the index that runs along memory may be a lane of a vector."""
LoadVector = Callable[[Expr, Expr], Expr]
Finish = Callable[[Expr, Expr, Expr], None]
"""``finish(batch, row, value)`` emits the store of one result; the row may be a lane."""


@dataclass(frozen=True)
class GemvPlan:
    """`batch` products of [rows, k] by [k]. along_k: the matrix lies along k. `block` results a task."""

    rows: int
    k: int
    batch: int
    along_k: bool
    lanes: int
    block: int
    matrix_dtype: str
    vector_dtype: str
    acc_dtype: str

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.block)

    @property
    def tasks(self) -> int:
        return self.batch * self.blocks

    @property
    def vector_bytes(self) -> int:
        return mk.align(max(1, self.k) * dtype_bytes(self.acc_dtype))

    @property
    def scratch_bytes(self) -> int:
        return self.vector_bytes + mk.align(self.block * dtype_bytes(self.acc_dtype))


def plan_gemv(
    rows: int, k: int, batch: int, dtypes: tuple[str, str, str], isa: Isa, *, along_k: bool, threads: int
) -> GemvPlan:
    """dtypes: of the matrix, the vector and the sums. Blocks are whole vectors of whole streams."""
    lanes = isa.lanes(dtypes[2])
    unit = lanes * STREAMS
    wanted = -(-rows // max(1, -(-TASKS_A_THREAD * threads // batch))) if threads > 1 else rows
    wanted = max(wanted, TASK_ELEMENTS // max(1, k))
    block = min(rows, MOST_SUMS, -(-wanted // unit) * unit)
    return GemvPlan(rows, k, batch, along_k, lanes, block, *dtypes)


def emit_gemv(
    plan: GemvPlan, matrix: LoadMatrix, vector: LoadVector, finish: Finish, task: Expr, scratch: Expr
) -> None:  # fmt: skip
    """Emits the body of one task. ``scratch`` is the workspace handle."""
    _Emitter(plan, matrix, vector, finish, scratch).run(task)


class _Emitter:
    def __init__(self, plan: GemvPlan, matrix: LoadMatrix, vector: LoadVector, finish: Finish, scratch: Expr) -> None:
        self.plan, self.matrix, self.load_vector, self.finish = plan, matrix, vector, finish
        self.vector = mk.scratch_buffer(scratch, 0, (max(1, plan.k),), plan.acc_dtype, "vector")
        self.sums = mk.scratch_buffer(scratch, plan.vector_bytes, (plan.block,), plan.acc_dtype, "sums")

    def run(self, task: Expr) -> None:
        plan = self.plan
        task = T.bind(T.cast(task, "int64"))
        self.batch, block = T.bind(task // plan.blocks), T.bind(task % plan.blocks)
        with mk.serial(0, plan.k) as k:
            value = self.load_vector(self.batch, k)
            T.buffer_store(self.vector, mk.widen(value, plan.vector_dtype, plan.acc_dtype), [k])
        whole, rest = divmod(plan.rows, plan.block)
        if not rest:
            self._block(T.bind(block * plan.block), plan.block)
            return
        with T.If(block < whole):
            with T.Then():
                self._block(T.bind(block * plan.block), plan.block)
            with T.Else():
                self._block(whole * plan.block, rest)

    def _block(self, first: Expr, count: int) -> None:
        (self._by_rows if self.plan.along_k else self._by_columns)(first, count)
        mk.for_each_column(
            count, self.plan.lanes, lambda row: self.finish(self.batch, first + row, self.sums[row])
        )  # fmt: skip

    def _element(self, row: Expr, k: Expr) -> Expr:
        return mk.widen(self.matrix(self.batch, row, k), self.plan.matrix_dtype, self.plan.acc_dtype)

    # -- a matrix along k --------------------------------------------------------------------------------------------

    def _by_rows(self, first: Expr, count: int) -> None:
        whole = count // STREAMS
        if whole:
            with mk.serial(0, whole) as group:
                self._rows(first, group * STREAMS, STREAMS)
        if count % STREAMS:
            with mk.serial(whole * STREAMS, count) as row:
                self._rows(first, row, 1)

    def _rows(self, first: Expr, local: Expr, streams: int) -> None:
        """The sums of a few rows: vectors of partial sums, then their sum and what is left of the row."""
        plan, lanes = self.plan, self.plan.lanes
        steps = plan.k // lanes
        acc = T.alloc_buffer((streams, lanes), plan.acc_dtype, scope="local")
        row0 = T.bind(first + local)
        zero = mk.constant(0, plan.acc_dtype)
        with mk.unroll(0, streams) as row, mk.vectorized(0, lanes) as lane:
            T.buffer_store(acc, zero, [row, lane])
        if steps:
            with mk.serial(0, steps) as step, mk.unroll(0, streams) as row, mk.vectorized(0, lanes) as lane:
                k = step * lanes + lane
                T.buffer_store(acc, acc[row, lane] + self._element(row0 + row, k) * self.vector[k], [row, lane])
        width = lanes // 2
        while width:
            with mk.unroll(0, streams) as row:
                mk.vector(width, lambda lane: self._fold(acc, row, lane, width))  # noqa: B023
            width //= 2
        with mk.unroll(0, streams) as row:
            T.buffer_store(self.sums, acc[row, 0], [local + row])
        if plan.k % lanes:
            with mk.unroll(0, streams) as row, mk.serial(steps * lanes, plan.k) as k:
                total = self.sums[local + row] + self._element(row0 + row, k) * self.vector[k]
                T.buffer_store(self.sums, total, [local + row])

    @staticmethod
    def _fold(acc: Any, row: Expr, lane: Expr, width: int) -> None:
        T.buffer_store(acc, acc[row, lane] + acc[row, lane + width], [row, lane])

    # -- a matrix along its rows -------------------------------------------------------------------------------------

    def _by_columns(self, first: Expr, count: int) -> None:
        zero = mk.constant(0, self.plan.acc_dtype)
        mk.for_each_column(count, self.plan.lanes, lambda row: T.buffer_store(self.sums, zero, [row]))
        whole = self.plan.k // STREAMS
        if whole:
            with mk.serial(0, whole) as group:
                self._columns(first, count, group * STREAMS, STREAMS)
        if self.plan.k % STREAMS:
            with mk.serial(whole * STREAMS, self.plan.k) as k:
                self._columns(first, count, k, 1)

    def _columns(self, first: Expr, count: int, k0: Expr, streams: int) -> None:
        factors = [T.bind(self.vector[k0 + i]) for i in range(streams)]

        def add(row: Expr) -> None:
            total = self.sums[row]
            for i, factor in enumerate(factors):
                total = total + self._element(first + row, k0 + i) * factor
            T.buffer_store(self.sums, total, [row])

        mk.for_each_column(count, self.plan.lanes, add)
