"""The template of roi_align: a thread has one bin of one channel, whose samples it interpolates."""

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.opaque import Axis, fault_message, in_range, sides_of
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda import functions
from tilestitch.codegen.cuda.abi import CudaLaunch, Parameter, StatusArg, Thread, fault, kernel_function
from tilestitch.codegen.cuda.positions import places_dtype
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.passes.plan.schedules import OperatorSchedule


def lower_roi_align(node: Node, schedule: OperatorSchedule) -> CudaLaunch:
    """Return the launch. An image index out of range is a fault, and the first image is read."""
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


def _element(node: Node, buffers: list[Any], number: Expr) -> None:
    """Emit one element of the result. Neighbouring threads read near each other: they have neighbouring bins of a row
    or, if channels are contiguous, channels.
    """
    source, regions, images, target, status = buffers
    images_count = node.inputs[0].shape[0]
    height, width, channels = sides_of(node)
    rows, columns = node.attrs["size"]
    last = node.attrs["layout"] == "NXC"
    dtype, bins = places_dtype(), rows * columns
    depth = integer(channels, dtype)
    if last:
        channel, line = T.bind(number % depth), T.bind(number // depth)
        column, row = T.bind(line % columns), T.bind(line // columns % rows)
        region = T.bind(line // bins)
        place = T.bind((region * depth + channel) * bins + line % bins)
    else:
        column, row = T.bind(number % columns), T.bind(number // columns % rows)
        line, place = T.bind(number // bins), number
        region, channel = T.bind(line // depth), T.bind(line % depth)
    given = T.bind(images[region])
    known = in_range(given, images_count)
    with T.If(tirx.Not(known)), T.Then():
        fault(status)
    image = T.bind(tirx.Select(known, given, T.int64(0)))
    plane = T.bind(integer(height, "int64") * integer(width, "int64"))
    first = image * integer(channels, "int64")
    start = T.bind(first * plane + channel if last else (first + channel) * plane)
    step = integer(channels, "int64") if last else T.int64(1)
    x, y = (Axis.of(node, regions, region, side, functions.product) for side in (0, 1))
    is_max = node.attrs["mode"] == "max"
    join: Callable[[Expr, Expr], Expr] = T.max if is_max else lambda a, b: a + b
    best = T.alloc_buffer((1,), "float32", scope="local")
    T.buffer_store(best, reducers.identity("max", "float32") if is_max else T.float32(0), [0])
    with T.serial(0, y.samples) as i:
        above = y.neighbours(row, i)
        with T.serial(0, x.samples) as j:
            beside = x.neighbours(column, j)
            terms = [
                named(source[start + (r * integer(width, "int64") + c) * step] * named(a * b))
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
