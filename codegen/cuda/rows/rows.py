"""The template of row-wise groups: reductions over one set of axes with element-wise work before, between and after.

A team of threads computes a row: some lanes of a warp, or all warps of a block. If the last dimension is reduced, the
team walks along it in vectors; if it is kept, neighbouring threads compute neighbouring rows, and the team is
orthogonal to them. If a thread's part of the row is short, its elements stay in registers from one reduction to the
next; otherwise each pass reads them again. A team may have threads of several blocks, which exchange partial results
through global memory (`gridteam`); few long rows that are not read again are split into parts, in launches of their
own.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.evaluator import Evaluator, Source
from tilestitch.codegen.compute.indexing import Index, reshape_index, unravel
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda import functions
from tilestitch.codegen.cuda.abi import CudaLaunch, Emission, Parameter, Thread, kernel_function
from tilestitch.codegen.cuda.elementwise.injective import lower_injective
from tilestitch.codegen.cuda.elementwise.vectors import VectorAccess
from tilestitch.codegen.cuda.positions import index_dtype_of
from tilestitch.codegen.cuda.rows.gridteam import GridTeam, counter_parameter, partial_parameters
from tilestitch.codegen.cuda.rows.team import Accumulator, Team, accumulator_dtypes
from tilestitch.codegen.groups import GroupView, before_views, levels
from tilestitch.codegen.launch import KernelArg, ValueArg, piece_args
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.access.row_loops import RowLoops, full_outputs, scheduled_loops
from tilestitch.passes.plan.access.split_rows import pieces_of
from tilestitch.passes.plan.parts import Part, Roles
from tilestitch.passes.plan.schedules import RowSchedule, SplitRowSchedule


def lower_rowwise(
    view: GroupView, roles: Roles, outputs: Sequence[Value], schedule: RowSchedule | SplitRowSchedule
) -> tuple[CudaLaunch, ...]:
    """Return the launches of a row-wise group whose outputs have elements."""
    if isinstance(schedule, SplitRowSchedule):
        return tuple(_pieces(view, roles, outputs, schedule))
    args = tuple(ValueArg(v.name) for v in (*view.inputs, *outputs))
    return (_launch(view.nodes, roles, view.inputs, outputs, args, view.origins, schedule),)


def _pieces(
    view: GroupView, roles: Roles, outputs: Sequence[Value], schedule: SplitRowSchedule
) -> Iterator[CudaLaunch]:
    assert roles.rows is not None
    pieces, own = pieces_of(view, outputs, roles.rows, schedule.parts)

    for (piece, found), each in zip(pieces, schedule.pieces, strict=True):
        args = piece_args((*piece.inputs, *piece.outputs), own, view.name)
        if isinstance(each, RowSchedule):
            yield _launch(piece.nodes, found, piece.inputs, piece.outputs, args, view.origins, each)
        else:
            yield lower_injective(piece.inputs, piece.outputs, each, args, view.origins)


def _launch(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value],
    args: tuple[KernelArg, ...], origins: tuple[str, ...], schedule: RowSchedule,
) -> CudaLaunch:  # fmt: skip
    work = scheduled_loops(nodes, roles, inputs, outputs, schedule)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*inputs, *outputs)]
    dtype, spread = index_dtype_of(nodes), work.parts > 1
    reductions = [n for n, part in roles.parts.items() if part is Part.REDUCTION]
    kinds = [accumulator_dtypes(n, dtype) for n in reductions]
    exchange = partial_parameters(reductions, kinds, work.parts * work.row_blocks * work.rows) if spread else []
    own = [*exchange, *([counter_parameter()] if spread else [])]
    grid = (work.blocks, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        emitter = RowEmitter(work, nodes, roles, inputs, outputs, buffers[: len(parameters)], dtype)
        if spread:
            *partials, counter = buffers[len(parameters) :]
            each = iter(partials)
            emitter.exchange = counter, {n: [next(each) for _ in k] for n, k in zip(reductions, kinds, strict=True)}
        emitter.run(thread)

    func = kernel_function([*parameters, *own], grid, work.block, body)
    args = (*args, *(p.arg for p in own))
    emission = Emission((*parameters, *own), body)
    return CudaLaunch("rowwise", func, grid, work.block, args, origins, cooperative=spread, emission=emission)


# -- the code ----------------------------------------------------------------------------------------------------------


class RowEmitter:
    """Emitter of one thread: all passes over its part of one row."""

    def __init__(
        self, work: RowLoops, nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value],
        buffers: list[Any], dtype: str,
    ) -> None:  # fmt: skip
        self.work, self.roles, self.dtype = work, roles, dtype
        self.evaluator = Evaluator({}, dtype, functions.RULES)
        self.reads = list(zip(inputs, buffers, strict=False))
        self.results = dict(zip(outputs, buffers[len(inputs) :], strict=True))
        self.level = levels(nodes, roles)
        self.reductions = [n for n, part in roles.parts.items() if part is Part.REDUCTION]
        small = (Part.REDUCTION, Part.REDUCED)
        self.reduced = [v for n, part in roles.parts.items() if part in small for v in n.outputs]
        self.full = full_outputs(roles, outputs)
        self.exchange: tuple[Any, dict[Node, list[Any]]] | None = None
        """The counter of the grid barrier and the memory of partial results, if several blocks share a row."""

    def run(self, thread: Thread) -> None:
        """Emit one thread of a launch."""
        work = self.work
        across, along = (thread.thread[0], thread.thread[1]) if work.columns else (thread.thread[1], thread.thread[0])
        if work.team == 1 or isinstance(along, int):
            along = 0
        team = Team(work.team, work.rows, work.columns, along, across)
        number = thread.block[0]
        part: Expr = 0
        if work.parts > 1:
            part, number = T.bind(number % work.parts), T.bind(number // work.parts)
        place = T.bind(T.cast(number, self.dtype) * work.rows + across)
        grid: GridTeam | None = None
        if self.exchange is not None:
            grid = GridTeam(team, work.parts, part, work.row_blocks * work.rows, place, *self.exchange)
        # Threads past the last row recompute it without storing it.
        exact = work.row_count % work.rows == 0
        number = place if exact else T.bind(T.min(place, _size(work.row_count - 1, self.dtype)))
        self.row(team, number, None if exact else place < work.row_count, part, grid)

    def row(
        self, team: Team, number: Expr, active: Expr | None, part: Expr = 0, grid: GridTeam | None = None
    ) -> None:  # fmt: skip
        """Emit one thread of a team for row `number`, which it stores if `active` (None: it does).

        `part`, `grid`: the part of the row, if blocks share it.
        """
        work, evaluator = self.work, self.evaluator
        self.team, self.along, self.part, self.grid, self.active = team, team.along, part, grid, active
        evaluator.assume(number, 0, work.row_count)
        self.place: list[Expr] = []
        for i, extent in zip(unravel(number, work.row_extents), work.row_extents, strict=True):
            entry = i if isinstance(i, int) else T.bind(i)
            if not isinstance(entry, int):
                evaluator.assume(entry, 0, extent)
            self.place.append(entry)
        self.access = self._fresh_access()
        self.places: dict[int, tuple[Expr | None, list[Index]]] = {}
        for stage in range(max(self.level[n.outputs[0]] for n in self.reductions) + 1):
            self._stage(stage)
        self._store_reduced()

    def _fresh_access(self) -> VectorAccess:
        access = VectorAccess(self.evaluator, self.work.lanes)
        self.evaluator.sources.update((value, access.source(buffer, value)) for value, buffer in self.reads)
        return access

    def _stage(self, stage: int) -> None:
        """Emit one pass over the row: whatever needs `stage` passes before it is reduced or stored."""
        work = self.work
        finished = [n for n in self.reductions if self.level[n.outputs[0]] == stage + 1]
        stored = [v for v in self.full if self.level[v] == stage]
        if not finished and not stored:
            return
        accumulators = [Accumulator(node, self.evaluator, self.dtype) for node in finished]
        if (is_open(work.vectors) or work.vectors) and work.unrolled:
            for step in range(work.steps):
                self._vector(step, accumulators, stored)
        elif is_open(work.vectors) or work.vectors:
            with T.serial(0, _size(work.steps, self.dtype)) as step, self.evaluator.scope((step, 0, work.steps)):
                self.access = self._fresh_access()
                self._vector(step, accumulators, stored)
            self.access = self._fresh_access()
        if self.grid is not None and accumulators:
            results = self.grid.finish(accumulators)
        else:
            results = [a.finish(self.team) for a in accumulators]
        for accumulator, result in zip(accumulators, results, strict=True):
            self.evaluator.sources[accumulator.node.outputs[0]] = _always(result)
        for value in self.reduced:
            if self.level[value] == stage + 1:
                self.evaluator.value(value, self._row_index(value))

    def _vector(self, step: Expr, accumulators: Sequence[Accumulator], stored: Sequence[Value]) -> None:
        evaluator = self.evaluator
        if not isinstance(step, int):
            fresh, indices = self._place(step)
        else:
            # The same names in every pass, so that memoised values of a position are found again.
            if step not in self.places:
                self.places[step] = self._place(step)
            fresh, indices = self.places[step]
        for accumulator in accumulators:
            operand = accumulator.node.inputs[0]
            for index in indices:
                accumulator.add(evaluator.value(operand, index), index, fresh)
        for value in stored:
            buffer = self.results[value]
            found = [before_views(self.roles, value, index, evaluator.simplify) for index in indices]
            elements = [evaluator.value(source, index) for (source, _), index in zip(found, indices, strict=True)]
            places = [place for _, place in found]
            self._guarded(fresh, lambda v=value, b=buffer, p=places, e=elements: self.access.store(b, v, p, e))

    def _place(self, step: Expr) -> tuple[Expr | None, list[Index]]:
        """Return whether this thread has a vector number `step` (None: it has), and the indices of its lanes."""
        work = self.work
        place = step * work.walkers + self.along
        if work.parts > 1:
            place = place + self.part * work.team
        fresh: Expr | None = None
        number: Expr = place
        if not isinstance(place, int):
            number = place = T.bind(place)
            if work.vectors != work.steps * work.walkers:
                fresh, number = place < work.vectors, T.bind(T.min(place, _size(work.vectors - 1, self.dtype)))
        if not isinstance(number, int):
            self.evaluator.assume(number, 0, work.vectors)
        return fresh, [self._index(number * work.lanes + lane) for lane in range(work.lanes)]

    def _index(self, position: Expr) -> Index:
        """Return the index in the iteration shape of an element of this thread's row."""
        line = unravel(position, self.work.line_extents)
        kept, reduced = iter(self.place), iter(line)
        merged = [next(reduced) if r else next(kept) for r in self.work.reduced]
        return reshape_index(merged, self.work.extents, self.work.shape, self.evaluator.simplify)

    def _row_index(self, value: Value) -> Index:
        """Return the position of this thread's row in a reduced value."""
        kept, rows = iter(self.place), self.roles.rows
        assert rows is not None
        merged = [0 if r else next(kept) for r in self.work.reduced]
        index = reshape_index(merged, self.work.extents, self.work.shape, self.evaluator.simplify)
        if value.shape == rows.kept:
            return tuple(0 if d == 1 else i for i, d in zip(index, value.shape, strict=True))
        entries = [i for axis, i in enumerate(index) if axis not in rows.axes]
        return tuple(0 if d == 1 else i for i, d in zip(entries, value.shape, strict=True))

    def _guarded(self, condition: Expr | None, body: Any) -> None:
        conditions = [c for c in (condition, self.active) if c is not None]
        if not conditions:
            body()
            return
        with T.If(tirx.all(*conditions) if len(conditions) > 1 else conditions[0]), T.Then():
            body()

    def _store_reduced(self) -> None:
        stores = [(v, self._row_index(v)) for v in self.reduced if v in self.results]
        if not stores:
            return
        elements = [self.evaluator.value(v, index) for v, index in stores]
        firsts = [tirx.EQ(i, 0) for i in (self.along, self.part) if not isinstance(i, int)]
        first = tirx.all(*firsts) if len(firsts) > 1 else firsts[0] if firsts else None
        single = VectorAccess(self.evaluator, 1)

        def write() -> None:
            for (value, index), element in zip(stores, elements, strict=True):
                single.store(self.results[value], value, [index], [element])

        self._guarded(first, write)


def _always(result: Expr) -> Source:
    """Return a reader that ignores the index: the thread computes one row only."""
    return lambda index: result


def _size(size: int, dtype: str) -> Expr:
    return integer(size, dtype) if is_open(size) else size
