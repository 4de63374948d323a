"""The template of order_rows: a thread counts the rows that precede its own, which gives the position for its
number.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.ordering import comes_first
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import CudaLaunch, Parameter, Thread, kernel_function
from tilestitch.codegen.cuda.positions import places_dtype
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.passes.plan.schedules import OperatorSchedule


def lower_order_rows(node: Node, schedule: OperatorSchedule) -> CudaLaunch:
    """Return the launch, which needs no further memory and no exchange between threads."""
    x, threads = node.inputs[0], schedule.threads
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]
    grid, block = (ceil_div(x.shape[0], threads), 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        rows, order = buffers
        dtype = places_dtype()
        count, length = (T.bind(integer(size, dtype)) for size in x.shape)
        own = T.bind(T.cast(thread.block[0], dtype) * threads + T.cast(thread.thread[0], dtype))
        before = T.alloc_buffer((1,), dtype, scope="local")
        T.buffer_store(before, tirx.const(0, dtype), [0])
        with T.If(own < count), T.Then():
            with T.serial(tirx.const(0, dtype), count) as other:
                first, equal = comes_first(rows, x.dtype, (other * length, own * length), length)
                counts = tirx.Or(first, tirx.And(equal, other < own))
                T.buffer_store(before, before[0] + T.cast(counts, dtype), [0])
            T.buffer_store(order, T.cast(own, "int64"), [before[0]])

    func = kernel_function(parameters, grid, block, body)
    return CudaLaunch("order_rows", func, grid, block, tuple(p.arg for p in parameters), node.origins)
