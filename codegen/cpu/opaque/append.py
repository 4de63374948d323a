"""The template of append: new rows of a cache, stored after the existing ones."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, kernel_function
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.passes.plan.cpu.opaque import AppendPlan

LANES = 16


def lower_append(plan: AppendPlan) -> KernelLaunch:
    """Return the launch. Elements are copied as they are stored; all else in the result's memory is untouched."""
    node = plan.node
    x, out, attrs = node.inputs[0], node.output, node.attrs
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, out)]

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        source, target = buffers
        rows, inner, capacity, at, outer = (
            T.bind(integer(size, "int64"))
            for size in (x.shape[attrs["axis"]], plan.inner, attrs["capacity"], attrs["at"], plan.outer)
        )
        first = T.bind(T.cast(task, "int64") * plan.schedule.parts)
        with mk.serial(first, T.min(first + plan.schedule.parts, outer)) as part:
            width = T.bind(rows * inner)
            begin, end = T.bind(part * width), T.bind((part * capacity + at) * inner)
            mk.for_each_column(width, LANES, lambda place: T.buffer_store(target, source[begin + place], [end + place]))

    func = kernel_function(parameters, body)
    return KernelLaunch("append", func, plan.tasks, tuple(p.arg for p in parameters), node.origins)
