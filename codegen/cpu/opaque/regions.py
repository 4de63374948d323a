"""The template of roi_align: samples of the bins of a region, interpolated between four neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.faults import fault_message
from tilestitch.codegen.compute.scattering import in_range
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, StatusArg, kernel_function
from tilestitch.compiler.ir.sizes import Size
from tilestitch.passes.plan.cpu.opaque import RegionPlan

CORNERS = 4
Neighbours = list[tuple[Expr, Expr]]
"""Place and weight of the two neighbours of a sample along an axis."""


def lower_roi_align(plan: RegionPlan) -> KernelLaunch:
    """One task has some channels of one region. An image that is not there is a fault, and the first one is read."""
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
        self.images_count, _, self.height, self.width = plan.node.inputs[0].shape

    def run(self, task: Expr) -> None:
        plan = self.plan
        region = T.bind(task // integer(plan.parts, "int64"))
        first = T.bind(task % integer(plan.parts, "int64") * plan.schedule.channels)
        count = T.bind(T.min(integer(plan.channels, "int64") - first, T.int64(plan.schedule.channels)))
        given = T.bind(self.images[region])
        known = in_range(given, self.images_count)
        with T.If(tirx.Not(known)), T.Then():
            T.buffer_store(self.status, T.int32(1), [0])
        image = T.bind(tirx.Select(known, given, T.int64(0)))
        plane = T.bind(integer(self.height, "int64") * integer(self.width, "int64"))
        source = T.bind((image * integer(plan.channels, "int64") + first) * plane)
        rows, columns = self.attrs["size"]
        target = T.bind((region * integer(plan.channels, "int64") + first) * (rows * columns))
        x, y = (self.axis(region, side, bins) for side, bins in ((0, columns), (1, rows)))
        with T.serial(0, rows) as row, T.serial(0, columns) as column:
            self.bin(source, plane, count, y.at(row), x.at(column), target + row * columns + column)

    def axis(self, region: Expr, side: int, bins: int) -> _Axis:
        """The bins of the region along one axis."""
        scale, offset = T.float32(self.attrs["scale"]), T.float32(self.attrs["offset"])
        start = named(self.regions[region * CORNERS + side] * scale - offset)
        end = named(self.regions[region * CORNERS + side + 2] * scale - offset)
        extent = named(end - start if self.attrs["offset"] else T.max(end - start, T.float32(1)))
        width = named(extent / T.float32(bins))
        ratio = self.attrs["ratio"]
        samples = T.bind(T.int32(ratio) if ratio else T.max(T.cast(T.ceil(width), "int32"), T.int32(0)))
        return _Axis(start, width, samples, self.height if side else self.width)

    def bin(self, source: Expr, plane: Expr, count: Expr, y: _Bin, x: _Bin, target: Expr) -> None:
        """One bin of all channels of the task."""
        sums = T.alloc_buffer((self.plan.schedule.channels,), "float32", scope="local")
        is_max = self.attrs["mode"] == "max"
        samples = T.bind(y.axis.samples * x.axis.samples)
        nothing = T.float32(-float("inf")) if is_max else T.float32(0)
        with T.serial(0, count) as channel:
            T.buffer_store(sums, nothing, [channel])
        with T.serial(0, y.axis.samples) as i:
            rows = y.neighbours(i)
            with T.serial(0, x.axis.samples) as j:
                columns = x.neighbours(j)
                taps = [
                    (T.bind(source + row * integer(self.width, "int64") + column), named(a * b))
                    for row, a in rows for column, b in columns
                ]  # fmt: skip
                with T.serial(0, count) as channel:
                    terms = [self.source[place + channel * plane] * weight for place, weight in taps]
                    join: Callable[[Expr, Expr], Expr] = T.max if is_max else lambda a, b: a + b
                    total = terms[0]
                    for term in terms[1:]:
                        total = join(total, term)
                    T.buffer_store(sums, join(sums[channel], total), [channel])
        divisor = named(T.cast(T.max(samples, 1), "float32"))
        bins = self.attrs["size"][0] * self.attrs["size"][1]
        with T.serial(0, count) as channel:
            value = tirx.Select(samples > 0, sums[channel] if is_max else sums[channel] / divisor, T.float32(0))
            T.buffer_store(self.target, value, [target + channel * bins])


class _Axis:
    """Bins of `width` from `start` on, of so many samples each, in an image of so many elements."""

    def __init__(self, start: Expr, width: Expr, samples: Expr, size: Size) -> None:
        self.start, self.width, self.samples, self.size = start, width, samples, size

    def at(self, number: Expr) -> _Bin:
        return _Bin(self, number)


class _Bin:
    def __init__(self, axis: _Axis, number: Expr) -> None:
        self.axis, self.number = axis, number

    def neighbours(self, sample: Expr) -> Neighbours:
        """Samples more than an element outside of the image count as 0, nearer ones are moved to its border."""
        axis = self.axis
        size, half = named(T.cast(integer(axis.size, "int64"), "float32")), T.float32(0.5)
        before = T.cast(self.number, "float32") * axis.width
        inner = (T.cast(sample, "float32") + half) * axis.width / T.cast(axis.samples, "float32")
        place = named(axis.start + before + inner)
        inside = tirx.all(place >= T.float32(-1), place <= size)
        clamped = named(T.min(T.max(place, T.float32(0)), size - T.float32(1)))
        low = T.bind(T.cast(T.floor(clamped), "int64"))
        fraction = named(clamped - T.cast(low, "float32"))
        high = T.bind(T.min(low + 1, integer(axis.size, "int64") - 1))
        none = T.float32(0)
        return [
            (low, named(tirx.Select(inside, T.float32(1) - fraction, none))),
            (high, named(tirx.Select(inside, fraction, none))),
        ]
