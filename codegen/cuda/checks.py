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

from . import functions
from .abi import CudaLaunch, Parameter, StatusArg, Thread, buffer_source, kernel_function

THREADS = 256


@dataclass(frozen=True)
class _Check:
    node: Node
    check: IndexCheck

    @property
    def count(self) -> int:
        shape = self.check.indices.shape
        return prod(shape if self.check.column is None else shape[:-1])


def lower_index_checks(nodes: Sequence[Node], inputs: Sequence[Value]) -> tuple[CudaLaunch, ...]:
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


def _launch(node: Node, checks: list[_Check], inputs: Sequence[Value]) -> CudaLaunch:
    needed = _reachable([c.check.indices for c in checks], inputs)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in needed]
    parameters.append(Parameter(StatusArg(), "int32", 1))
    count = max(1, *(c.count for c in checks))
    grid, block = (-(-count // THREADS), 1, 1), (THREADS, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        evaluator = Evaluator({}, rules=functions.RULES)
        for value, buffer in zip(needed, buffers, strict=False):
            evaluator.sources[value] = buffer_source(buffer, value.tensor_type, evaluator.simplify)
        i = T.bind(thread.block[0] * THREADS + thread.thread[0])
        for item in checks:
            with T.If(i < item.count), T.Then(), evaluator.scope():
                at = T.bind(i)
                evaluator.assume(at, 0, item.count)
                with T.If(_out_of_range(item.check, at, evaluator)), T.Then():
                    T.buffer_store(buffers[-1], T.int32(1), [0])

    func = kernel_function(parameters, grid, block, body)
    message = f"{node.op}: an index is out of range of the data, whose shape is {list(node.inputs[0].shape)}"
    return CudaLaunch("check", func, grid, block, tuple(p.arg for p in parameters), node.origins, faults=(message,))


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
    index = unravel(i, shape) if check.column is None else (*unravel(i, shape[:-1]), check.column)
    value = evaluator.bind(T.cast(evaluator.value(check.indices, index), "int64"))
    return tirx.Or(value < T.int64(-check.size), value >= T.int64(check.size))
