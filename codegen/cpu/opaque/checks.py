"""Kernels that check run-time indices of gathers."""

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import index_dtype, values_between
from tilestitch.codegen.compute.opaque import fault_message, is_out_of_range
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, StatusArg, buffer_source, kernel_function
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.index_checks import TASK_INDICES, IndexCheck, check_tasks, pending_checks, read_for


def lower_index_checks(nodes: Sequence[Node], inputs: Sequence[Value]) -> tuple[KernelLaunch, ...]:
    """Return one launch for each gather of a group whose indices are not known to be in range."""
    return tuple(_launch(node, checks, inputs) for node, checks in pending_checks(nodes).items())


def _launch(node: Node, checks: Sequence[IndexCheck], inputs: Sequence[Value]) -> KernelLaunch:
    needed = read_for(checks, inputs)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in needed]
    parameters.append(Parameter(StatusArg(), "int32", 1))
    positions = index_dtype(values_between((check.indices for check in checks), needed))

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        evaluator = Evaluator({}, positions)
        for value, buffer in zip(needed, buffers, strict=False):
            evaluator.sources[value] = buffer_source(buffer, value.tensor_type, evaluator.simplify)
        bad = T.alloc_buffer((1,), "int32", scope="local")
        T.buffer_store(bad, T.int32(0), [0])
        first = T.bind(T.cast(task, positions) * TASK_INDICES)
        for check in checks:
            end = T.min(first + TASK_INDICES, check.count)
            with T.serial(first, end) as i, evaluator.scope((i, 0, check.count)):
                wrong = is_out_of_range(check, i, evaluator)
                # LLVM vectorises the select only where both limits are numbers, which it makes one comparison of.
                if is_open(check.size):
                    T.buffer_store(bad, T.bitwise_or(bad[0], T.cast(wrong, "int32")), [0])
                else:
                    T.buffer_store(bad, tirx.Select(wrong, T.int32(1), bad[0]), [0])
        with T.If(tirx.NE(bad[0], 0)), T.Then():
            T.buffer_store(buffers[-1], T.int32(1), [0])

    func = kernel_function(parameters, body)
    args = tuple(p.arg for p in parameters)
    return KernelLaunch("check", func, check_tasks(checks), args, node.origins, faults=(fault_message(node),))
