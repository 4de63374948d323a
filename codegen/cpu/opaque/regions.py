"""The template of roi_align: samples of the bins of a region, interpolated between four neighbours."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.elementwise import product
from tilestitch.codegen.compute.opaque import Axis, Neighbours, fault_message, in_range, sides_of
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, StatusArg, kernel_function
from tilestitch.compiler.ir.sizes import bounds_of, is_open
from tilestitch.passes.plan.cpu.opaque import RegionPlan

MOST_SAMPLES = 4
"""Most samples of a bin that are unrolled."""
Tap = tuple[Expr, Expr]
"""Position of an element of the first channel, and its weight."""


def lower_roi_align(plan: RegionPlan) -> KernelLaunch:
    """Return the launch; one task has some channels of one region. An image index out of range is a fault, and the
    first image is read.
    """
    node = plan.node
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]
    parameters.append(Parameter(StatusArg(), "int32", 1))

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        _Region(plan, buffers).run(T.bind(T.cast(task, "int64")))

    func = kernel_function(parameters, body)
    args, faults = tuple(p.arg for p in parameters), (fault_message(node),)
    return KernelLaunch("roi_align", func, plan.tasks, args, node.origins, faults=faults)


class _Region:
    """One task."""

    def __init__(self, plan: RegionPlan, buffers: list[Any]) -> None:
        self.plan, self.attrs = plan, plan.node.attrs
        self.source, self.regions, self.images, self.target, self.status = buffers
        self.images_count = plan.node.inputs[0].shape[0]
        self.height, self.width, _ = sides_of(plan.node)
        rows, columns = self.attrs["size"]
        self.bins = rows * columns
        self.whole = not is_open(plan.channels) and plan.channels % plan.schedule.channels == 0
        is_max = self.attrs["mode"] == "max"
        self.nothing = -float("inf") if is_max else 0.0
        self.join: Callable[[Expr, Expr], Expr] = T.max if is_max else lambda a, b: a + b

    def run(self, task: Expr) -> None:
        plan = self.plan
        region = T.bind(task // integer(plan.parts, "int64"))
        first = T.bind(task % integer(plan.parts, "int64") * plan.schedule.channels)
        count = T.int64(plan.schedule.channels)
        if not self.whole:
            count = T.bind(T.min(integer(plan.channels, "int64") - first, count))
        given = T.bind(self.images[region])
        known = in_range(given, self.images_count)
        with T.If(tirx.Not(known)), T.Then():
            T.buffer_store(self.status, T.int32(1), [0])
        image = T.bind(tirx.Select(known, given, T.int64(0)))
        channels = integer(plan.channels, "int64")
        plane = T.bind(integer(self.height, "int64") * integer(self.width, "int64"))
        last = plan.channels_last
        source = T.bind(image * channels * plane + first if last else (image * channels + first) * plane)
        self.pixel, self.channel = (channels, T.int64(1)) if last else (T.int64(1), plane)
        rows, columns = self.attrs["size"]
        target = T.bind((region * channels + first) * self.bins)
        if bounds_of(plan.node.inputs[0].tensor_type.num_elements)[1] == 0:  # TVM divides by the constant 0 otherwise
            with T.serial(0, count * self.bins) as number:
                T.buffer_store(self.target, T.float32(0), [target + number])
            return
        x, y = (Axis.of(plan.node, self.regions, region, side, product) for side in (0, 1))
        with T.serial(0, rows) as row, T.serial(0, columns) as column:
            self.bin(source, count, (y, row), (x, column), target + row * columns + column)

    def bin(
        self, source: Expr, count: Expr, of_rows: tuple[Axis, Expr], of_columns: tuple[Axis, Expr], target: Expr
    ) -> None:
        """Emit one bin of all channels of the task, by its number along both axes."""
        (y, row_bin), (x, column_bin) = of_rows, of_columns
        known = self.attrs["ratio"]
        if 0 < known * known <= MOST_SAMPLES:
            rows = [y.neighbours(row_bin, T.int32(i)) for i in range(known)]
            columns = [x.neighbours(column_bin, T.int32(j)) for j in range(known)]
            samples = [self.taps(source, above, beside) for above in rows for beside in columns]

            def pooled(channel: Expr) -> None:
                total = reduce(self.join, (self.sample(taps, channel) for taps in samples))
                self.store(target, y, x, channel, total)

            self.each(count, pooled)
            return
        sums = T.alloc_buffer((self.plan.schedule.channels,), "float32", scope="local")
        self.each(count, lambda c: T.buffer_store(sums, T.float32(self.nothing), [c]))
        with T.serial(0, y.samples) as i:
            above = y.neighbours(row_bin, i)
            with T.serial(0, x.samples) as j:
                taps = self.taps(source, above, x.neighbours(column_bin, j))
                self.each(count, lambda c: T.buffer_store(sums, self.join(sums[c], self.sample(taps, c)), [c]))
        self.each(count, lambda c: self.store(target, y, x, c, sums[c]))

    def taps(self, source: Expr, above: Neighbours, beside: Neighbours) -> Sequence[Tap]:
        """Return the taps of one sample."""
        width = integer(self.width, "int64")
        return [
            (T.bind(source + (row * width + column) * self.pixel), named(a * b))
            for row, a in above for column, b in beside
        ]  # fmt: skip

    def sample(self, taps: Sequence[Tap], channel: Expr) -> Expr:
        return reduce(self.join, (self.source[place + channel * self.channel] * weight for place, weight in taps))

    def store(self, target: Expr, y: Axis, x: Axis, channel: Expr, total: Expr) -> None:
        """Store the result of a bin of one channel from the sum, or the maximum, of its samples."""
        samples = T.bind(y.samples * x.samples)
        value = total if self.attrs["mode"] == "max" else total / T.cast(T.max(samples, 1), "float32")
        T.buffer_store(self.target, tirx.Select(samples > 0, value, T.float32(0)), [target + channel * self.bins])

    def each(self, count: Expr, body: Callable[[Expr], None]) -> None:
        """Emit all channels of the task: whole vectors, then one by one."""
        lanes, first = self.plan.schedule.lanes, T.int64(0)
        if lanes > 1:
            first = count // lanes * lanes
            with T.serial(0, count // lanes) as step, T.vectorized(0, lanes) as lane:
                body(step * lanes + lane)
        if lanes == 1 or not self.whole:
            with T.serial(first, count) as channel:
                body(channel)
