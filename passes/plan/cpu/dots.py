"""Whether an instruction for groups of 8-bit integers computes a contraction as scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from .isa import DOT_LANES, DOTS, Dot
from .schedules import DotSchedule


class Bytes(Protocol):
    """The shape of a contraction, as these instructions see it."""

    @property
    def multiplies_bytes(self) -> bool: ...

    def reads_in_place(self, dot: Dot) -> bool: ...


def dot_reasons(shape: Bytes, schedule: DotSchedule, staged: bool) -> Iterator[str]:
    """Why there is no such kernel. staged: the left operand is copied first."""
    dot = DOTS.get(schedule.dot)
    if dot is None:
        yield f"no instruction {schedule.dot!r} multiplies groups of integers; known are {', '.join(DOTS)}"
        return
    if not shape.multiplies_bytes:
        yield f"{dot.name} multiplies uint8 by constant int8 into int32, without gates"
    if schedule.lanes not in DOT_LANES:
        yield f"{dot.name} has {', '.join(map(str, DOT_LANES))} sums, not {schedule.lanes}"
    if not staged and not shape.reads_in_place(dot):
        yield f"{dot.name} reads whole groups of {dot.group}; rows without them are copied first"
    if schedule.widen_right:
        yield f"{dot.name} reads panels as they are packed: there are none to widen"
