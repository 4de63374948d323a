"""The template of order_rows: a merge sort of row numbers."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.ordering import comes_first
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, kernel_function
from tilestitch.codegen.cpu.contraction.microkernel import scratch_buffer
from tilestitch.compiler.ir.sizes import largest
from tilestitch.passes.plan.cpu.opaque import OrderPlan

from .sort import merged


def lower_order_rows(plan: OrderPlan) -> KernelLaunch:
    """Return the launch, whose only task sorts all rows."""
    node = plan.node
    dtype = node.inputs[0].dtype
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        rows, order = buffers
        numbers = scratch_buffer(scratch, 0, (largest(1, plan.room),), "int32", "numbers")
        count, length = T.bind(integer(plan.rows, "int32")), T.bind(integer(plan.length, "int64"))

        def before(new: Expr, old: Expr) -> Expr:
            starts = (T.bind(T.cast(new, "int64") * length), T.bind(T.cast(old, "int64") * length))
            return comes_first(rows, dtype, starts, length)[0]

        with T.serial(0, count) as row:
            T.buffer_store(numbers, row, [row])
        offset = T.bind(merged(numbers, numbers, count, count, before))
        with T.serial(0, count) as row:
            T.buffer_store(order, T.cast(numbers[offset + row], "int64"), [row])

    func = kernel_function(parameters, body)
    args = tuple(p.arg for p in parameters)
    return KernelLaunch("order_rows", func, plan.tasks, args, node.origins, plan.scratch_bytes)
