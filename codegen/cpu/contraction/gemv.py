"""Matrices times vectors, where the matrix is known at run time only: every element is read once, in place.

``result[b, r] = sum over k of matrix(b, r, k) * vector(b, k)``: a GEMM of one row or one column, whose large operand
would cost more to pack than to multiply. A matrix contiguous along k is multiplied by rows: a few rows at a time, each
with a vector of partial sums. One contiguous along its rows is multiplied by columns: a few at a time are scaled and
added to the sums in the workspace. Either way a few long streams are read from memory at a time.
"""

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import widen
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.compiler.ir.sizes import ceil_div, is_open, largest
from tilestitch.passes.plan.cpu.gemv import GemvPlan

LoadMatrix = Callable[[Expr, Expr, Expr], Expr]
"""``load(batch, row, k)``; the contiguous index may be a lane of a vector."""
LoadVector = Callable[[Expr, Expr], Expr]
Finish = Callable[[Expr, Expr, Expr], None]
"""``finish(batch, row, value)`` emits the store of one result; the row may be a lane."""


def emit_gemv(
    plan: GemvPlan, matrix: LoadMatrix, vector: LoadVector, finish: Finish, task: Expr, scratch: Expr
) -> None:  # fmt: skip
    """Emit the body of one task. ``scratch`` is the workspace handle."""
    _Emitter(plan, matrix, vector, finish, scratch).run(task)


class _Emitter:
    def __init__(self, plan: GemvPlan, matrix: LoadMatrix, vector: LoadVector, finish: Finish, scratch: Expr) -> None:
        self.plan, self.matrix, self.load_vector, self.finish = plan, matrix, vector, finish
        shape = self.shape = plan.shape
        self.lanes, self.streams = plan.schedule.lanes, plan.schedule.streams
        self.vector = mk.scratch_buffer(scratch, 0, (largest(1, shape.k),), shape.acc_dtype, "vector")
        self.sums = mk.scratch_buffer(scratch, plan.vector_bytes, (plan.block,), shape.acc_dtype, "sums")
        self.totals = self.sums
        if plan.part is not None and not shape.along_k:
            after = plan.vector_bytes + plan.sums_bytes
            self.totals = mk.scratch_buffer(scratch, after, (plan.block,), shape.acc_dtype, "totals")

    def run(self, task: Expr) -> None:
        plan = self.plan
        task = T.bind(T.cast(task, "int64"))
        self.batch, block = T.bind(task // plan.blocks), T.bind(task % plan.blocks)
        with mk.serial(0, self.shape.k) as k:
            value = self.load_vector(self.batch, k)
            T.buffer_store(self.vector, widen(value, self.shape.vector_dtype, self.shape.acc_dtype), [k])
        if is_open(self.shape.rows):
            first = T.bind(block * plan.block)
            self._block(first, T.bind(T.min(T.int64(plan.block), integer(self.shape.rows, "int64") - first)))
            return
        whole, rest = divmod(self.shape.rows, plan.block)
        if not rest:
            self._block(T.bind(block * plan.block), plan.block)
            return
        with T.If(block < whole):
            with T.Then():
                self._block(T.bind(block * plan.block), plan.block)
            with T.Else():
                self._block(whole * plan.block, rest)

    def _block(self, first: Expr, count: Expr) -> None:
        (self._by_rows if self.shape.along_k else self._by_columns)(first, count)
        mk.for_each_column(
            count, self.lanes, lambda row: self.finish(self.batch, first + row, self.totals[row])
        )  # fmt: skip

    def _element(self, row: Expr, k: Expr) -> Expr:
        return widen(self.matrix(self.batch, row, k), self.shape.matrix_dtype, self.shape.acc_dtype)

    # -- a matrix along k --------------------------------------------------------------------------------------------

    def _by_rows(self, first: Expr, count: Expr) -> None:
        whole = count // self.streams
        if _may_be(whole):
            with mk.serial(0, whole) as group:
                self._rows(first, group * self.streams, self.streams)
        if _may_be(count % self.streams):
            with mk.serial(whole * self.streams, count) as row:
                self._rows(first, row, 1)

    def _rows(self, first: Expr, local: Expr, streams: int) -> None:
        """Emit the sums of a few rows: vectors of partial sums, then their reduction and the remainder of the row."""
        lanes, part = self.lanes, self.plan.part
        steps = self.shape.k // lanes
        row0 = T.bind(first + local)
        acc = total = self._vectors(streams)
        self._clear(total, streams)
        if part is not None:
            acc, each = self._vectors(streams), part // lanes
            with mk.serial(0, ceil_div(steps, each)) as index:
                self._clear(acc, streams)
                begin = T.bind(index * each)
                self._add_vectors(acc, row0, streams, begin, T.min(begin + each, mk.as_index(steps)))
                with mk.unroll(0, streams) as row:
                    mk.vector(lanes, lambda lane: self._add(total, acc, row, lane))
        elif _may_be(steps):
            self._add_vectors(acc, row0, streams, 0, steps)
        width = lanes // 2
        while width:
            with mk.unroll(0, streams) as row:
                mk.vector(width, lambda lane: self._fold(total, row, lane, width))  # noqa: B023
            width //= 2
        with mk.unroll(0, streams) as row:
            T.buffer_store(self.sums, total[row, 0], [local + row])
        if _may_be(self.shape.k % lanes):
            with mk.unroll(0, streams) as row, mk.serial(steps * lanes, self.shape.k) as k:
                more = self.sums[local + row] + self._element(row0 + row, k) * self.vector[k]
                T.buffer_store(self.sums, more, [local + row])

    def _vectors(self, streams: int) -> Any:
        return T.alloc_buffer((streams, self.lanes), self.shape.acc_dtype, scope="local")

    def _clear(self, acc: Any, streams: int) -> None:
        zero = mk.constant(0, self.shape.acc_dtype)
        with mk.unroll(0, streams) as row, mk.vectorized(0, self.lanes) as lane:
            T.buffer_store(acc, zero, [row, lane])

    def _add_vectors(self, acc: Any, row0: Expr, streams: int, begin: Expr, end: Expr) -> None:
        lanes = self.lanes
        with mk.serial(begin, end) as step, mk.unroll(0, streams) as row, mk.vectorized(0, lanes) as lane:
            k = step * lanes + lane
            T.buffer_store(acc, acc[row, lane] + self._element(row0 + row, k) * self.vector[k], [row, lane])

    @staticmethod
    def _add(total: Any, acc: Any, row: Expr, lane: Expr) -> None:
        T.buffer_store(total, total[row, lane] + acc[row, lane], [row, lane])

    @staticmethod
    def _fold(acc: Any, row: Expr, lane: Expr, width: int) -> None:
        T.buffer_store(acc, acc[row, lane] + acc[row, lane + width], [row, lane])

    # -- a matrix along its rows -------------------------------------------------------------------------------------

    def _by_columns(self, first: Expr, count: Expr) -> None:
        part = self.plan.part
        if part is None:
            self._clear_all(self.sums, count)
            self._part_by_columns(first, count, 0, self.shape.k)
            return
        self._clear_all(self.totals, count)
        with mk.serial(0, ceil_div(self.shape.k, part)) as index:
            begin = T.bind(index * part)
            end = T.bind(T.min(begin + part, mk.as_index(self.shape.k)))
            self._clear_all(self.sums, count)
            self._part_by_columns(first, count, begin, end)
            mk.for_each_column(
                count, self.lanes,
                lambda row: T.buffer_store(self.totals, self.totals[row] + self.sums[row], [row]),
            )  # fmt: skip

    def _clear_all(self, sums: Any, count: Expr) -> None:
        zero = mk.constant(0, self.shape.acc_dtype)
        mk.for_each_column(count, self.lanes, lambda row: T.buffer_store(sums, zero, [row]))

    def _part_by_columns(self, first: Expr, count: Expr, begin: Expr, end: Expr) -> None:
        """Add these steps of the reduction to the sums."""
        whole = (end - begin) // self.streams
        if _may_be(whole):
            with mk.serial(0, whole) as group:
                self._columns(first, count, begin + group * self.streams, self.streams)
        if _may_be((end - begin) % self.streams):
            with mk.serial(begin + whole * self.streams, end) as k:
                self._columns(first, count, k, 1)

    def _columns(self, first: Expr, count: Expr, k0: Expr, streams: int) -> None:
        factors = [T.bind(self.vector[k0 + i]) for i in range(streams)]

        def add(row: Expr) -> None:
            total = self.sums[row]
            for i, factor in enumerate(factors):
                total = total + self._element(first + row, k0 + i) * factor
            T.buffer_store(self.sums, total, [row])

        mk.for_each_column(count, self.lanes, add)


def _may_be(count: Expr) -> bool:
    """Return whether a count may be nonzero, so that code is needed."""
    return not mk.is_number(count) or count > 0
