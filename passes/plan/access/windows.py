"""Sliding windows on GPUs: which neighbouring results a thread computes."""

from collections.abc import Iterator, Sequence
from math import prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.sizes import Size, divisor_of
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.vectors import VECTOR_BYTES, extents_of_threads
from tilestitch.passes.plan.schedules import WindowSchedule

MOST_TAPS = 32
"""Most taps of windows whose code is written out."""
MOST_PIXELS = 4
LEAST_VECTOR_BYTES = 4


def window_extents(anchor: Node, schedule: WindowSchedule) -> tuple[Size, ...]:
    """Return the extents that threads are numbered over."""
    return extents_of_threads(anchor.output.shape, schedule.lanes, schedule.pixels)


def window_schedules(anchor: Node, inputs: Sequence[Value], threads: int) -> Iterator[WindowSchedule]:
    """Yield schedules with more and more threads."""
    for lanes in (8, 4, 2):
        for pixels in (MOST_PIXELS, 2, 1):
            schedule = WindowSchedule(threads, lanes, pixels)
            if why_not_vectors(anchor, inputs, schedule) is None:
                yield schedule
    yield WindowSchedule(threads)


def why_not_vectors(anchor: Node, inputs: Sequence[Value], schedule: WindowSchedule) -> str | None:
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
