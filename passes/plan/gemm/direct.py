"""Direct convolutions of narrow groups: which neighbouring results a thread computes."""

from collections.abc import Iterator
from math import prod

from tilestitch.compiler.ir.sizes import Size, divisor_of
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.vectors import VECTOR_BYTES, extents_of_threads
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import conv_shape
from tilestitch.passes.plan.schedules import DirectSchedule

MOST_WEIGHTS = 64
"""Most weights of a kernel row that a thread keeps in registers."""
MOST_PIXELS = 4
LEAST_VECTOR_BYTES = 4


def direct_extents(group: AnchoredGroup, schedule: DirectSchedule) -> tuple[Size, ...]:
    """Return the extents that threads are numbered over."""
    return extents_of_threads(group.result.shape, schedule.lanes, schedule.pixels)


def direct_schedules(group: AnchoredGroup, threads: int) -> Iterator[DirectSchedule]:
    """Yield schedules with more and more threads."""
    shape = conv_shape(group.anchor)
    for lanes in (8, 4, 2):
        for pixels in (MOST_PIXELS, 2, 1):
            schedule = DirectSchedule(threads, lanes, pixels)
            if pixels * max(1, shape.group_in) <= MOST_PIXELS and why_not_vectors(group, schedule) is None:
                yield schedule
    yield DirectSchedule(threads)


def why_not_vectors(group: AnchoredGroup, schedule: DirectSchedule) -> str | None:
    """Return why no thread can compute that many neighbouring results; None if it can."""
    lanes, pixels = schedule.lanes, schedule.pixels
    if lanes < 1 or pixels < 1:
        return f"{lanes} channels of {pixels} pixels a thread: there is one at least"
    if lanes * pixels == 1:
        return None
    shape, operands = conv_shape(group.anchor), group.anchor.inputs
    if shape.transposed or not shape.channels_last or shape.group_in != shape.group_out:
        return "threads have several results of convolutions only, with channels last, and as many of them as before"
    if any(operand not in group.inputs for operand in operands):
        return "threads have several results where the operands of the convolution lie in memory"
    channels = shape.groups * shape.group_out
    if channels % lanes or lanes % shape.group_out or divisor_of(shape.output[-1]) % pixels:
        return f"{lanes} of {channels} channels of {pixels} of {shape.output[-1]} pixels are no whole number of groups"
    sizes = [lanes * storage_bytes(value.dtype) for value in operands]
    if lanes == 1 or any(not LEAST_VECTOR_BYTES <= size <= VECTOR_BYTES for size in sizes):
        return f"vectors of {lanes} elements have {sizes} bytes: {LEAST_VECTOR_BYTES} to {VECTOR_BYTES} can be read"
    weights = shape.kernel[-1] * shape.group_in * lanes
    return f"{weights} weights of a row are more than {MOST_WEIGHTS}" if weights > MOST_WEIGHTS else None


def direct_threads(group: AnchoredGroup, schedule: DirectSchedule) -> Size:
    """Return the number of threads with results."""
    return prod(direct_extents(group, schedule))
