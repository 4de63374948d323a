"""Launches of element-wise work and of transposes through shared memory."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.accesses import elementwise_walk
from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.vectors import accesses_along
from tilestitch.passes.plan.launches.cuda.emitted import Emitted, shared_array
from tilestitch.passes.plan.schedules import ElementwiseSchedule, TransposeSchedule


def elementwise(inputs: Sequence[Value], outputs: Sequence[Value], schedule: ElementwiseSchedule) -> Emitted:
    count = outputs[0].tensor_type.num_elements // schedule.lanes
    blocks = ceil_div(count, schedule.threads * schedule.vectors)
    return Emitted.of("injective", blocks, schedule.threads, (*inputs, *outputs), part=True)


def transpose(inputs: Sequence[Value], outputs: Sequence[Value], schedule: TransposeSchedule) -> Emitted:
    extents, walk = elementwise_walk(inputs, outputs)
    edge, axis = schedule.edge, schedule.axis
    outer = prod(d for i, d in enumerate(extents[:-1]) if i != axis)
    blocks = outer * ceil_div(extents[axis], edge) * ceil_div(extents[-1], edge)
    tiles = [storage_bytes(a.value.dtype) for a in accesses_along(axis, extents, walk, inputs)]
    launch = Emitted.of("transpose", blocks, edge * schedule.lines, (*inputs, *outputs), part=True)
    return replace(launch, static_shared_bytes=sum(shared_array(edge * (edge + 1), size) for size in tiles))
