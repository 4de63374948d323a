"""Whether an instruction for groups of 8-bit integers or half floats computes a contraction as scheduled."""

from collections.abc import Iterator
from typing import Protocol

from .isa import ALL_DOTS, TILE_DOTS, Dot, Multiplied
from .pairs import MOST_OF_A_PAIR
from .schedules import CpuTileConvSchedule, CpuTileGemmSchedule, DotSchedule


class Grouped(Multiplied, Protocol):
    """The shape of a contraction whose left operand may be read in place."""

    def reads_in_place(self, dot: Dot) -> bool: ...


def dot_reasons(shape: Grouped, schedule: DotSchedule, staged: bool) -> Iterator[str]:
    """Yield why there is no such kernel. staged: the left operand is copied first."""
    tiles = isinstance(schedule, CpuTileGemmSchedule | CpuTileConvSchedule)
    known = [name for name in ALL_DOTS if (name in TILE_DOTS) == tiles]
    dot = ALL_DOTS.get(schedule.dot)
    if dot is None or dot.name not in known:
        yield f"no instruction {schedule.dot!r} multiplies so; known are {', '.join(known)}"
        return
    if not shape.multiplied_by(dot):
        halves = f"{dot.left} by {dot.right}, which is constant where it convolves,"
        operands = "uint8 by constant int8" if dot.sums == "int32" else halves
        pairs = (
            f", of which pairs along the reduction sum to at most {MOST_OF_A_PAIR} of either sign," if dot.pairs else ""
        )
        yield f"{dot.name} multiplies {operands}{pairs} into {dot.sums}"
    if schedule.lanes not in dot.lanes:
        yield f"{dot.name} has {', '.join(map(str, dot.lanes))} sums, not {schedule.lanes}"
    if not staged and not shape.reads_in_place(dot):
        yield f"{dot.name} reads whole groups of {dot.group}; rows without them are copied first"
    if schedule.widen_right:
        yield f"{dot.name} reads panels as they are packed: there are none to widen"
