"""Windows over single channels on a CPU, as scheduled: pooling and depthwise convolution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilestitch.compiler.ir.sizes import ceil_div, is_open, largest
from tilestitch.compiler.ir.types import storage_bytes

from .images import ConvShape, column_runs, interior
from .limits import lane_reasons
from .schedules import CpuWindowSchedule
from .tiling import Split, split_at_most, split_evenly

FORMS = ("columns", "channels", "across", "line")
MOST_TAPS = 16
"""Most taps of a line, each written out in code."""
MOST_PHASES = 4
MOST_VECTORS = 64
"""Most vector accumulators at a time."""
MOST_STEPS = 1 << 14
"""Most steps of a row of windows that are written out in code."""


@dataclass(frozen=True)
class Line:
    """Pooling of a line of `extent` elements after `before` elements of padding into `output` elements.

    phase: elements of one of `stride` phases, a multiple of the lanes of a vector.
    """

    extent: int
    before: int
    output: int
    taps: int
    stride: int
    dilation: int
    lanes: int

    @property
    def phase(self) -> int:
        reach = (self.output - 1) * self.stride + (self.taps - 1) * self.dilation + 1
        size = ceil_div(largest(reach, self.before + self.extent), self.stride)
        return ceil_div(size, self.lanes) * self.lanes

    @property
    def elements(self) -> int:
        """Elements of the workspace: the line, and its phases if it has several."""
        return self.stride * self.phase * (2 if self.stride > 1 else 1)


def why_no_line(shape: ConvShape, lanes: int) -> str | None:
    """Return why windows cannot be pooled line by line; None if they can."""
    if not shape.pools or shape.channels_last:
        return "only pooling of images with channels first goes line by line"
    if lanes < 2:
        return f"lines have no vectors of {lanes}"
    if shape.kernel[-1] > MOST_TAPS or shape.strides[-1] > MOST_PHASES:
        return (
            f"no line has {shape.kernel[-1]} taps in {shape.strides[-1]} phases: at most {MOST_TAPS} in {MOST_PHASES}"
        )
    return None


@dataclass(frozen=True)
class WindowPlan:
    """Windows and their schedule, and what follows from both: parts, tasks and workspace.

    A task computes output rows of some channels of one image, for one position in the outer dimensions. shape: has at
    least two spatial dimensions; spatial_rank: the number that the node has.
    """

    shape: ConvShape
    spatial_rank: int
    schedule: CpuWindowSchedule

    @staticmethod
    def of(shape: ConvShape, schedule: CpuWindowSchedule) -> WindowPlan:
        return WindowPlan(shape.in_planes(), shape.rank, schedule)

    @property
    def line(self) -> Line | None:
        shape = self.shape
        if self.schedule.form != "line":
            return None
        return Line(
            shape.spatial[-1], shape.pads[-1][0], shape.output[-1], shape.kernel[-1], shape.strides[-1],
            shape.dilations[-1], self.schedule.lanes,
        )  # fmt: skip

    @property
    def over_channels(self) -> bool:
        """Whether vectors run over channels, not columns."""
        return self.schedule.form not in ("across", "line")

    @property
    def step(self) -> int:
        """Channels that are computed together."""
        return self.schedule.vectors * self.schedule.lanes if self.over_channels else 1

    @property
    def row_blocks(self) -> int:
        return -(-self.shape.output[-2] // self.schedule.block_rows)

    @property
    def channel_blocks(self) -> int:
        return -(-self.shape.out_channels // self.schedule.block_channels)

    @property
    def outer(self) -> tuple[int, ...]:
        return self.shape.output[:-2]

    @property
    def tasks(self) -> int:
        return self.shape.batch * math.prod(self.outer) * self.row_blocks * self.channel_blocks

    @property
    def interior(self) -> tuple[int, int]:
        """First and one past the last output column whose window lies inside the input's columns; may be empty."""
        return interior(self.shape)

    @property
    def between(self) -> Split:
        """The interior columns, where their number is open, split into parts that are computed together."""
        first, last = self.interior
        return split_evenly(last - first, self.schedule.columns)

    @property
    def scratch_bytes(self) -> int:
        return 0 if self.line is None else self.line.elements * storage_bytes(self.shape.acc_dtype)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel computes the windows as scheduled."""
        schedule = self.schedule
        if schedule.form not in FORMS:
            yield f"there are no windows of form {schedule.form!r}; there are {', '.join(FORMS)}"
            return
        alone = self.shape.groups == self.shape.in_channels
        if not alone:
            yield "windows over mixed channels are a convolution"
        held = schedule.columns * schedule.vectors
        if not 1 <= held <= MOST_VECTORS:
            yield f"{schedule.columns} columns of {schedule.vectors} vectors are not 1 to {MOST_VECTORS} of them"
            return
        odd = next(lane_reasons(schedule.lanes, 1), None)
        if odd is not None:
            yield odd
            return
        if not schedule.block_rows or not schedule.block_channels:
            yield f"a task has {schedule.block_rows} rows of {schedule.block_channels} channels; it has at least one"
        elif self.channel_blocks > 1 and schedule.block_channels % self.step:
            yield f"{schedule.block_channels} channels of a task are not whole steps of {self.step}"
        yield from self._form_reasons()

    def _form_reasons(self) -> Iterator[str]:
        shape, schedule = self.shape, self.schedule
        if schedule.form == "line":
            why = why_no_line(shape, schedule.lanes)
            if why is not None:
                yield why
        if schedule.form == "across" and schedule.lanes < 2:
            yield f"windows beside each other have no vectors of {schedule.lanes}"
        if schedule.form in ("across", "line") and schedule.vectors * schedule.columns > 1:
            yield f"vectors over columns are one at a time, not {schedule.vectors} of {schedule.columns}"
        if schedule.form == "columns" and self.written_steps > MOST_STEPS:
            yield f"{self.written_steps} steps would be written out, more than {MOST_STEPS}"

    @property
    def written_steps(self) -> int:
        """Steps of a row of windows that are written out, in forms whose taps are."""
        if is_open(self.shape.output[-1]):
            held = sum(size for size, _ in self.between.sizes())
            return held * self.schedule.vectors * self.shape.kernel[-1]
        runs = column_runs(self.shape, split_at_most(self.shape.output[-1], self.schedule.columns))
        return sum(run.size for run in runs) * self.schedule.vectors * self.shape.kernel[-1]
