"""Contractions with too little reuse for tiles: every thread computes one result, neighbours along memory; or, of
convolutions of narrow groups over channels-last images, neighbouring channels of some pixels.

For each row of the kernel such a thread reads the weights once, and each column of the image that its pixels need once,
in vectors of channels. Columns outside of the image count as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, widen
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda.abi import CudaLaunch, Thread
from tilestitch.codegen.cuda.elementwise.vectors import filled_vector
from tilestitch.codegen.cuda.pieces import named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Anchored, Surroundings
from tilestitch.compiler.ir.graph import Value
from tilestitch.compiler.ir.sizes import Size, ceil_div
from tilestitch.passes.plan.access.windows import direct_extents
from tilestitch.passes.plan.gemm.contractions import ConvShape
from tilestitch.passes.plan.schedules import DirectSchedule

Terms = Callable[[Sequence[Expr], Expr], tuple[tuple[Expr, ...], tuple[Expr, ...], "Expr | None"]]
"""`terms(index of the result, k)`: the indices of the two elements whose product is summed, and whether they exist."""

MOST_UNROLLED = 32


def emit_direct(
    group: Anchored, kind: str, operands: tuple[Value, Value], reduction: int, terms: Terms,
    threads: int,
) -> CudaLaunch:  # fmt: skip
    """Return the launch of a contraction with `reduction` terms per result."""
    shape, acc = group.result.shape, group.acc_dtype
    count = group.result.tensor_type.num_elements
    blocks = -(-count // threads)
    loop = unrolled if reduction <= MOST_UNROLLED else repeated

    def emit(around: Surroundings, thread: Thread) -> None:
        at = named(around.wide(thread.block[0]) * threads + thread.thread[0])
        with when(below(at, count, blocks * threads)):
            index = tuple(named(i) for i in unravel(at, shape))
            total = registers(1, acc)
            T.buffer_store(total, zero(acc), [0])
            if reduction:
                with loop(reduction) as k:
                    left, right, exists = terms(index, k)
                    with when(exists):
                        a, b = (
                            widen(around.load(value, place), value.dtype, acc)
                            for value, place in zip(operands, (left, right), strict=True)
                        )
                        T.buffer_store(total, total[0] + a * b, [0])
            around.finish(index, total[0])

    return group.launch(kind, blocks, threads, emit)


def emit_direct_vectors(group: Anchored, shape: ConvShape, schedule: DirectSchedule) -> CudaLaunch:
    """Return the launch of a convolution whose schedule has several results per thread."""
    extents = direct_extents(group, schedule)
    count, threads = prod(extents), schedule.threads
    blocks = ceil_div(count, threads)

    def emit(around: Surroundings, thread: Thread) -> None:
        number = named(around.wide(thread.block[0]) * threads + thread.thread[0])
        with when(below(number, count, blocks * threads)):
            _Results(around, shape, schedule, _place(around, number, extents)).run()

    return group.launch("conv_direct", blocks, threads, emit)


def _place(around: Surroundings, number: Expr, extents: Sequence[Size]) -> list[Expr]:
    place = [named(i) for i in unravel(number, extents)]
    for i, extent in zip(place, extents, strict=True):
        if not isinstance(i, int):
            around.evaluator.assume(i, 0, extent)
    return place


class _Results:
    """The results of a thread: `lanes` channels from `channel`, of `pixels` columns from `column`."""

    def __init__(self, around: Surroundings, shape: ConvShape, schedule: DirectSchedule, place: Sequence[Expr]) -> None:
        group = around.group
        self.around, self.shape, self.acc = around, shape, group.acc_dtype
        self.x, self.w = group.anchor.inputs
        attrs = group.anchor.attrs
        self.strides, self.dilations, self.before = (attrs[n] for n in ("strides", "dilations", "before"))
        self.padded = any(attrs["before"]) or any(attrs["after"])
        self.lanes, self.pixels = schedule.lanes, schedule.pixels
        self.image, *self.rows, column, vector = place
        self.column, self.channel = column * self.pixels, vector * self.lanes
        self.sums = registers(self.pixels * self.lanes, self.acc)

    def run(self) -> None:
        for at in range(self.pixels * self.lanes):
            T.buffer_store(self.sums, zero(self.acc), [at])
        rows = self.shape.kernel[:-1]
        loop = unrolled if self.shape.taps <= MOST_UNROLLED else repeated
        with loop(prod(rows)) as row, self.around.evaluator.scope():
            self._row(tuple(named(tap) for tap in unravel(row, rows)))
        indices, results = [], []
        for pixel in range(self.pixels):
            indices = [(self.image, *self.rows, self.column + pixel, self.channel + lane) for lane in range(self.lanes)]
            results = [named(self.sums[pixel * self.lanes + lane]) for lane in range(self.lanes)]
            self.around.finish_vector(indices, results)

    def _row(self, taps: tuple[Expr, ...]) -> None:
        """Add the products of a row of the kernel and a row of the image."""
        weights = [[self._weights(taps, tap, own) for own in range(self.shape.group_in)] for tap in self._taps]
        places, inside = self._row_of_image(taps)
        columns: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(self.pixels):
            for tap in self._taps:
                columns.setdefault(pixel * self.strides[-1] + tap * self.dilations[-1], []).append((pixel, tap))
        for distance, met in sorted(columns.items()):
            values = self._column(places, inside, distance)
            for pixel, tap in met:
                self._add(pixel, values, weights[tap])

    @property
    def _taps(self) -> range:
        return range(self.shape.kernel[-1])

    def _row_of_image(self, taps: tuple[Expr, ...]) -> tuple[list[Expr], Expr | None]:
        places, inside = [], None
        dimensions = zip(self.rows, taps, self.strides, self.dilations, self.before, self.shape.spatial, strict=False)
        for position, tap, stride, dilation, before, extent in dimensions:
            at = named(position * stride + tap * dilation - before)
            places.append(at)
            inside = both(inside, self._within(at, extent))
        return places, inside

    def _within(self, at: Expr, extent: Size) -> Expr | None:
        return T.And(at >= 0, at < extent) if self.padded else None

    def _weights(self, taps: tuple[Expr, ...], tap: int, own: int) -> list[Expr]:
        """Return the weights of the thread's channels that are multiplied by channel `own` of their groups."""
        return self._vector(self.w, (*taps, tap, own, self.channel), None)

    def _column(self, places: Sequence[Expr], inside: Expr | None, distance: int) -> list[Expr]:
        at = named(self.column * self.strides[-1] + (distance - self.before[-1]))
        there = both(inside, self._within(at, self.shape.spatial[-1]))
        return self._vector(self.x, (self.image, *places, at, self.channel), there)

    def _vector(self, value: Any, index: Sequence[Expr], there: Expr | None) -> list[Expr]:
        around = self.around
        found = filled_vector(around.evaluator, around.flat[value], value, index, self.lanes, there)
        return [named(widen(element, value.dtype, self.acc)) for element in found]

    def _add(self, pixel: int, values: Sequence[Expr], weights: Sequence[Sequence[Expr]]) -> None:
        each = self.shape.group_in
        for lane, own in _pairs(self.lanes, each):
            at = pixel * self.lanes + lane
            product = values[lane // each * each + own] * weights[own][lane]
            T.buffer_store(self.sums, self.sums[at] + product, [at])


def _pairs(lanes: int, each: int) -> Iterator[tuple[int, int]]:
    return ((lane, own) for own in range(each) for lane in range(lanes))
