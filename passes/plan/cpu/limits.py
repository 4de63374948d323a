"""Limits common to all CPU kernels: why a schedule asks for too much or too little."""

from collections.abc import Iterator
from dataclasses import fields

from .schedules import (
    CpuConvSchedule,
    CpuGemmSchedule,
    CpuLoopSchedule,
    CpuRowSchedule,
    CpuScanSchedule,
    CpuScatterSchedule,
    CpuSchedule,
    CpuSortSchedule,
)

MOST_ACCUMULATORS = 256
"""Most vector accumulators of a register tile, each written out in code: more than any CPU has registers."""
MOST_LANES = 64
LONGEST_SUM = 4096
"""Most floats added sequentially: the error of such a sum grows with its length. For a million numbers of one sign it
was 2e-4 of the sum, against 1e-6 with a sum of sums.
"""
LARGEST = (1 << 31) - 1
LARGEST_IN_32_BITS = 1 << 20
"""Limit for task sizes that a kernel may handle in 32 bits where they are added to a position."""
BOUNDED = frozenset({"chunk"})
"""Fields that have a limit of their own."""


def size_reasons(schedule: CpuSchedule) -> Iterator[str]:
    """Yield which numbers exceed what kernels count with."""
    narrow = CpuLoopSchedule | CpuRowSchedule | CpuSortSchedule | CpuScanSchedule | CpuScatterSchedule
    most = LARGEST_IN_32_BITS if isinstance(schedule, narrow) else LARGEST
    for field in fields(schedule):
        value = getattr(schedule, field.name)
        if type(value) is int and field.name not in BOUNDED and not 0 <= value <= most:
            yield f"{field.name} is {value}, not 0 to {most}"


def task_reasons(schedule: CpuGemmSchedule | CpuConvSchedule) -> Iterator[str]:
    """Yield why no task can have such tiles."""
    pixels = schedule.rows * (schedule.columns if isinstance(schedule, CpuConvSchedule) else 1)
    yield from tile_reasons(pixels, schedule.vectors, schedule.lanes)
    if not schedule.block_tiles or not schedule.block_panels:
        yield f"a task has {schedule.block_tiles} tiles by {schedule.block_panels} panels; it has at least one"


def tile_reasons(rows: int, vectors: int, lanes: int) -> Iterator[str]:
    """Yield why there can be no register tile of `rows` by `vectors` vectors of `lanes`."""
    if not 1 <= rows * vectors <= MOST_ACCUMULATORS:
        yield f"a register tile of {rows} x {vectors} vectors has not 1 to {MOST_ACCUMULATORS} of them"
    yield from lane_reasons(lanes)


def lane_reasons(lanes: int, least: int = 2) -> Iterator[str]:
    """Yield why there can be no vectors of `lanes`."""
    if not least <= lanes <= MOST_LANES or lanes & (lanes - 1):
        yield f"{lanes} lanes are no vector: their number is a power of two, from {least} to {MOST_LANES}"


def right_reasons(packed: bool, widens: bool, rows_outer: bool, prefetches: bool) -> Iterator[str]:
    """Yield why the right operand's panels cannot be read so. packed: they are packed at compile time."""
    if (widens or not packed) and rows_outer:
        yield "a task that makes panels in its workspace has one at a time: it cannot walk through all for each tile"
    if not packed and (widens or prefetches):
        yield "each task packs an operand that is known at run time: there are no panels to widen or to ask for"
