"""The template of append: new rows of a cache, stored after the existing ones."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import CudaLaunch, Parameter, Thread, kernel_function
from tilestitch.codegen.cuda.positions import places_dtype
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import ceil_div, largest
from tilestitch.passes.plan.schedules import OperatorSchedule


def lower_append(node: Node, schedule: OperatorSchedule) -> CudaLaunch:
    """Return the launch. A thread copies an element as it is stored; all else in the result's memory is untouched."""
    x, out, attrs, threads = node.inputs[0], node.output, node.attrs, schedule.threads
    axis, count = attrs["axis"], x.tensor_type.num_elements
    inner = prod(x.shape[axis + 1 :])
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, out)]
    grid, block = (largest(1, ceil_div(count, threads)), 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        source, target = buffers
        dtype = places_dtype()
        room, before = (integer(rows * inner, dtype) for rows in (attrs["capacity"], attrs["at"]))
        new = integer(largest(1, x.shape[axis] * inner), dtype)
        place = T.bind(T.cast(thread.block[0], dtype) * threads + thread.thread[0])
        with T.If(place < integer(count, dtype)), T.Then():
            part = T.bind(place // new)
            T.buffer_store(target, source[place], [part * room + before + place % new])

    func = kernel_function(parameters, grid, block, body)
    return CudaLaunch("append", func, grid, block, tuple(p.arg for p in parameters), node.origins)
