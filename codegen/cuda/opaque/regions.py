"""The template of roi_align: a thread has one bin of one channel, whose samples it interpolates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.faults import fault_message
from tilestitch.codegen.compute.regions import Axis
from tilestitch.codegen.compute.scattering import in_range
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import CudaLaunch, Parameter, StatusArg, Thread, fault, kernel_function
from tilestitch.codegen.cuda.positions import places_dtype
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.passes.plan.schedules import RegionSchedule


def lower_roi_align(node: Node, schedule: RegionSchedule) -> CudaLaunch:
    """An image that is not there is a fault, and the first one is read."""
    threads, count = schedule.threads, node.output.tensor_type.num_elements
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]
    parameters.append(Parameter(StatusArg(), "int32", 1))
    grid, block = (ceil_div(count, threads), 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        dtype = places_dtype()
        place = T.bind(T.cast(thread.block[0], dtype) * threads + T.cast(thread.thread[0], dtype))
        with T.If(place < integer(count, dtype)), T.Then():
            _element(node, buffers, place)

    func = kernel_function(parameters, grid, block, body)
    args, faults = tuple(p.arg for p in parameters), (fault_message(node),)
    return CudaLaunch("roi_align", func, grid, block, args, node.origins, faults=faults)


def _element(node: Node, buffers: list[Any], place: Expr) -> None:
    """Element `place` of the result: neighbours in a row are of one bin row, so that threads read near each other."""
    source, regions, images, target, status = buffers
    images_count, channels, height, width = node.inputs[0].shape
    rows, columns = node.attrs["size"]
    dtype = places_dtype()
    column, row = T.bind(place % columns), T.bind(place // columns % rows)
    line = T.bind(place // (rows * columns))
    region, channel = T.bind(line // integer(channels, dtype)), T.bind(line % integer(channels, dtype))
    given = T.bind(images[region])
    known = in_range(given, images_count)
    with T.If(tirx.Not(known)), T.Then():
        fault(status)
    image = T.bind(tirx.Select(known, given, T.int64(0)))
    plane = T.bind(integer(height, "int64") * integer(width, "int64"))
    start = T.bind((image * integer(channels, "int64") + channel) * plane)
    x, y = (Axis.of(node, regions, region, side) for side in (0, 1))
    is_max = node.attrs["mode"] == "max"
    join: Callable[[Expr, Expr], Expr] = T.max if is_max else lambda a, b: a + b
    best = T.alloc_buffer((1,), "float32", scope="local")
    T.buffer_store(best, reducers.identity("max", "float32") if is_max else T.float32(0), [0])
    with T.serial(0, y.samples) as i:
        above = y.neighbours(row, i)
        with T.serial(0, x.samples) as j:
            beside = x.neighbours(column, j)
            terms = [
                named(source[start + r * integer(width, "int64") + c] * named(a * b))
                for r, a in above for c, b in beside
            ]  # fmt: skip
            total = terms[0]
            for term in terms[1:]:
                total = join(total, term)
            T.buffer_store(best, join(best[0], total), [0])
    samples = T.bind(y.samples * x.samples)
    divisor = named(T.cast(T.max(samples, 1), "float32"))
    value = best[0] if is_max else best[0] / divisor
    T.buffer_store(target, tirx.Select(samples > 0, value, T.float32(0)), [place])
