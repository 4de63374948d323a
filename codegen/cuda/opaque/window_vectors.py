"""Sliding windows over channels-last images: a thread computes neighbouring channels of some neighbouring pixels.

It reads each element of the image in its windows once, in vectors of channels: columns of the windows are reduced
first, and then combined to windows. Elements outside of the image count as the reducer's identity.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda import functions
from tilestitch.codegen.cuda.abi import CudaLaunch, Emission, Parameter, Thread, ValueArg, kernel_function
from tilestitch.codegen.cuda.elementwise.vectors import VectorAccess, filled_vector
from tilestitch.codegen.cuda.pieces import named, registers, when
from tilestitch.codegen.cuda.positions import below, both, index_dtype_of
from tilestitch.codegen.groups import GroupView
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.sizes import Size, ceil_div
from tilestitch.compiler.ir.types import is_float, to_numpy_dtype
from tilestitch.passes.plan.access.windows import window_extents
from tilestitch.passes.plan.schedules import WindowSchedule


def lower_window_vectors(
    view: GroupView, anchor: Node, outputs: Sequence[Value], schedule: WindowSchedule
) -> CudaLaunch:
    """Return the launch of a window_reduce group whose schedule has several results per thread."""
    extents = window_extents(anchor, schedule)
    count, threads = prod(extents), schedule.threads
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*view.inputs, *outputs)]
    blocks, dtype = ceil_div(count, threads), index_dtype_of(view.nodes)
    grid, block = (blocks, 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        evaluator = Evaluator({}, dtype, functions.RULES)
        number = named(T.cast(thread.block[0], dtype) * threads + thread.thread[0])
        with when(below(number, count, blocks * threads)):
            place = [named(i) for i in unravel(number, extents)]
            for i, extent in zip(place, extents, strict=True):
                if not isinstance(i, int):
                    evaluator.assume(i, 0, extent)
            read = dict(zip(view.inputs, buffers, strict=False))
            stored = list(zip(outputs, buffers[len(view.inputs) :], strict=True))
            _Windows(evaluator, anchor, schedule, place, read[anchor.inputs[0]]).run(read, stored)

    func = kernel_function(parameters, grid, block, body)
    args, emission = tuple(ValueArg(v.name) for v in (*view.inputs, *outputs)), Emission(tuple(parameters), body)
    return CudaLaunch("window", func, grid, block, args, view.origins, emission=emission)


class _Windows:
    """The results of a thread: `lanes` channels from `channel`, of `pixels` windows from `column`."""

    def __init__(
        self, evaluator: Evaluator, anchor: Node, schedule: WindowSchedule, place: Sequence[Expr], image: Any
    ) -> None:
        self.evaluator, self.anchor, self.image = evaluator, anchor, image
        self.x, attrs = anchor.inputs[0], anchor.attrs
        self.reducer, self.kernel = attrs["reducer"], attrs["kernel"]
        self.strides, self.dilations, self.before = (attrs[n] for n in ("strides", "dilations", "before"))
        self.lanes, self.pixels = schedule.lanes, schedule.pixels
        self.number, *self.rows, column, vector = place
        self.column, self.channel = column * self.pixels, vector * self.lanes

    def run(self, read: dict[Value, Any], stored: Sequence[tuple[Value, Any]]) -> None:
        steps = [[p * self.strides[-1] + t * self.dilations[-1] for t in range(self.kernel[-1])] for p in self._pixels]
        columns = {distance: self._column(distance) for distance in sorted({d for step in steps for d in step})}
        for pixel, step in zip(self._pixels, steps, strict=True):
            results = self._combined(columns[distance] for distance in step)
            self._store(pixel, results, read, stored)

    @property
    def _pixels(self) -> range:
        return range(self.pixels)

    def _column(self, distance: int) -> list[Expr]:
        """Return the reduction of a column, shared by all windows that contain it."""
        at = named(self.column * self.strides[-1] + (distance - self.before[-1]))
        inside = self._within(at, len(self.kernel) - 1)
        return self._combined([self._elements(taps, at, inside) for taps in product(*map(range, self.kernel[:-1]))])

    def _elements(self, taps: Sequence[int], column: Expr, inside: Expr | None) -> list[Expr]:
        places = []
        for axis, (row, tap) in enumerate(zip(self.rows, taps, strict=True)):
            distance = tap * self.dilations[axis] - self.before[axis]
            places.append(self.evaluator.bind(row * self.strides[axis] + distance))
            inside = both(inside, self._within(places[-1], axis))
        index = (self.number, *places, column, self.channel)
        fill = identity_bits(self.reducer, self.x.dtype)
        return [
            named(reducers.to_accumulator(element, self.x.dtype))
            for element in filled_vector(self.evaluator, self.image, self.x, index, self.lanes, inside, fill)
        ]

    def _within(self, at: Expr, axis: int) -> Expr | None:
        """Return whether a position is inside the image; None if all positions of the windows are."""
        size, windows = self.x.shape[1 + axis], self.anchor.output.shape[1 + axis]
        reach = (windows - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis] - self.before[axis]
        return None if self.before[axis] == 0 and _surely_below(reach, size) else T.And(at >= 0, at < size)

    def _combined(self, parts: Iterable[Sequence[Expr]]) -> list[Expr]:
        """Return the reduction of all parts, in registers, as TVM takes very long for chains of selects."""
        dtype, (first, *others) = self.x.dtype, parts
        running = registers(self.lanes, reducers.accumulator_dtype(dtype))
        for lane, element in enumerate(first):
            T.buffer_store(running, element, [lane])
        for part in others:
            for lane, element in enumerate(part):
                T.buffer_store(running, functions.combine(self.reducer, dtype, named(running[lane]), element), [lane])
        return [named(running[lane]) for lane in range(self.lanes)]

    def _store(
        self, pixel: int, results: Sequence[Expr], read: dict[Value, Any], stored: Sequence[tuple[Value, Any]]
    ) -> None:
        """Store the outputs that follow from a window's results, in vectors."""
        evaluator, result = self.evaluator, self.anchor.output
        access = VectorAccess(evaluator, self.lanes)
        with evaluator.scope():
            evaluator.sources.update((value, access.source(buffer, value)) for value, buffer in read.items())
            indices = [
                (self.number, *self.rows, self.column + pixel, self.channel + lane) for lane in range(self.lanes)
            ]
            found: list[list[Expr]] = [[] for _ in stored]
            for index, element in zip(indices, results, strict=True):
                evaluator.sources[result] = lambda _, element=element: reducers.from_accumulator(element, result.dtype)  # type: ignore[misc]
                for elements, (value, _) in zip(found, stored, strict=True):
                    elements.append(evaluator.value(value, index))
            for elements, (value, buffer) in zip(found, stored, strict=True):
                access.store(buffer, value, indices, elements)


def _surely_below(place: Size, size: Size) -> bool:
    return isinstance(place, int) and isinstance(size, int) and place < size


def identity_bits(reducer: str, dtype: str) -> int:
    """Return the bits of the reducer's identity, as an element is stored."""
    numpy = to_numpy_dtype(dtype)
    lowest = float("-inf") if is_float(dtype) else np.iinfo(numpy).min
    number = {"sum": 0, "prod": 1, "max": lowest}[reducer]
    return int(np.array([number]).astype(numpy).view(f"uint{numpy.itemsize * 8}")[0])
