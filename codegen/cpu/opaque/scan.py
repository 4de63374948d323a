"""The template of cumulative sums and products along an axis."""

from contextlib import ExitStack
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, from_storage, named, to_storage
from tilestitch.codegen.compute.indexing import index_dtype
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, kernel_function
from tilestitch.passes.plan.cpu.opaque import ScanPlan


def lower_cumulative(plan: ScanPlan) -> KernelLaunch:
    """Return the launch. Lines along the axis are independent; neighbouring lines are the lanes of a vector."""
    node, size, inner = plan.node, plan.size, plan.inner
    x, out = node.inputs[0], node.outputs[0]
    lanes, blocks, lines, per_task = plan.schedule.lanes, plan.blocks, plan.lines, plan.schedule.lines
    reducer, exclusive, reverse = (node.attrs[name] for name in ("reducer", "exclusive", "reverse"))
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, out)]
    positions = index_dtype([x])

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        source, target = buffers
        first = T.bind(T.cast(task, positions) * per_task)
        running = T.alloc_buffer((lanes,), reducers.accumulator_dtype(x.dtype), scope="local")
        with T.serial(first, T.min(first + per_task, integer(lines, positions))) as line:
            # The last vector of lines is moved back so that it fits.
            start = T.bind((line // blocks) * (size * inner) + T.min(line % blocks * lanes, inner - lanes))

            def each_lane(step: Any) -> None:
                with ExitStack() as stack:
                    step(0 if lanes == 1 else stack.enter_context(T.vectorized(0, lanes)))

            each_lane(lambda lane: T.buffer_store(running, reducers.identity(reducer, x.dtype), [lane]))
            with T.serial(0, size) as i:
                position = T.bind(start + (size - 1 - i if reverse else i) * inner)

                def step(lane: Expr) -> None:
                    element = named(from_storage(source[position + lane], x.dtype))
                    before = named(running[lane])
                    after = named(reducers.combine(reducer, x.dtype, before, element))
                    T.buffer_store(running, after, [lane])
                    T.buffer_store(target, to_storage(before if exclusive else after, x.dtype), [position + lane])

                each_lane(step)

    func = kernel_function(parameters, body)
    return KernelLaunch("cumulative", func, plan.tasks, tuple(p.arg for p in parameters), node.origins)
