"""The template of roi_align: samples of the bins of a region, interpolated between four neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.faults import fault_message
from tilestitch.codegen.compute.regions import Axis
from tilestitch.codegen.compute.scattering import in_range
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, StatusArg, kernel_function
from tilestitch.passes.plan.cpu.opaque import RegionPlan


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
        x, y = (Axis.of(plan.node, self.regions, region, side) for side in (0, 1))
        with T.serial(0, rows) as row, T.serial(0, columns) as column:
            self.bin(source, plane, count, (y, row), (x, column), target + row * columns + column)

    def bin(
        self, source: Expr, plane: Expr, count: Expr, of_rows: tuple[Axis, Expr], of_columns: tuple[Axis, Expr],
        target: Expr,
    ) -> None:  # fmt: skip
        """One bin of all channels of the task, by its number along both axes."""
        (y, row_bin), (x, column_bin) = of_rows, of_columns
        sums = T.alloc_buffer((self.plan.schedule.channels,), "float32", scope="local")
        is_max = self.attrs["mode"] == "max"
        samples = T.bind(y.samples * x.samples)
        nothing = T.float32(-float("inf")) if is_max else T.float32(0)
        with T.serial(0, count) as channel:
            T.buffer_store(sums, nothing, [channel])
        with T.serial(0, y.samples) as i:
            rows = y.neighbours(row_bin, i)
            with T.serial(0, x.samples) as j:
                columns = x.neighbours(column_bin, j)
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
