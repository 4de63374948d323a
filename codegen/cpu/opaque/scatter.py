"""The template of scatters: a copy of the data, then the updates in row-major order, regardless of the number of
threads.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.opaque import fault_message, in_range, offset_of, slice_of, store_update, wrapped
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, StatusArg, kernel_function
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.plan.cpu.opaque import ScatterPlan


def lower_scatter(plan: ScatterPlan) -> tuple[KernelLaunch, ...]:
    """Return a launch that copies and, if there are updates, one that applies them and checks the indices."""
    copy = _copy(plan)
    if not plan.tasks:
        return (copy,)
    return (copy, _elements(plan) if plan.node.op == "scatter_elements" else _slices(plan))


def _copy(plan: ScatterPlan) -> KernelLaunch:
    node, lanes, vectors, per_task = plan.node, plan.schedule.copy_lanes, plan.vectors, plan.schedule.copy_vectors
    x, out = node.inputs[0], node.outputs[0]
    count = x.tensor_type.num_elements
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, out)]

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        source, target = buffers
        first = T.bind(task * per_task)
        with T.serial(first, T.min(first + per_task, integer(vectors, "int64"))) as i:
            start = T.bind(T.min(i * lanes, integer(count - lanes, "int64")))
            if lanes == 1:
                T.buffer_store(target, source[start], [start])
                return
            with T.vectorized(0, lanes) as lane:
                T.buffer_store(target, source[start + lane], [start + lane])

    func = kernel_function(parameters, body)
    return KernelLaunch("copy", func, plan.copy_tasks, tuple(p.arg for p in parameters), node.origins)


def _parameters(node: Node) -> list[Parameter]:
    """Return the parameters: indices, updates, result, status."""
    values: tuple[Value, ...] = (node.inputs[1], node.inputs[2], node.outputs[0])
    return [*(Parameter.of(v.name, v.tensor_type) for v in values), Parameter(StatusArg(), "int32", 1)]


def _launch(node: Node, parameters: list[Parameter], tasks: int, body: Callable[..., None]) -> KernelLaunch:
    func = kernel_function(parameters, body)
    args = tuple(p.arg for p in parameters)
    return KernelLaunch(node.op, func, tasks, args, node.origins, faults=(fault_message(node),))


def _elements(plan: ScatterPlan) -> KernelLaunch:
    """Return the launch of scatter_elements: lines along the axis are disjoint, so blocks of whole outer indices are
    tasks.
    """
    node, outer, per_task = plan.node, plan.extent, plan.schedule.part
    x, indices = node.inputs[0], node.inputs[1]
    axis, shape = node.attrs["axis"], indices.shape
    size, inner = shape[axis], prod(shape[axis + 1 :])
    strides = [prod(x.shape[d + 1 :]) for d in range(len(shape))]

    offset = offset_of(node)

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        index, updates, target, status = buffers
        first = T.bind(task * per_task)
        with T.serial(first, T.min(first + per_task, integer(outer, "int64"))) as line:
            before = offset(line, range(axis))
            with T.serial(0, size) as i, T.serial(0, inner) as j:
                at = T.bind((line * size + i) * inner + j)
                place = wrapped(index[at], x.shape[axis])
                after = offset(T.cast(j, "int64"), range(axis + 1, len(shape)))
                with T.If(in_range(place, x.shape[axis])):
                    with T.Then():
                        store_update(node, target, before + place * strides[axis] + after, updates[at])
                    with T.Else():
                        T.buffer_store(status, T.int32(1), [0])

    return _launch(node, _parameters(node), plan.tasks, body)


def _slices(plan: ScatterPlan) -> KernelLaunch:
    """Return the launch of scatter_nd: any two slices may coincide, so each task applies all of them to its own part of
    a slice.
    """
    node, width, part, lanes = plan.node, plan.extent, plan.schedule.part, plan.schedule.lanes
    count = prod(node.inputs[1].shape[:-1])

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        index, updates, target, status = buffers
        first = T.bind(task * part)
        end = T.bind(T.min(first + part, integer(width, "int64")))
        with T.serial(0, count) as i:
            place, inside = slice_of(node, index, i)
            base = T.bind(place * width)
            with T.If(inside):
                with T.Then():
                    if lanes == 1:
                        with T.serial(first, end) as j:
                            store_update(node, target, base + j, updates[T.cast(i, "int64") * width + j])
                    else:
                        with T.serial(0, part // lanes) as step, T.vectorized(0, lanes) as lane:
                            j = first + step * lanes + lane
                            store_update(node, target, base + j, updates[T.cast(i, "int64") * width + j])
                with T.Else():
                    T.buffer_store(status, T.int32(1), [0])

    return _launch(node, _parameters(node), plan.tasks, body)
