"""Sliding windows and direct convolutions of narrow groups on GPUs: which neighbouring results a thread computes."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TypeVar

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.sizes import Size, divisor_of
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.vectors import VECTOR_BYTES, extents_of_threads
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import conv_shape
from tilestitch.passes.plan.schedules import DirectSchedule, WindowSchedule

MOST_TAPS = 32
"""Most taps of windows whose code is written out."""
MOST_WEIGHTS = 64
"""Most weights of a kernel row that a thread keeps in registers."""
MOST_PIXELS = 4
LEAST_VECTOR_BYTES = 4

ResultSchedule = TypeVar("ResultSchedule", WindowSchedule, DirectSchedule)


def window_extents(anchor: Node, schedule: WindowSchedule) -> tuple[Size, ...]:
    """Return the extents that threads are numbered over."""
    return extents_of_threads(anchor.output.shape, schedule.lanes, schedule.pixels)


def direct_extents(group: AnchoredGroup, schedule: DirectSchedule) -> tuple[Size, ...]:
    """Return the extents that threads are numbered over."""
    return extents_of_threads(group.result.shape, schedule.lanes, schedule.pixels)


def direct_threads(group: AnchoredGroup, schedule: DirectSchedule) -> Size:
    """Return the number of threads with results."""
    return prod(direct_extents(group, schedule))


def window_schedules(anchor: Node, inputs: Sequence[Value], threads: int) -> Iterator[WindowSchedule]:
    """Yield schedules with more and more threads."""
    return _schedules(WindowSchedule, threads, lambda each: why_not_windows(anchor, inputs, each) is None)


def direct_schedules(group: AnchoredGroup, threads: int) -> Iterator[DirectSchedule]:
    """Yield schedules with more and more threads."""
    pixels = MOST_PIXELS // max(1, conv_shape(group.anchor).group_in)
    return _schedules(
        DirectSchedule, threads, lambda each: each.pixels <= pixels and why_not_direct(group, each) is None
    )


def _schedules(
    kind: type[ResultSchedule], threads: int, is_possible: Callable[[ResultSchedule], bool]
) -> Iterator[ResultSchedule]:
    for lanes in (8, 4, 2):
        for pixels in (MOST_PIXELS, 2, 1):
            schedule = kind(threads, lanes, pixels)
            if is_possible(schedule):
                yield schedule
    yield kind(threads)


def why_not_windows(anchor: Node, inputs: Sequence[Value], schedule: WindowSchedule) -> str | None:
    """Return why no thread can compute that many neighbouring results of a group that reads `inputs`; None if it
    can.
    """
    lanes, pixels = schedule.lanes, schedule.pixels
    if lanes < 1 or pixels < 1:
        return f"{lanes} channels of {pixels} pixels a thread: there is one at least"
    if lanes * pixels == 1:
        return None
    x, attrs = anchor.inputs[0], anchor.attrs
    if attrs["layout"] != "NXC" or x not in inputs or x.dtype == "bool":
        return "threads have several results of images in memory only, with channels last, and of numbers"
    *_, columns, channels = anchor.output.shape
    if divisor_of(channels) % lanes or divisor_of(columns) % pixels:
        return f"{channels} channels of {columns} pixels are no whole number of {lanes} of {pixels}"
    size = lanes * storage_bytes(x.dtype)
    if lanes == 1 or not LEAST_VECTOR_BYTES <= size <= VECTOR_BYTES:
        return f"{size} bytes of {lanes} elements: {LEAST_VECTOR_BYTES} to {VECTOR_BYTES} can be read as a vector"
    taps = prod(attrs["kernel"])
    return f"{taps} elements of a window are more than {MOST_TAPS}" if taps > MOST_TAPS else None


def why_not_direct(group: AnchoredGroup, schedule: DirectSchedule) -> str | None:
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
