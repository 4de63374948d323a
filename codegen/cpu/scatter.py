"""The template of scatters: a copy of the data, then the updates in row-major order, whatever the number of threads."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, from_storage, named, storage_dtype, to_storage
from tilestitch.compiler.ir.graph import Node, Value

from .abi import KernelLaunch, Parameter, StatusArg, kernel_function
from .isa import Isa

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
    message = f"{node.op}: an index is out of range of the data, whose shape is {list(node.inputs[0].shape)}"
    func = kernel_function(parameters, body)
    return KernelLaunch(node.op, func, tasks, tuple(p.arg for p in parameters), node.origins, faults=(message,))


def _update(node: Node, target: Any, position: Expr, update: Expr) -> None:
    """Replace or combine one element."""
    dtype, reduction = node.inputs[0].dtype, node.attrs["reduction"]
    if reduction == "none":
        T.buffer_store(target, update, [position])
        return
    reducer = {"add": "sum", "mul": "prod"}.get(reduction, reduction)
    old, new = (named(reducers.to_accumulator(from_storage(e, dtype), dtype)) for e in (target[position], update))
    joined = reducers.combine(reducer, dtype, old, new)
    T.buffer_store(target, to_storage(reducers.from_accumulator(joined, dtype), dtype), [position])


def _wrapped(raw: Expr, size: int) -> Expr:
    """A possibly negative index counted from the front, int64."""
    wide = T.bind(T.cast(raw, "int64"))
    return T.bind(tirx.Select(wide < T.int64(0), wide + T.int64(size), wide))


def _in_range(index: Expr, size: int) -> Expr:
    return tirx.And(index >= T.int64(0), index < T.int64(size))


def _elements(node: Node) -> KernelLaunch:
    """scatter_elements: lines along the axis never meet, so blocks of whole outer indices are tasks."""
    x, indices = node.inputs[0], node.inputs[1]
    axis, shape = node.attrs["axis"], indices.shape
    outer, size, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    per_task = max(1, UPDATE_ELEMENTS // max(1, size * inner))
    strides = [prod(x.shape[d + 1 :]) for d in range(len(shape))]

    def offset(flat: Expr, dims: range) -> Expr:
        """Position in the data of an index into the dimensions `dims` of the updates."""
        position: Expr = T.int64(0)
        rest = prod(shape[d] for d in dims)
        for d in dims:
            rest //= shape[d]
            position = position + flat // rest % shape[d] * strides[d]
        return T.bind(position)

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        index, updates, target, status = buffers
        first = T.bind(task * per_task)
        with T.serial(first, T.min(first + per_task, outer)) as line:
            before = offset(line, range(axis))
            with T.serial(0, size) as i, T.serial(0, inner) as j:
                at = T.bind((line * size + i) * inner + j)
                place = _wrapped(index[at], x.shape[axis])
                after = offset(T.cast(j, "int64"), range(axis + 1, len(shape)))
                with T.If(_in_range(place, x.shape[axis])):
                    with T.Then():
                        _update(node, target, before + place * strides[axis] + after, updates[at])
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
    strides = [prod(x.shape[d + 1 :]) for d in range(depth)]

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        index, updates, target, status = buffers
        first = T.bind(task * part)
        end = T.bind(T.min(first + part, width))
        with T.serial(0, count) as i:
            place: Expr = T.int64(0)
            inside: Expr = T.bool(True)
            for d in range(depth):
                entry = _wrapped(index[i * depth + d], x.shape[d])
                inside = tirx.And(inside, _in_range(entry, x.shape[d]))
                place = place + entry * strides[d]
            base = T.bind(place)
            with T.If(inside):
                with T.Then():
                    if lanes == 1:
                        with T.serial(first, end) as j:
                            _update(node, target, base + j, updates[T.cast(i, "int64") * width + j])
                    else:
                        with T.serial(0, part // lanes) as step, T.vectorized(0, lanes) as lane:
                            j = first + step * lanes + lane
                            _update(node, target, base + j, updates[T.cast(i, "int64") * width + j])
                with T.Else():
                    T.buffer_store(status, T.int32(1), [0])

    return _launch(node, _parameters(node), -(-width // part), body)
