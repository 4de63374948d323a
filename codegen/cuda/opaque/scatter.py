"""The template of scatters: a copy of the data, then the updates in row-major order, regardless of the order of
threads.

A thread applies one update after the other to its own positions: a line along the axis, or an element of every slice.
Where that leaves few threads, replacing updates claim their positions instead (`claims`).
"""

from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.opaque import fault_message, in_range, offset_of, slice_of, store_update, wrapped
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import Body, CudaLaunch, Emission, Parameter, StatusArg, Thread, fault, kernel_function
from tilestitch.codegen.cuda.opaque.claims import lower_claims
from tilestitch.codegen.cuda.positions import places_dtype
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.schedules import ScatterSchedule


def lower_scatter(node: Node, schedule: ScatterSchedule) -> tuple[CudaLaunch, ...]:
    """Return a launch that copies and, if there are updates, those that apply them and check the indices."""
    threads = schedule.threads
    if node.inputs[2].tensor_type.always_empty:
        return (_copy(node, threads),)
    if schedule.by_claims:
        return lower_claims(node, threads)
    return (_copy(node, threads), _elements(node, threads) if node.op == "scatter_elements" else _slices(node, threads))


def _threads(count: int, threads: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return (-(-count // threads), 1, 1), (threads, 1, 1)


def _copy(node: Node, threads: int) -> CudaLaunch:
    x, out = node.inputs[0], node.outputs[0]
    count = x.tensor_type.num_elements
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, out)]
    grid, block = _threads(count, threads)

    def body(buffers: list[Any], thread: Thread) -> None:
        source, target = buffers
        i = T.bind(T.cast(thread.block[0], places_dtype()) * threads + thread.thread[0])
        with T.If(i < count), T.Then():
            T.buffer_store(target, source[i], [i])

    func = kernel_function(parameters, grid, block, body)
    args, emission = tuple(p.arg for p in parameters), Emission(tuple(parameters), body)
    return CudaLaunch("copy", func, grid, block, args, node.origins, emission=emission)


def _launch(node: Node, count: int, threads: int, body: Body) -> CudaLaunch:
    """Return a launch with parameters indices, updates, result, status."""
    values = (node.inputs[1], node.inputs[2], node.outputs[0])
    parameters = [*(Parameter.of(v.name, v.tensor_type) for v in values), Parameter(StatusArg(), "int32", 1)]
    grid, block = _threads(count, threads)
    func = kernel_function(parameters, grid, block, body)
    args, emission = tuple(p.arg for p in parameters), Emission(tuple(parameters), body)
    faults = (fault_message(node),)
    return CudaLaunch(node.op, func, grid, block, args, node.origins, faults=faults, emission=emission)


def _elements(node: Node, threads: int) -> CudaLaunch:
    """Return the launch of scatter_elements: updates coincide only along the axis, so a thread applies all of one line
    along it.
    """
    x, indices = node.inputs[0], node.inputs[1]
    axis, shape = node.attrs["axis"], indices.shape
    outer, size, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    strides = [prod(x.shape[d + 1 :]) for d in range(len(shape))]

    offset = offset_of(node)

    def body(buffers: list[Any], thread: Thread) -> None:
        index, updates, target, status = buffers
        line = T.bind(T.cast(thread.block[0], places_dtype()) * threads + thread.thread[0])
        with T.If(line < outer * inner), T.Then():
            before, within = T.bind(line // inner), T.bind(line % inner)
            base = T.bind(offset(before, range(axis)) + offset(within, range(axis + 1, len(shape))))
            with T.serial(0, _count(size)) as i:
                at = T.bind((before * size + i) * inner + within)
                place = wrapped(index[at], x.shape[axis])
                with T.If(in_range(place, x.shape[axis])):
                    with T.Then():
                        store_update(node, target, base + place * strides[axis], updates[at])
                    with T.Else():
                        fault(status)

    return _launch(node, outer * inner, threads, body)


def _slices(node: Node, threads: int) -> CudaLaunch:
    """Return the launch of scatter_nd: any two slices may coincide, so a thread applies all of them to its own element
    of a slice.
    """
    x, indices = node.inputs[0], node.inputs[1]
    depth = indices.shape[-1]
    count, width = prod(indices.shape[:-1]), prod(x.shape[depth:])

    def body(buffers: list[Any], thread: Thread) -> None:
        index, updates, target, status = buffers
        j = T.bind(T.cast(thread.block[0], places_dtype()) * threads + thread.thread[0])
        with T.If(j < width), T.Then(), T.serial(0, _count(count)) as i:
            place, inside = slice_of(node, index, i)
            base = T.bind(place * width)
            with T.If(inside):
                with T.Then():
                    store_update(node, target, base + j, updates[T.cast(i, places_dtype()) * width + j])
                with T.Else():
                    fault(status)

    return _launch(node, width, threads, body)


def _count(size: int) -> Expr:
    return integer(size, places_dtype()) if is_open(size) else size
