"""Kernels that check run-time indices of gathers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.faults import count_of, fault_message, is_out_of_range, pending_checks, read_for
from tilestitch.codegen.compute.indexing import index_dtype, values_between
from tilestitch.codegen.compute.movement import IndexCheck
from tilestitch.codegen.cuda import functions
from tilestitch.codegen.cuda.abi import CudaLaunch, Parameter, StatusArg, Thread, buffer_source, kernel_function
from tilestitch.compiler.ir.graph import Node, Value

THREADS = 256


def lower_index_checks(nodes: Sequence[Node], inputs: Sequence[Value]) -> tuple[CudaLaunch, ...]:
    """One launch for each gather of a group whose indices are not known to be in range."""
    return tuple(_launch(node, checks, inputs) for node, checks in pending_checks(nodes).items())


def _launch(node: Node, checks: Sequence[IndexCheck], inputs: Sequence[Value]) -> CudaLaunch:
    needed = read_for(checks, inputs)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in needed]
    parameters.append(Parameter(StatusArg(), "int32", 1))
    count = max(1, *map(count_of, checks))
    grid, block = (-(-count // THREADS), 1, 1), (THREADS, 1, 1)

    positions = index_dtype(values_between((check.indices for check in checks), needed))

    def body(buffers: list[Any], thread: Thread) -> None:
        evaluator = Evaluator({}, positions, functions.RULES)
        for value, buffer in zip(needed, buffers, strict=False):
            evaluator.sources[value] = buffer_source(buffer, value.tensor_type, evaluator.simplify)
        i = T.bind(T.cast(thread.block[0], positions) * THREADS + thread.thread[0])
        for check in checks:
            with T.If(i < count_of(check)), T.Then(), evaluator.scope():
                at = T.bind(i)
                evaluator.assume(at, 0, count_of(check))
                with T.If(is_out_of_range(check, at, evaluator)), T.Then():
                    T.buffer_store(buffers[-1], T.int32(1), [0])

    func = kernel_function(parameters, grid, block, body)
    args = tuple(p.arg for p in parameters)
    return CudaLaunch("check", func, grid, block, args, node.origins, faults=(fault_message(node),))
