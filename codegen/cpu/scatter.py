"""The template of scatters: a copy of the data, then the updates in row-major order, whatever the number of threads."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, storage_dtype
from tilestitch.codegen.compute.faults import fault_message
from tilestitch.codegen.compute.scattering import in_range, offset_of, slice_of, store_update, wrapped
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.plan.cpu.isa import Isa

from .abi import KernelLaunch, Parameter, StatusArg, kernel_function

COPY_ELEMENTS = 65536
UPDATE_ELEMENTS = 8192


def lower_scatter(node: Node, isa: Isa) -> tuple[KernelLaunch, ...]:
    """A launch that copies and, if there are updates, one that applies them and checks the indices."""
    copy = _copy(node, isa)
    if not node.inputs[2].tensor_type.num_elements:
        return (copy,)
    return (copy, _elements(node) if node.op == "scatter_elements" else _slices(node))


def _copy(node: Node, isa: Isa) -> KernelLaunch:
    x, out = node.inputs[0], node.outputs[0]
    count = x.tensor_type.num_elements
    lanes = min(isa.vector_bytes // 4, 1 << (count.bit_length() - 1))
    vectors = -(-count // lanes)
    per_task = max(1, COPY_ELEMENTS // lanes)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, out)]

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        source, target = buffers
        first = T.bind(task * per_task)
        with T.serial(first, T.min(first + per_task, vectors)) as i:
            start = T.bind(T.min(i * lanes, count - lanes))
            if lanes == 1:
                T.buffer_store(target, source[start], [start])
                return
            with T.vectorized(0, lanes) as lane:
                T.buffer_store(target, source[start + lane], [start + lane])

    func = kernel_function(parameters, body)
    return KernelLaunch("copy", func, -(-vectors // per_task), tuple(p.arg for p in parameters), node.origins)


def _parameters(node: Node) -> list[Parameter]:
    """indices, updates, result, status."""
    values: tuple[Value, ...] = (node.inputs[1], node.inputs[2], node.outputs[0])
    return [*(Parameter.of(v.name, v.tensor_type) for v in values), Parameter(StatusArg(), "int32", 1)]


def _launch(node: Node, parameters: list[Parameter], tasks: int, body: Callable[..., None]) -> KernelLaunch:
    func = kernel_function(parameters, body)
    args = tuple(p.arg for p in parameters)
    return KernelLaunch(node.op, func, tasks, args, node.origins, faults=(fault_message(node),))


def _elements(node: Node) -> KernelLaunch:
    """scatter_elements: lines along the axis never meet, so blocks of whole outer indices are tasks."""
    x, indices = node.inputs[0], node.inputs[1]
    axis, shape = node.attrs["axis"], indices.shape
    outer, size, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    per_task = max(1, UPDATE_ELEMENTS // max(1, size * inner))
    strides = [prod(x.shape[d + 1 :]) for d in range(len(shape))]

    offset = offset_of(node)

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        index, updates, target, status = buffers
        first = T.bind(task * per_task)
        with T.serial(first, T.min(first + per_task, outer)) as line:
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

    return _launch(node, _parameters(node), -(-outer // per_task), body)


def _slices(node: Node) -> KernelLaunch:
    """scatter_nd: any two slices may meet, so each task applies all of them to its own part of a slice."""
    x, indices = node.inputs[0], node.inputs[1]
    depth = indices.shape[-1]
    count, width = prod(indices.shape[:-1]), prod(x.shape[depth:])
    part = min(width, max(16, UPDATE_ELEMENTS // max(1, count)))
    lanes = 16 if part % 16 == 0 and width % part == 0 else 1
    if lanes > 1 and storage_dtype(x.dtype) != x.dtype:
        lanes = 1

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        index, updates, target, status = buffers
        first = T.bind(task * part)
        end = T.bind(T.min(first + part, width))
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

    return _launch(node, _parameters(node), -(-width // part), body)
