"""Element-wise work, data movement and views on a CPU, as scheduled."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.accesses import Access, merged_accesses
from tilestitch.compiler.ir.sizes import Size, is_open, largest

from .limits import lane_reasons
from .schedules import CpuLoopSchedule

MOST_TRANSPOSED = 16
"""Most rows and columns of blocks that are transposed in registers."""
FEW = 8
"""Rows from which only half as many twice are interleaved: blocks of others are transposed in less time."""
MOST_INTERLEAVED = 12
"""Most rows of which vectors are interleaved: channels of an image, coordinates of a box."""

T = TypeVar("T")


def interleaves(rows: int, lanes: int) -> bool:
    """Return whether vectors of so many rows are interleaved."""
    return 1 < rows < lanes and rows <= MOST_INTERLEAVED and (rows < FEW or rows % 2 == 0)


@dataclass(frozen=True)
class LoopPlan:
    """The loops of a kernel whose outputs have `elements` elements, and what follows from their schedule."""

    elements: int
    schedule: CpuLoopSchedule

    @property
    def inner(self) -> int:
        return self.schedule.extents[-1]

    @property
    def tiled(self) -> int | None:
        """The dimension that is tiled; None if there is none."""
        return self.schedule.tiled if self.schedule.edge else None

    def in_place(self, walked: Sequence[T]) -> Sequence[T]:
        """Return per-dimension items given in loop order, in the output's order."""
        order = self.schedule.order
        return [walked[order.index(d)] for d in range(len(order))] if order else walked

    @property
    def interleaved(self) -> int:
        """The rows whose vectors are interleaved before they are stored, where the loops exchange the output's last two
        dimensions, and each task has all of the last one; else 1.
        """
        schedule, rank = self.schedule, len(self.schedule.order)
        if schedule.order[-2:] != (rank - 1, rank - 2) or schedule.branches or schedule.edge:
            return 1
        rows = schedule.extents[-2]
        known = not is_open(rows) and interleaves(rows, schedule.lanes)
        return rows if known and schedule.rows % rows == 0 else 1

    @property
    def block(self) -> int:
        """The rows and columns of the blocks of a tile that are transposed in registers, if any; a power of two."""
        schedule = self.schedule
        sides = (schedule.extents[schedule.tiled], schedule.chunk)
        least = min([schedule.lanes, schedule.edge, MOST_TRANSPOSED, *(side for side in sides if not is_open(side))])
        return 1 << (least.bit_length() - 1) if least else 1

    @property
    def is_cut(self) -> bool:
        """Whether several tasks share the last dimension; if it is of open size, by at least one."""
        return self.schedule.chunk != self.inner if is_open(self.inner) else self.inner // self.schedule.chunk > 1

    @property
    def chunks(self) -> Size:
        return largest(1, self.inner // self.schedule.chunk) if self.is_cut else 1

    @property
    def outer_extents(self) -> tuple[int, ...]:
        """The extents that rows are numbered over: all but the last dimension, the tiled one in tiles."""
        edge, extents = self.schedule.edge, self.schedule.extents[:-1]
        return tuple(-(-e // edge) if d == self.tiled else e for d, e in enumerate(extents))

    @property
    def tasks(self) -> int:
        return -(-prod(self.outer_extents) // self.schedule.rows) * self.chunks

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel can have these loops."""
        schedule = self.schedule
        if not schedule.extents or prod(schedule.extents) != self.elements:
            yield f"loops over {schedule.extents} have not {self.elements} elements"
            return
        odd = next(lane_reasons(schedule.lanes, 1), None)
        if odd is not None:
            yield odd
        fits = is_open(self.inner) or schedule.lanes <= schedule.chunk <= self.inner
        if not fits or not schedule.rows:
            yield (
                f"a task has {schedule.rows} rows of {schedule.chunk} elements: at least one, of a vector of "
                f"{schedule.lanes} to {self.inner}"
            )
        if schedule.cuts and schedule.chunk != self.inner:
            yield f"a row that is cut where operands differ is computed whole, not by {schedule.chunk} elements"
        if schedule.edge and (schedule.tiled >= len(schedule.extents) - 1 or schedule.cuts or schedule.branches):
            yield f"tiles along dimension {schedule.tiled} of {schedule.extents} are before the last one, without cuts"
        if schedule.cuts and not _rise((0, *schedule.cuts, self.inner)):
            yield f"cuts {schedule.cuts} do not rise from 0 to {self.inner}"
        if schedule.order and sorted(schedule.order) != list(range(len(schedule.extents))):
            yield f"order {schedule.order} does not name each of the {len(schedule.extents)} dimensions once"
        if schedule.branches:
            yield from self._branch_reasons()
        elif schedule.branch:
            yield f"branch is {schedule.branch}, but no rows branch"
        if schedule.tiled and not schedule.edge:
            yield f"tiled is {schedule.tiled}, but there are no tiles"

    def _branch_reasons(self) -> Iterator[str]:
        places, dimension = self.schedule.branches, self.schedule.branch
        if dimension >= len(self.schedule.extents) - 1:
            yield f"rows do not branch along dimension {dimension} of {self.schedule.extents}: it is no outer one"
        elif places[0] or places[-1] != self.schedule.extents[dimension] or not _rise(places):
            yield f"branches {places} do not rise from 0 to {self.schedule.extents[dimension]}"


def alternating(
    inputs: Sequence[Value], outputs: Sequence[Value], schedule: CpuLoopSchedule
) -> tuple[int, tuple[Access, ...]]:
    """Return the number of rows that lie element by element in turn in some operands, and the accesses to these, if
    each task has all of these rows: their vectors are read as they lie, and separated; else 1, and none.
    """
    extents, one = schedule.extents, (1, ())
    if len(extents) < 2 or schedule.order or schedule.edge or schedule.branches or is_open(extents[-2]):
        return one
    rows = extents[-2]
    if not interleaves(rows, schedule.lanes) or schedule.rows % rows:
        return one
    found = _read_once(inputs, outputs, schedule, lambda strides: strides[-2:] == (1, rows))
    return (rows, found) if found else one


def lying_across(inputs: Sequence[Value], outputs: Sequence[Value], schedule: CpuLoopSchedule) -> tuple[Access, ...]:
    """Return the accesses to operands that are contiguous along the tiled dimension: their tiles are transposed in
    registers.
    """
    if schedule.order or LoopPlan(prod(schedule.extents), schedule).block == 1:
        return ()
    return _read_once(
        inputs, outputs, schedule, lambda strides: strides[schedule.tiled] == 1 and strides[-1] not in (0, 1)
    )


def _read_once(
    inputs: Sequence[Value], outputs: Sequence[Value], schedule: CpuLoopSchedule,
    lies: Callable[[tuple[Size, ...]], bool],
) -> tuple[Access, ...]:  # fmt: skip
    """Return the accesses with such strides to operands that the loops read in one place."""
    accesses = merged_accesses(schedule.extents, inputs, outputs)
    values = [access.value for access in accesses]
    return tuple(
        access for access in accesses
        if access.strides is not None and lies(access.strides) and values.count(access.value) == 1
    )  # fmt: skip


def _rise(places: Sequence[int]) -> bool:
    return all(a < b for a, b in itertools.pairwise(places))
