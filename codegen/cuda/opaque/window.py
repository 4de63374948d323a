"""The template of sliding-window reductions (pooling): one thread per output element, followed by the epilogue."""

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda import functions
from tilestitch.codegen.cuda.abi import (
    CudaLaunch,
    Emission,
    Parameter,
    Thread,
    ValueArg,
    buffer_source,
    kernel_function,
    store,
)
from tilestitch.codegen.cuda.opaque.window_vectors import lower_window_vectors
from tilestitch.codegen.cuda.positions import index_dtype_of
from tilestitch.codegen.groups import GroupView
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.roles import Roles
from tilestitch.passes.plan.schedules import WindowSchedule


def lower_window(view: GroupView, roles: Roles, outputs: Sequence[Value], schedule: WindowSchedule) -> CudaLaunch:
    """Return the launch of a window_reduce group: pooling with its epilogue."""
    anchor, threads = roles.anchor, schedule.threads
    assert anchor is not None
    if schedule.lanes * schedule.pixels > 1:
        return lower_window_vectors(view, anchor, outputs, schedule)
    result = anchor.outputs[0]
    count = result.tensor_type.num_elements
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*view.inputs, *outputs)]
    dtype = index_dtype_of(view.nodes)
    grid, block = (-(-count // threads), 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        evaluator = Evaluator({}, dtype, functions.RULES)
        for value, buffer in zip(view.inputs, buffers, strict=False):
            evaluator.sources[value] = buffer_source(buffer, value.tensor_type, evaluator.simplify)
        place = T.bind(T.cast(thread.block[0], dtype) * threads + thread.thread[0])
        with T.If(place < count), T.Then():
            index = [i if isinstance(i, int) else T.bind(i) for i in unravel(place, result.shape)]
            for i, extent in zip(index, result.shape, strict=True):
                if not isinstance(i, int):
                    evaluator.assume(i, 0, extent)
            reduced = _reduced(_Window(anchor.attrs, anchor.inputs[0]), index, evaluator)
            evaluator.sources[result] = lambda _: reduced
            elements = [evaluator.value(value, index) for value in outputs]
            for value, buffer, element in zip(outputs, buffers[len(view.inputs) :], elements, strict=True):
                store(buffer, value.tensor_type, index, element, evaluator.simplify)

    func = kernel_function(parameters, grid, block, body)
    args = tuple(ValueArg(v.name) for v in (*view.inputs, *outputs))
    emission = Emission(tuple(parameters), body)
    return CudaLaunch("window", func, grid, block, args, view.origins, emission=emission)


class _Window:
    """The attributes of a window_reduce by their meaning; `first` is the first spatial axis."""

    def __init__(self, attrs: Any, operand: Value) -> None:
        self.reducer: str = attrs["reducer"]
        self.kernel: tuple[int, ...] = attrs["kernel"]
        self.strides: tuple[int, ...] = attrs["strides"]
        self.before: tuple[int, ...] = attrs["before"]
        self.dilations: tuple[int, ...] = attrs["dilations"]
        self.first = 2 if attrs["layout"] == "NCX" else 1
        self.operand = operand

    def bounds(self, axis: int, position: Expr) -> tuple[Expr, Expr]:
        """Return the taps [first, end) along a spatial axis that lie inside the operand."""
        size, dilation, taps = self.operand.shape[self.first + axis], self.dilations[axis], self.kernel[axis]
        start = position * self.strides[axis] - self.before[axis]
        if isinstance(start, int):
            low, high = max(0, -(start // dilation)), min(taps, -((start - size) // dilation))
            return low, max(low, high)
        low = T.max((dilation - 1 - start) // dilation, 0)
        return T.bind(low), T.bind(T.min((size - start + dilation - 1) // dilation, taps))


def _reduced(window: _Window, index: list[Expr], evaluator: Evaluator) -> Expr:
    dtype = window.operand.dtype
    spatial = index[window.first : window.first + len(window.kernel)]
    bounds = [window.bounds(axis, i) for axis, i in enumerate(spatial)]
    running = T.alloc_buffer((1,), reducers.accumulator_dtype(dtype), scope="local")
    T.buffer_store(running, reducers.identity(window.reducer, dtype), [0])
    if prod(window.operand.shape) == 0:
        return named(reducers.from_accumulator(running[0], dtype))
    with ExitStack() as stack:
        place = list(index)
        for axis, (low, high) in enumerate(bounds):
            tap = stack.enter_context(T.serial(low, high))
            stack.enter_context(evaluator.scope((tap, 0, window.kernel[axis])))
            start = spatial[axis] * window.strides[axis] - window.before[axis]
            place[window.first + axis] = start + tap * window.dilations[axis]
        element = named(reducers.to_accumulator(evaluator.value(window.operand, place), dtype))
        before = named(running[0])
        T.buffer_store(running, functions.combine(window.reducer, dtype, before, element), [0])
    return evaluator.bind(reducers.from_accumulator(running[0], dtype))
