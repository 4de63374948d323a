"""Kernels that check run-time indices of gathers."""

from collections.abc import Mapping, Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import values_between
from tilestitch.codegen.compute.opaque import fault_message, is_out_of_range
from tilestitch.codegen.cuda import functions
from tilestitch.codegen.cuda.abi import (
    CudaLaunch,
    Emission,
    Parameter,
    StatusArg,
    Thread,
    buffer_source,
    fault,
    kernel_function,
)
from tilestitch.codegen.cuda.positions import index_dtype
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.sizes import largest
from tilestitch.passes.plan.index_checks import IndexCheck, checked_together, read_for

THREADS = 256


def lower_index_checks(nodes: Sequence[Node], inputs: Sequence[Value]) -> tuple[CudaLaunch, ...]:
    """Return the launches that check the indices of gathers of a group which are not known to be in range."""
    return tuple(_launch(together, inputs) for together in checked_together(nodes))


def _launch(together: Mapping[Node, Sequence[IndexCheck]], inputs: Sequence[Value]) -> CudaLaunch:
    """Return one launch for several nodes: a thread checks the indices at one place of all."""
    nodes = list(together)
    numbered = [(number, check) for number, checks in enumerate(together.values()) for check in checks]
    checks = [check for _, check in numbered]
    needed = read_for(checks, inputs)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in needed]
    parameters.append(Parameter(StatusArg(), "int32", 1))
    count = largest(1, *(check.count for check in checks))
    grid, block = (-(-count // THREADS), 1, 1), (THREADS, 1, 1)

    positions = index_dtype(values_between((check.indices for check in checks), needed))

    def body(buffers: list[Any], thread: Thread) -> None:
        evaluator = Evaluator({}, positions, functions.RULES)
        for value, buffer in zip(needed, buffers, strict=False):
            evaluator.sources[value] = buffer_source(buffer, value.tensor_type, evaluator.simplify)
        i = T.bind(T.cast(thread.block[0], positions) * THREADS + thread.thread[0])
        for number, check in numbered:
            with T.If(i < check.count), T.Then(), evaluator.scope():
                at = T.bind(i)
                evaluator.assume(at, 0, check.count)
                with T.If(is_out_of_range(check, at, evaluator)), T.Then():
                    fault(buffers[-1], number)

    func = kernel_function(parameters, grid, block, body)
    args = tuple(p.arg for p in parameters)
    return CudaLaunch(
        "check", func, grid, block, args, tuple(dict.fromkeys(o for node in nodes for o in node.origins)),
        faults=tuple(map(fault_message, nodes)),
        fault_origins=tuple(node.origins for node in nodes) if len(nodes) > 1 else (),
        emission=Emission(tuple(parameters), body),
    )  # fmt: skip
