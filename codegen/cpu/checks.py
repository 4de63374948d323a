"""Kernels that check run-time indices of gathers: reading never leaves a tensor, but wrong indices must be reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.compute.movement import IndexCheck, index_checks
from tilestitch.compiler.ir.graph import Node, Value

from .abi import KernelLaunch, Parameter, StatusArg, buffer_source, kernel_function

TASK_ELEMENTS = 65536


@dataclass(frozen=True)
class _Check:
    node: Node
    check: IndexCheck

    @property
    def count(self) -> int:
        shape = self.check.indices.shape
        return prod(shape if self.check.column is None else shape[:-1])


def lower_index_checks(nodes: Sequence[Node], inputs: Sequence[Value]) -> tuple[KernelLaunch, ...]:
    """One launch for each gather of a group whose indices are not known to be in range."""
    pending: dict[Node, list[_Check]] = {}
    for node in nodes:
        for check in index_checks(node):
            if node.outputs[0].tensor_type.num_elements and not _known_good(check):
                pending.setdefault(node, []).append(_Check(node, check))
    return tuple(_launch(node, checks, inputs) for node, checks in pending.items())


def _known_good(check: IndexCheck) -> bool:
    data = check.indices.data
    if data is None:
        return False
    column = data if check.column is None else data[..., check.column]
    return bool(np.all((column >= -check.size) & (column < check.size)))


def _launch(node: Node, checks: list[_Check], inputs: Sequence[Value]) -> KernelLaunch:
    needed = _reachable([c.check.indices for c in checks], inputs)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in needed]
    parameters.append(Parameter(StatusArg(), "int32", 1))
    count = max(c.count for c in checks)

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        evaluator = Evaluator({})
        for value, buffer in zip(needed, buffers, strict=False):
            evaluator.sources[value] = buffer_source(buffer, value.tensor_type, evaluator.simplify)
        bad = T.alloc_buffer((1,), "int32", scope="local")
        T.buffer_store(bad, T.int32(0), [0])
        first = T.bind(T.cast(task, "int32") * TASK_ELEMENTS)
        for item in checks:
            end = T.min(first + TASK_ELEMENTS, item.count)
            with T.serial(first, end) as i, evaluator.scope((i, 0, item.count)):
                wrong = _out_of_range(item.check, i, evaluator)
                T.buffer_store(bad, tirx.Select(wrong, T.int32(1), bad[0]), [0])
        with T.If(tirx.NE(bad[0], 0)), T.Then():
            T.buffer_store(buffers[-1], T.int32(1), [0])

    func = kernel_function(parameters, body)
    message = f"{node.op}: an index is out of range of the data, whose shape is {list(node.inputs[0].shape)}"
    args = tuple(p.arg for p in parameters)
    return KernelLaunch("check", func, max(1, -(-count // TASK_ELEMENTS)), args, node.origins, faults=(message,))


def _reachable(values: Sequence[Value], inputs: Sequence[Value]) -> list[Value]:
    """The inputs that `values` are computed from."""
    found: dict[Value, None] = {}
    seen: set[Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in inputs:
            found[value] = None
        elif value.producer is not None:
            stack.extend(value.producer.inputs)
    return [v for v in inputs if v in found]


def _out_of_range(check: IndexCheck, i: Expr, evaluator: Evaluator) -> Expr:
    shape = check.indices.shape
    if check.column is None:
        index = unravel(i, shape)
    else:
        index = (*unravel(i, shape[:-1]), check.column)
    value = evaluator.bind(T.cast(evaluator.value(check.indices, index), "int64"))
    return tirx.Or(value < T.int64(-check.size), value >= T.int64(check.size))
