"""Accumulators of row-wise reductions: partial results in registers, joined at the end of a row."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import Index
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import bounds_of
from tilestitch.passes.plan.cpu.rows import RowLoops
from tilestitch.passes.plan.parts import ARG_REDUCTIONS

SUM_BLOCK = 8192
"""Long sums are accumulated separately in blocks of this many elements, to limit rounding errors."""


def enter_lanes(evaluator: Evaluator, stack: ExitStack, lanes: int) -> Expr:
    """Enter a loop over the lanes of a vector, in a scope of its own, and return its variable; 0 for one lane."""
    if lanes == 1:
        stack.enter_context(evaluator.scope())
        return 0
    lane = stack.enter_context(T.vectorized(0, lanes))
    stack.enter_context(evaluator.scope((lane, 0, lanes)))
    return lane


class Accumulator:
    """The running result of one reduction: a vector of partial results of a row, or one per row of the block."""

    def __init__(self, node: Node, loops: RowLoops, evaluator: Evaluator, positions: str) -> None:
        """`positions`: the dtype of indices."""
        self.node, self.loops, self.evaluator, self.positions = node, loops, evaluator, positions
        self.dtype = node.inputs[0].dtype
        self.reducer = reducers.reducer_of(node.op)
        self.is_arg = node.op in ARG_REDUCTIONS
        self.size = loops.block
        self.lanes = loops.lanes
        stored = reducers.accumulator_dtype(self.dtype)
        self.buffer = T.alloc_buffer((self.size,), stored, scope="local")
        self.position = T.alloc_buffer((self.size,), positions, scope="local") if self.is_arg else None
        long = bounds_of(loops.extents[-1])[1] > SUM_BLOCK
        self.has_total = self.reducer == "sum" and not loops.columns and long
        self.total = T.alloc_buffer((self.size,), stored, scope="local") if self.has_total else None

    def _fill(self, buffer: Any, value: Expr) -> None:
        for start in range(0, self.size, self.lanes):
            if self.lanes == 1:
                T.buffer_store(buffer, value, [start])
                continue
            with T.vectorized(0, self.lanes) as lane:
                T.buffer_store(buffer, value, [start + lane])

    def reset(self) -> None:
        start = reducers.identity(self.reducer, self.dtype)
        self._fill(self.buffer, start)
        if self.total is not None:
            self._fill(self.total, start)
        if self.position is not None:
            self._fill(self.position, tirx.IntImm(self.positions, 0))

    def add(self, value: Expr, index: Index, slot: Expr, fresh: Expr | None) -> None:
        bind = self.evaluator.bind
        element = bind(reducers.to_accumulator(value, self.dtype, exact=self.is_arg))
        best = bind(self.buffer[slot])
        if self.position is None:
            if fresh is not None:
                element = bind(tirx.Select(fresh, element, reducers.identity(self.reducer, self.dtype)))
            T.buffer_store(self.buffer, reducers.combine(self.reducer, self.dtype, best, element), [slot])
            return
        better = reducers.is_better(self.reducer, self.dtype, element, best, bool(self.node.attrs["select_last"]))
        better = bind(better if fresh is None else tirx.And(fresh, better))
        here = index[self.node.attrs["axis"]]
        here = tirx.IntImm(self.positions, here) if isinstance(here, int) else T.cast(here, self.positions)
        T.buffer_store(self.position, tirx.Select(better, here, self.position[slot]), [slot])
        T.buffer_store(self.buffer, tirx.Select(better, element, best), [slot])

    def add_to_total(self) -> None:
        if self.total is None:
            return
        start = reducers.identity(self.reducer, self.dtype)
        for first in range(0, self.size, self.lanes):
            with ExitStack() as stack:
                slot = enter_lanes(self.evaluator, stack, self.lanes) + first
                joined = reducers.combine(self.reducer, self.dtype, self.total[slot], self.buffer[slot])
                T.buffer_store(self.total, joined, [slot])
                T.buffer_store(self.buffer, start, [slot])

    def finish(self) -> Callable[[Expr], Expr]:
        """Finish the reduction, and return `read(position in the block)` of its result."""
        if self.loops.columns:
            buffer = self.buffer if self.position is None else self.position
            return lambda column: self._result(buffer[column])
        self.add_to_total()
        bind = self.evaluator.bind
        if self.position is None:
            source = self.buffer if self.total is None else self.total
            vectors = self.size // self.lanes
            folded = reducers.fold_lanes(self.reducer, self.dtype, source, vectors, self.lanes, bind)
        else:
            folded = self._fold_positions()
        result = bind(self._result(folded))
        return lambda column: result

    def _result(self, accumulated: Expr) -> Expr:
        if self.position is not None:
            return T.cast(accumulated, "int64")
        return reducers.from_accumulator(accumulated, self.dtype)

    def _fold_positions(self) -> Expr:
        """Reduce the lanes to the best one; of equal ones the lowest (highest) position."""
        position, count = self.position, self.size
        assert position is not None
        while count > 1:  # in halves, as a chain of lanes takes longer than all of a short row
            half = 1 << (count - 1).bit_length() - 1
            with ExitStack() as stack:
                self._take_better(position, enter_lanes(self.evaluator, stack, count - half), half)
            count = half
        return named(position[0])

    def _take_better(self, position: Any, slot: Expr, distance: int) -> None:
        """Replace a slot by the better one of it and the one `distance` further."""
        last, bind = bool(self.node.attrs["select_last"]), self.evaluator.bind
        value, best = bind(self.buffer[slot + distance]), bind(self.buffer[slot])
        here, there = bind(position[slot + distance]), bind(position[slot])
        strictly = reducers.is_better(self.reducer, self.dtype, value, best, last=False)
        reverse = reducers.is_better(self.reducer, self.dtype, best, value, last=False)
        tie = tirx.And(tirx.Not(strictly), tirx.Not(reverse))
        better = bind(tirx.Or(strictly, tirx.And(tie, here > there if last else here < there)))
        T.buffer_store(self.buffer, tirx.Select(better, value, best), [slot])
        T.buffer_store(position, tirx.Select(better, here, there), [slot])
