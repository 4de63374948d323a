"""The template of element-wise groups, data movement and views: every output element is computed where it is stored.

The outputs have one number of elements, over which the threads iterate in the shape of the first output. Adjacent
dimensions that all operands traverse alike are merged. Each thread computes a few vectors, a block's width apart, so
that neighbouring threads access neighbouring memory and several loads are in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import Index, domain_indices, unravel, values_between
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda import functions
from tilestitch.codegen.cuda.abi import CudaLaunch, Emission, Parameter, Thread, ValueArg, kernel_function
from tilestitch.codegen.cuda.elementwise.vectors import VectorAccess
from tilestitch.codegen.cuda.positions import index_dtype
from tilestitch.compiler.ir.accesses import elementwise_walk
from tilestitch.compiler.ir.graph import Value
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.schedules import ElementwiseSchedule, OpenElementwiseSchedule


@dataclass(frozen=True)
class Work:
    """Iteration over `extents` (merged dimensions) by a schedule."""

    extents: tuple[int, ...]
    schedule: ElementwiseSchedule

    @property
    def lanes(self) -> int:
        return self.schedule.lanes

    @property
    def vectors(self) -> int:
        return self.schedule.vectors

    @property
    def threads(self) -> int:
        return self.schedule.threads

    @property
    def cut_axis(self) -> int:
        return self.schedule.cut_axis

    @property
    def cuts(self) -> tuple[int, ...]:
        return self.schedule.cuts

    @property
    def vector_extents(self) -> tuple[int, ...]:
        """The iteration space of vectors."""
        return (*self.extents[:-1], self.extents[-1] // self.lanes)

    @property
    def count(self) -> int:
        """The number of vectors."""
        return prod(self.vector_extents)

    @property
    def blocks(self) -> int:
        return -(-self.count // (self.threads * self.vectors))


def lower_injective(
    inputs: Sequence[Value], outputs: Sequence[Value], schedule: ElementwiseSchedule, args: Sequence[Any],
    origins: tuple[str, ...],
) -> CudaLaunch:  # fmt: skip
    """Return the launch of an injective group. `args`: of the inputs, then of the outputs."""
    extents = (
        schedule.extents if isinstance(schedule, OpenElementwiseSchedule) else elementwise_walk(inputs, outputs)[0]
    )
    work = Work(extents, schedule)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*inputs, *outputs)]
    grid, block = (work.blocks, 1, 1), (work.threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        _Emitter(work, inputs, outputs, buffers, index_dtype(values_between(outputs, inputs))).run(thread)

    func = kernel_function(parameters, grid, block, body)
    return CudaLaunch("injective", func, grid, block, tuple(args), origins, emission=Emission(tuple(parameters), body))


class _Emitter:
    def __init__(
        self, work: Work, inputs: Sequence[Value], outputs: Sequence[Value], buffers: list[Any], dtype: str
    ) -> None:
        self.work, self.dtype = work, dtype
        self.evaluator = Evaluator({}, dtype, functions.RULES)
        self.reads = list(zip(inputs, buffers, strict=False))
        self.results = list(zip(outputs, buffers[len(inputs) :], strict=True))

    def run(self, thread: Thread) -> None:
        work = self.work
        first = T.bind(T.cast(thread.block[0], self.dtype) * (work.threads * work.vectors) + thread.thread[0])
        self.evaluator.assume(first, 0, work.blocks * work.threads * work.vectors)
        exact = work.count == work.blocks * work.threads * work.vectors
        last = integer(work.count - 1, self.dtype) if is_open(work.count) else work.count - 1
        points = []
        for vector in range(work.vectors):
            place = first + vector * work.threads
            # Threads past the end recompute the last vector without storing it.
            points.append((place, place if exact else T.min(place, last)))
        stores = [self._vector(T.bind(at) if not isinstance(at, int) else at) for _, at in points]
        for (place, _), store in zip(points, stores, strict=True):
            if exact:
                store()
                continue
            with T.If(place < work.count), T.Then():
                store()

    def _vector(self, number: Expr) -> Callable[[], None]:
        """Compute vector `number` and return the function that stores it, so that the loads of all vectors come
        first.
        """
        self.evaluator.assume(number, 0, self.work.count)
        index = self._index(number)
        if self.work.cuts:
            return lambda: self._branches(index, 0, self.work.extents[self.work.cut_axis], self.work.cuts)
        return self._computed(index)

    def _index(self, number: Expr) -> list[Expr]:
        """Return the index where vector `number` begins."""
        index: list[Expr] = []
        for i, extent in zip(unravel(number, self.work.vector_extents), self.work.vector_extents, strict=True):
            entry = i if isinstance(i, int) else T.bind(i)
            if not isinstance(entry, int):
                self.evaluator.assume(entry, 0, extent)
            index.append(entry)
        index[-1] = index[-1] * self.work.lanes
        return index

    def _branches(self, index: list[Expr], low: int, high: int, cuts: tuple[int, ...]) -> None:
        """Emit one branch for each run between cuts, in which it is known what is read."""
        if not cuts:
            axis = self.work.cut_axis
            step = self.work.lanes if axis == len(index) - 1 else 1
            place = T.bind(index[axis] // step)
            with self.evaluator.scope((place, low // step, -(-high // step))):
                self._computed([place * step if d == axis else i for d, i in enumerate(index)])()
            return
        middle = cuts[len(cuts) // 2]
        with T.If(index[self.work.cut_axis] < middle):
            with T.Then():
                self._branches(index, low, middle, cuts[: len(cuts) // 2])
            with T.Else():
                self._branches(index, middle, high, cuts[len(cuts) // 2 + 1 :])

    def _computed(self, start: Sequence[Expr]) -> Callable[[], None]:
        evaluator, work = self.evaluator, self.work
        access = VectorAccess(evaluator, work.lanes)
        evaluator.sources.update((value, access.source(buffer, value)) for value, buffer in self.reads)
        outputs = [value for value, _ in self.results]
        lanes: list[list[tuple[Index, Expr]]] = []
        for lane in range(work.lanes):
            point = [*start[:-1], start[-1] + lane]
            indices = domain_indices(outputs, work.extents, point, evaluator.simplify)
            lanes.append([(at, evaluator.value(v, at)) for v, at in zip(outputs, indices, strict=True)])

        def store() -> None:
            for number, (value, buffer) in enumerate(self.results):
                access.store(buffer, value, [lane[number][0] for lane in lanes], [lane[number][1] for lane in lanes])

        return store


def value_args(inputs: Sequence[Value], outputs: Sequence[Value]) -> tuple[ValueArg, ...]:
    return tuple(ValueArg(v.name) for v in (*inputs, *outputs))
