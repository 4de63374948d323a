"""The template of row-wise groups: reductions over one set of axes with element-wise work before, between and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm_ffi import StructuralKey

from tilestitch.codegen.buffers import operand, operand_source
from tilestitch.codegen.compute.dtypes import Expr, compute_dtype, storage_dtype
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import Index, index_dtype, ravel, reshape_index, unravel, values_between
from tilestitch.codegen.compute.reducers import from_accumulator, to_accumulator
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import PackedArg, Parameter, kernel_function, store
from tilestitch.codegen.cpu.contraction.microkernel import scratch_buffer
from tilestitch.codegen.cpu.loops.accumulators import SUM_BLOCK, Accumulator, enter_lanes
from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.groups import before_views
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.ops import Kind, kind_of
from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.passes.plan.cpu.rows import RowPass, RowPlan


def emit_rowwise(plan: RowPlan, packed: Mapping[str, PackedArg]) -> Any:
    """Return the PrimFunc of a row-wise group. Parameters: inputs, of which some are `packed`, then outputs."""
    inputs, outputs = plan.group.inputs, plan.group.outputs
    parameters = [operand(v, v.tensor_type, packed) for v in inputs]
    parameters += [Parameter.of(v.name, v.tensor_type) for v in outputs]
    positions = index_dtype(values_between(outputs, inputs))

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        evaluator = Evaluator({}, positions)
        for value, buffer in zip(inputs, buffers, strict=False):
            evaluator.sources[value] = operand_source(buffer, value, value.tensor_type, packed, evaluator.simplify)
        results = dict(zip(outputs, buffers[len(inputs) :], strict=True))
        _Emitter(plan, evaluator, results, scratch, positions).run(task)

    return kernel_function(parameters, body)


class _Emitter:
    """Emitter of one task: rows, or blocks of neighbouring rows, in sequence; all passes over each."""

    def __init__(
        self, plan: RowPlan, evaluator: Evaluator, results: dict[Value, Any], scratch: Expr, index_dtype: str
    ) -> None:
        self.plan, self.loops, self.evaluator, self.results = plan, plan.loops, evaluator, results
        self.index_dtype, self.scratch = index_dtype, scratch
        self.row: list[Expr] = []  # index in the kept dimensions; of the first row if there are several
        # The current computation: index in S, index of the row, position in the row's caches, row of the block.
        self.at: tuple[Index, Index, Expr, Expr] = ((), (), 0, 0)
        self.caches: dict[Value, Any] = {}
        elements = self.loops.row_elements * self.loops.width
        for number, value in enumerate(v for p in plan.passes for v in p.cached):
            dtype = storage_dtype(compute_dtype(value.dtype))
            self.caches[value] = scratch_buffer(scratch, plan.cache_offset(value), (elements,), dtype, f"row{number}")

    # -- loops -------------------------------------------------------------------------------------------------

    def run(self, task: Expr) -> None:
        loops = self.loops
        rows = prod(loops.row_extents)
        task = T.bind(T.cast(task, self.index_dtype))
        if rows == 1 and not self.plan.narrower:
            self._row(0)
            return
        first = T.bind(task * loops.schedule.rows)
        end = T.min(first + loops.schedule.rows, rows)
        if not self.plan.narrower:
            with T.serial(first, end) as row, self.evaluator.scope((row, 0, rows)):
                self._row(row)
            return
        first, end = T.bind(T.cast(first, "int64")), T.bind(T.cast(end, "int64"))
        narrower = [self._with(plan) for plan in self.plan.narrower]
        self._blocks(first, end, [self, *narrower])

    def _with(self, plan: RowPlan) -> _Emitter:
        """Return an emitter of the same rows with another plan."""
        return _Emitter(plan, self.evaluator, self.results, self.scratch, self.index_dtype)

    def _blocks(self, first: Expr, end: Expr, emitters: Sequence[_Emitter]) -> None:
        """Emit blocks of rows with the first of these emitters for which there are enough rows. If they are too few
        even for the first, all of these rows are its block.
        """
        here, *others = emitters
        if not others:
            here._parts_of_blocks(first, end)
            return
        with T.If(integer(here.loops.extents[-1], "int64") >= T.int64(here.loops.block)):
            with T.Then():
                here._parts_of_blocks(first, end, whole=here is self)
            with T.Else():
                self._blocks(first, end, others)

    def _parts_of_blocks(self, first: Expr, end: Expr, whole: bool = False) -> None:
        parts = 1 if whole else integer(self.loops.row_extents[-1], "int64")
        with T.serial(first * parts, end * parts) as row, self.evaluator.scope((row, 0, prod(self.loops.row_extents))):
            self._row(row)

    def _row(self, number: Expr) -> None:
        loops, evaluator = self.loops, self.evaluator
        self.row = []
        for i, extent in zip(unravel(number, loops.row_extents), loops.row_extents, strict=True):
            entry = evaluator.bind(i)
            if not isinstance(entry, int):
                evaluator.assume(entry, 0, extent)
            self.row.append(entry)
        if loops.columns:
            width = loops.extents[-1]
            first = self.row[-1] * loops.block
            exact = width % loops.block == 0
            last = integer(width, "int64") - loops.block if is_open(width) else width - loops.block
            start = evaluator.bind(first if exact or isinstance(first, int) else T.min(first, last))
            if not isinstance(start, int):
                evaluator.assume(start, 0, width - loops.block + 1)
            self.row[-1] = start
        with evaluator.scope():
            for value in self.plan.reduced:
                evaluator.sources.pop(value, None)
            for value in self.caches:
                evaluator.sources.pop(value, None)
            for stage in self.plan.passes:
                self._stage(stage)
            self._store_reduced()

    def _stage(self, stage: RowPass) -> None:
        accumulators = {
            node: Accumulator(node, self.loops, self.evaluator, self.index_dtype) for node in stage.reductions
        }
        for accumulator in accumulators.values():
            accumulator.reset()
        if is_open(self.loops.row_elements) or self.loops.row_elements:
            self._walk(stage, accumulators)
        for value in stage.cached:
            self.evaluator.sources[value] = self._cache_source(value)
        for node, accumulator in accumulators.items():
            value = node.outputs[0]
            self.evaluator.sources[value] = self._reduced_source(value, accumulator.finish())
        self._compute_reduced()

    def _walk(self, stage: RowPass, accumulators: dict[Node, Accumulator]) -> None:
        """Traverse all elements of the row: the outer reduced dimensions one by one, the last in vectors."""
        loops = self.loops
        outer = loops.line_extents if loops.columns else loops.line_extents[:-1]
        with ExitStack() as stack:
            line: list[Expr] = []
            for extent in outer:
                i = stack.enter_context(T.serial(0, extent))
                stack.enter_context(self.evaluator.scope((i, 0, extent)))
                line.append(i)
            if loops.columns:
                self._columns(stage, accumulators, line)
            else:
                self._line(stage, accumulators, line)

    def _columns(self, stage: RowPass, accumulators: dict[Node, Accumulator], line: list[Expr]) -> None:
        lanes = self.loops.lanes
        for vector in range(self.loops.vectors):
            with ExitStack() as stack:
                lane = self._lanes(stack, lanes)
                slot = lane + vector * lanes
                self._element(stage, accumulators, line, self._row_at(slot), slot, slot, None)

    def _line(self, stage: RowPass, accumulators: dict[Node, Accumulator], outer: list[Expr]) -> None:
        loops = self.loops
        extent, lanes, block = loops.extents[-1], loops.lanes, loops.block
        blocks = extent // block

        def vectors(start: Expr, count: int) -> None:
            for vector in range(count):
                first = self._first(start + vector * lanes)
                with ExitStack() as stack:
                    lane = self._lanes(stack, lanes)
                    position = first + lane
                    self._element(stage, accumulators, [*outer, position], self.row, 0, lane + vector * lanes, None)

        per_total = max(1, SUM_BLOCK // block)
        summing = any(a.has_total for a in accumulators.values())
        if summing and (is_open(blocks) or blocks > per_total):
            with T.serial(0, -(-blocks // per_total)) as part:
                last = T.min((part + 1) * per_total, blocks)
                with T.serial(part * per_total, last) as i, self.evaluator.scope((i, 0, blocks)):
                    vectors(i * block, loops.vectors)
                for accumulator in accumulators.values():
                    accumulator.add_to_total()
        elif is_open(blocks) or blocks:
            with T.serial(0, blocks) as i, self.evaluator.scope((i, 0, blocks)):
                vectors(i * block, loops.vectors)
        done = blocks * block
        if is_open(extent):
            self._open_rest(stage, accumulators, outer, vectors)
            return
        rest = (extent - done) // lanes
        if rest:
            vectors(done, rest)
        done += rest * lanes
        if done < extent:
            self._tail(stage, accumulators, outer, done)

    def _open_rest(
        self, stage: RowPass, accumulators: dict[Node, Accumulator], outer: list[Expr],
        vectors: Callable[[Expr, int], None],
    ) -> None:  # fmt: skip
        """Emit the remainder of a row of open length after its blocks; a row shorter than a vector one by one."""
        extent, lanes, block = self.loops.extents[-1], self.loops.lanes, self.loops.block
        done, whole = extent // block * block, extent // lanes * lanes
        if block == 1:
            return
        if block > lanes:
            with T.serial(0, (whole - done) // lanes) as i, self.evaluator.scope():
                vectors(T.bind(i * lanes + done), 1)
        if lanes == 1:
            return
        with T.If(tirx.NE(extent, integer(whole, "int64"))), T.Then(), T.If(extent >= T.int64(lanes)):
            with T.Then():
                self._tail(stage, accumulators, outer, whole)
            with T.Else(), T.serial(0, extent) as i, self.evaluator.scope((i, 0, extent)):
                self._element(stage, accumulators, [*outer, i], self.row, 0, 0, None)

    def _tail(self, stage: RowPass, accumulators: dict[Node, Accumulator], outer: list[Expr], done: Size) -> None:
        """Emit the last, partial vector: moved back so that it fits, without the lanes that were counted already."""
        extent, lanes = self.loops.extents[-1], self.loops.lanes
        first = self._first(extent - lanes)
        with ExitStack() as stack:
            lane = self._lanes(stack, lanes)
            fresh = lane >= done - (extent - lanes)
            self._element(stage, accumulators, [*outer, lane + first], self.row, 0, lane, fresh)

    def _first(self, place: Expr) -> Expr:
        """Return the first position of a vector. Along joined dimensions of open size it is a variable, so that
        quotients and remainders by these sizes are recognised as belonging together.
        """
        extent = self.loops.extents[-1]
        if not is_open(extent) or extent in self.loops.shape:
            return place
        return self.evaluator.bind(integer(place, "int64") if is_open(place) else place)

    def _lanes(self, stack: ExitStack, lanes: int) -> Expr:
        return enter_lanes(self.evaluator, stack, lanes)

    # -- one element -------------------------------------------------------------------------------------------

    def _row_at(self, slot: Expr) -> list[Expr]:
        """Return the index in the kept dimensions of row number `slot` of the block."""
        return [*self.row[:-1], self.row[-1] + slot] if self.loops.columns else self.row

    def _full_index(self, row: Sequence[Expr], line: Sequence[Expr]) -> Index:
        kept, reduced = iter(row), iter(line)
        merged = [next(reduced) if r else next(kept) for r in self.loops.reduced]
        return reshape_index(merged, self.loops.extents, self.loops.shape, self.evaluator.simplify)

    def _element(
        self, stage: RowPass, accumulators: dict[Node, Accumulator], line: list[Expr], row: Sequence[Expr],
        column: Expr, slot: Expr, fresh: Expr | None,
    ) -> None:  # fmt: skip
        """Emit all that a pass does with one element. `column`: row of the block; `slot`: position in the
        accumulators.
        """
        evaluator = self.evaluator
        index = self._full_index(row, line)
        self.at = (
            index,
            self._reduced_index(row),
            ravel(line, self.loops.line_extents) * self.loops.width + column,
            column,
        )
        for value in stage.cached:
            result = evaluator.value(value, index)
            T.buffer_store(self.caches[value], to_accumulator(result, value.dtype), [evaluator.simplify(self.at[2])])
        for value in stage.outputs:
            source, place = before_views(self.plan.group.roles, value, index, evaluator.simplify)
            store(self.results[value], value.tensor_type, place, evaluator.value(source, index), evaluator.simplify)
        for node, accumulator in accumulators.items():
            accumulator.add(evaluator.value(node.inputs[0], index), index, slot, fresh)

    def _cache_source(self, value: Value) -> Callable[[Sequence[Expr]], Expr | None]:
        def source(index: Sequence[Expr]) -> Expr | None:
            if not self._same(index, self.at[0]):
                return None
            element = self.caches[value][self.evaluator.simplify(self.at[2])]
            return from_accumulator(element, value.dtype)

        return source

    def _same(self, a: Sequence[Expr], b: Sequence[Expr]) -> bool:
        return len(a) == len(b) and all(self._equal(x, y) for x, y in zip(a, b, strict=True))

    def _equal(self, x: Expr, y: Expr) -> bool:
        if isinstance(x, int) or isinstance(y, int):
            return isinstance(x, int) and isinstance(y, int) and x == y
        if StructuralKey(x) == StructuralKey(y):
            return True
        return bool(self.evaluator.analyzer.can_prove_equal(x, y))

    # -- reduced values ----------------------------------------------------------------------------------------

    def _reduced_index(self, row: Sequence[Expr]) -> Index:
        """Return the index of the row in S with the reduced dimensions at 0."""
        return self._full_index(row, [0] * len(self.loops.line_extents))

    def _reduced_source(self, value: Value, read: Callable[[Expr], Expr]) -> Callable[[Sequence[Expr]], Expr]:
        """Return a reader of a reduced value of the current row; `read(column)` gives it by its position in the
        block.
        """
        whole = len(value.shape) == len(self.loops.shape)

        def source(index: Sequence[Expr]) -> Expr:
            expected = self.at[1] if whole else self._without_reduced(value, self.at[1])
            if not self._same(index, expected):
                assert value.producer is not None
                raise KernelError(
                    f"%{value.name} is read in another row than it is computed in", value.producer.origins
                )
            return read(self.at[3])

        return source

    def _without_reduced(self, value: Value, index: Index) -> Index:
        """Return the entries of a row's index that a value of lower rank has."""
        entries = [i for axis, i in enumerate(index) if axis not in self.loops.axes]
        return tuple(0 if d == 1 else i for i, d in zip(entries, value.shape, strict=True))

    def _compute_reduced(self) -> None:
        """Compute the values of the row that are now available, once, for reading by every element."""
        ready = set(self.evaluator.sources)
        loops = self.loops
        for value in self.plan.reduced:
            node = value.producer
            assert node is not None
            is_reduction = kind_of(node.op) is Kind.REDUCTION
            if value in ready or is_reduction or not all(self._known(v, ready) for v in node.inputs):
                continue
            ready.add(value)
            if not loops.columns:
                self.at = ((), self._reduced_index(self.row), 0, 0)
                scalar = self.evaluator.value(value, self._index_of(value, self.row))
                self.evaluator.sources[value] = self._reduced_source(value, partial(_constantly, scalar))
                continue
            dtype = storage_dtype(compute_dtype(value.dtype))
            buffer = T.alloc_buffer((loops.block,), dtype, scope="local")
            self._for_columns(partial(self._keep, value, buffer))
            self.evaluator.sources[value] = self._reduced_source(value, partial(_kept, value, buffer))

    def _keep(self, value: Value, buffer: Any, slot: Expr) -> None:
        element = self.evaluator.value(value, self._index_of(value, self._row_at(slot)))
        T.buffer_store(buffer, to_accumulator(element, value.dtype), [slot])

    def _known(self, value: Value, ready: set[Value]) -> bool:
        if value in ready or value.is_constant:
            return True
        return (
            value.producer is not None
            and value not in self.plan.reduced
            and all(self._known(v, ready) for v in value.producer.inputs)
        )

    def _for_columns(self, body: Callable[[Expr], None]) -> None:
        for vector in range(self.loops.vectors):
            with ExitStack() as stack:
                slot = self._lanes(stack, self.loops.lanes) + vector * self.loops.lanes
                self.at = ((), self._reduced_index(self._row_at(slot)), 0, slot)
                body(slot)

    def _index_of(self, value: Value, row: Sequence[Expr]) -> Index:
        index = self._reduced_index(row)
        return index if len(value.shape) == len(self.loops.shape) else self._without_reduced(value, index)

    def _store_reduced(self) -> None:
        evaluator = self.evaluator
        for value in self.plan.reduced:
            if value not in self.results:
                continue

            def write(slot: Expr, value: Value = value) -> None:
                index = self._index_of(value, self._row_at(slot))
                store(self.results[value], value.tensor_type, index, evaluator.value(value, index), evaluator.simplify)

            if self.loops.columns:
                self._for_columns(write)
            else:
                self.at = ((), self._reduced_index(self.row), 0, 0)
                write(0)


def _constantly(scalar: Expr, column: Expr) -> Expr:
    return scalar


def _kept(value: Value, buffer: Any, column: Expr) -> Expr:
    return from_accumulator(buffer[column], value.dtype)
