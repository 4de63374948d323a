"""Convolutions on a CPU as scheduled, transposed ones included: implicit matrix multiplication over output pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilestitch.compiler.ir.sizes import ceil_div, is_open, largest, smallest
from tilestitch.compiler.ir.types import storage_bytes

from .dots import dot_reasons
from .gemm import SHAPES_BYTES
from .images import ConvShape, column_runs
from .isa import ALL_DOTS, TILE_ROWS, Dot
from .limits import right_reasons, task_reasons, tile_reasons
from .packing import DotPacking, Packing
from .schedules import CpuConvSchedule, CpuConvTransposeSchedule, CpuDotConvSchedule, CpuTileConvSchedule
from .tiling import LINE_BYTES, EvenSplit, RegisterTile, Split, align, meet_in_a_set, split_evenly

LEAST_CHANNELS = 16
"""Channels per group from which skipping taps saves more than its loops cost."""
MOST_BORDER_TAPS = 1024
"""Most kernel taps written out for border tiles, each with its own loop."""


@dataclass(frozen=True)
class ConvPlan:
    """A convolution and its schedule, and what follows from both: parts, tasks and workspace.

    Output columns are split into `x` parts and output rows into `y` parts; a register tile is one part of each. A task
    computes some parts of rows (all columns) by some panels of one group of one image, for one position in the outer
    dimensions. shape: has at least two spatial dimensions; spatial_rank: the number that the node has.
    """

    shape: ConvShape
    spatial_rank: int
    schedule: CpuConvSchedule

    @staticmethod
    def of(shape: ConvShape, schedule: CpuConvSchedule) -> ConvPlan:
        return ConvPlan(shape.in_planes(), shape.rank, schedule)

    @property
    def dot(self) -> Dot | None:
        """The instruction that multiplies groups of integers or half floats; None if there is none."""
        return ALL_DOTS.get(self.schedule.dot) if isinstance(self.schedule, CpuDotConvSchedule) else None

    @property
    def multiplies_tiles(self) -> bool:
        """Whether an instruction multiplies whole tiles."""
        return isinstance(self.schedule, CpuTileConvSchedule)

    @property
    def at_once(self) -> int:
        """Steps of the reduction per instruction."""
        return TILE_ROWS if self.multiplies_tiles else 1

    @property
    def neighbours(self) -> int:
        """Channels per step of the reduction."""
        return 1 if self.dot is None else self.dot.group

    @property
    def channel_steps(self) -> int:
        """Steps over the channels of a group."""
        return ceil_div(ceil_div(self.shape.group_in, self.neighbours), self.at_once) * self.at_once

    @property
    def joins_taps(self) -> bool:
        """Whether a step covers channels of two pixels, copied back to back, because the channels of one are not a
        multiple of the group. Beyond the last tap of a row, integer data meet zero weights and contribute nothing.
        """
        shape, element = self.shape, storage_bytes(self.staged_dtype)
        if self.dot is None or self.multiplies_tiles or self.dot.sums != "int32" or not self.schedule.stage:
            return False
        whole = self.channel_steps * shape.kernel[-1]
        beside = shape.dilations[-1] == 1 and not is_open(shape.output[-1])
        meet = meet_in_a_set(self.tile.rows, staged_step(shape, -1) * shape.group_in * element)
        return beside and not meet and ceil_div(shape.kernel[-1] * shape.group_in, self.neighbours) < whole

    @property
    def merges_taps(self) -> bool:
        """Whether the loops over the last tap and the channel are merged: pixels are copied back to back."""
        return self.schedule.stage and self.shape.dilations[-1] == 1 and self.room == self.filled

    @property
    def row_steps(self) -> int:
        """Steps per row of taps."""
        if self.joins_taps:
            return ceil_div(self.shape.kernel[-1] * self.shape.group_in, self.neighbours)
        return self.channel_steps * self.shape.kernel[-1]

    @property
    def filled(self) -> int:
        """Channels of a copied pixel: a whole number of steps, unless steps join taps."""
        return self.shape.group_in if self.joins_taps else self.channel_steps * self.neighbours

    @property
    def room(self) -> int:
        """Elements from one copied pixel to the next: its channels, plus a cache line where the pixels of a register
        tile would otherwise share a cache set.
        """
        element = storage_bytes(self.staged_dtype)
        meet = meet_in_a_set(self.tile.rows, staged_step(self.shape, -1) * self.filled * element)
        return self.filled + (LINE_BYTES // element if meet else 0)

    @property
    def pixels_meet(self) -> bool:
        """Whether the pixels that a register tile reads in place conflict in the first-level cache."""
        shape = self.shape
        return meet_in_a_set(self.tile.rows, shape.strides[-1] * shape.in_channels * storage_bytes(shape.x_dtype))

    @property
    def steps(self) -> int:
        """Steps of the whole reduction."""
        return self.row_steps * math.prod(self.shape.kernel[:-1])

    @property
    def staged_dtype(self) -> str:
        return self.shape.acc_dtype if self.dot is None else self.dot.left

    @property
    def y(self) -> Split:
        return split_evenly(self.shape.output[-2], self.schedule.rows)

    @property
    def x(self) -> Split:
        return split_evenly(self.shape.output[-1], self.schedule.columns)

    @property
    def tile(self) -> RegisterTile:
        return RegisterTile(self.y.largest * self.x.largest, self.schedule.vectors, self.schedule.lanes)

    @property
    def skips(self) -> bool:
        """Whether padding is handled by skipping taps."""
        return self.shape.padded and not self.schedule.stage

    @property
    def leaves_rows_out(self) -> bool:
        """Whether one-row tiles of an image of open size skip the taps that meet padding rows, although their input is
        copied.
        """
        sides_open = any(map(is_open, self.shape.spatial))
        return self.schedule.stage and sides_open and self.shape.pads[-2] != (0, 0) and self.y.largest == 1

    @property
    def leaves_columns_out(self) -> bool:
        """Whether tiles at the left and right border of an image of open width skip the first pixel of the first column
        of taps, and the last pixel of the last column, where these, and no others, meet padding.
        """
        many = self.shape.group_in >= LEAST_CHANNELS and not self.multiplies_tiles
        return self.schedule.stage and isinstance(self.x, EvenSplit) and self.near_borders and many

    @property
    def near_borders(self) -> bool:
        """Whether in a row of windows only the first meets padding on the left, with its first column of taps, and only
        the last on the right, with its last column.
        """
        shape = self.shape
        most = min(shape.strides[-1], shape.dilations[-1])
        return shape.kernel[-1] > 1 and all(not is_open(pad) and 0 < pad <= most for pad in shape.pads[-1])

    @property
    def border_taps(self) -> int:
        """Kernel taps written out for border tiles, where taps are skipped."""
        borders = sum(run.border for run in column_runs(self.shape, self.x))
        if self.y.largest > 1:
            borders *= self.y.parts * self.shape.kernel[-2]
        return borders * self.shape.kernel[-1]

    @property
    def panels(self) -> int:
        return -(-self.shape.group_out // self.tile.columns)

    @property
    def y_blocks(self) -> int:
        return -(-self.y.parts // self.schedule.block_tiles)

    @property
    def n_blocks(self) -> int:
        return -(-self.panels // self.schedule.block_panels)

    @property
    def outer(self) -> tuple[int, ...]:
        """Output extents of the dimensions before rows and columns."""
        return self.shape.output[:-2]

    @property
    def tasks(self) -> int:
        return self.shape.batch * self.shape.groups * math.prod(self.outer) * self.y_blocks * self.n_blocks

    @property
    def block_rows(self) -> int:
        """Most output rows per task."""
        return smallest(self.shape.output[-2], self.schedule.block_tiles * self.y.largest)

    @property
    def staged_shape(self) -> tuple[int, int, int]:
        """Shape of the copied input: [taps of the outer dimensions, rows, columns * elements per pixel]."""
        rows = staged_extent(self.shape, -2, self.block_rows)
        columns = staged_extent(self.shape, -1, self.shape.output[-1])
        return (math.prod(self.shape.kernel[:-2]), rows, columns * self.room)

    @property
    def staged_bytes(self) -> int:
        elements = math.prod(self.staged_shape)
        if self.multiplies_tiles:  # which are of pixels that need not all exist
            elements += (TILE_ROWS - 1) * staged_step(self.shape, -1) * self.room
        if self.joins_taps:
            elements += self.neighbours
        return align(elements * storage_bytes(self.staged_dtype)) if self.schedule.stage else 0

    @property
    def panel_bytes(self) -> int:
        kept = not self.shape.packed or self.schedule.widen_right
        return self.packing.panel_bytes if kept else 0

    @property
    def interleaves(self) -> bool:
        """Whether the epilogue of a register tile is interleaved with the steps of the next."""
        return isinstance(self.schedule, CpuDotConvSchedule) and self.schedule.interleave

    @property
    def transposes_sums(self) -> bool:
        """Whether sums of a register tile are transposed in the workspace, for results stored channels first.

        Otherwise each element of a pixel's vector of channels would go to another page.
        """
        return (
            self.shape.y_channels_first and self.schedule.spill and not self.multiplies_tiles and not self.interleaves
        )

    @property
    def sums_shape(self) -> tuple[int, int]:
        """Shape of a register tile's sums: pixels and channels, or channels and pixels, in whole vectors."""
        if self.transposes_sums:
            return self.tile.columns, ceil_div(self.tile.rows, self.tile.lanes) * self.tile.lanes
        return self.sums_rows, self.tile.columns

    @property
    def sums_rows(self) -> int:
        """Rows of a register tile's sums that wait in the workspace."""
        if not self.schedule.spill:
            return 0
        return self.y.largest * self.row_sums(self.x.largest) if self.multiplies_tiles else self.tile.rows

    def row_sums(self, columns: int) -> int:
        """Return the rows of sums for `columns` neighbouring output pixels of a row."""
        return ceil_div(columns, TILE_ROWS) * TILE_ROWS if self.multiplies_tiles else columns

    @property
    def scratch_bytes(self) -> int:
        sums = align(math.prod(self.sums_shape) * storage_bytes(self.shape.acc_dtype))
        return self.staged_bytes + self.panel_bytes + sums + self.shapes_bytes

    @property
    def shapes_bytes(self) -> int:
        """Bytes of the tile configuration."""
        return SHAPES_BYTES if self.multiplies_tiles else 0

    @property
    def packing(self) -> Packing:
        """Layout of constant weights: [groups, rows of taps * taps and input channels in whole steps, output
        channels].
        """
        shape = self.shape
        matrix = shape.groups, self.steps * self.neighbours, shape.group_out, self.tile.columns, shape.w_dtype
        return Packing(*matrix) if self.dot is None else DotPacking(*matrix, self.dot.group)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel computes the convolution as scheduled."""
        schedule = self.schedule
        odd = next(task_reasons(schedule), None)
        if odd is not None:
            yield odd
            return
        if isinstance(schedule, CpuDotConvSchedule):
            yield from dot_reasons(self.shape, schedule, schedule.stage)
        if self.interleaves:
            yield from self._interleaving_reasons()
        if self.multiplies_tiles:
            yield from self._tile_reasons()
        yield from right_reasons(
            self.shape.packed, schedule.widen_right, schedule.rows_outer, schedule.prefetch_next
        )  # fmt: skip
        yield from self.prefetch_reasons()
        if isinstance(self.x, EvenSplit) and schedule.rows > 1:
            yield f"a tile has {schedule.rows} rows of an image of open width; there it has one"
        if self.skips and isinstance(self.x, EvenSplit):
            if not self.near_borders or self.y.largest > 1:
                yield "tiles at far borders of an open width have no code of their own; its rows are to be copied first"
        elif self.skips and isinstance(self.y, EvenSplit) and schedule.rows > 1:
            yield "tiles at borders of an open height have no code of their own; its rows are to be copied first"
        elif self.skips and self.border_taps > MOST_BORDER_TAPS:
            yield (
                f"{self.border_taps} taps at the border would be written out, more than {MOST_BORDER_TAPS}; its rows "
                "are to be copied first"
            )

    def prefetch_reasons(self) -> Iterator[str]:
        """Yield why tiles cannot prefetch the next weights."""
        if self.schedule.prefetch_next and any(map(is_open, (*self.shape.output, self.schedule.block_tiles))):
            yield "tiles each ask for a piece of the weights to come: of images of fixed size, where they are so many"

    def _interleaving_reasons(self) -> Iterator[str]:
        shape, schedule = self.shape, self.schedule
        if self.multiplies_tiles or not schedule.spill:
            yield "sums in vectors wait in the workspace for an epilogue that is interleaved; their results are spilled"
        if any(map(is_open, (*shape.spatial, *shape.output))) or self.skips:
            yield "epilogues are interleaved with a reduction that is one loop: of fixed sizes, which leaves no tap out"
            return
        if self.steps < self.tile.rows:
            yield f"{self.steps} steps of the reduction do not finish a tile of {self.tile.rows} pixels"
        if shape.group_out % self.tile.columns:
            yield f"{shape.group_out} channels are no whole panels of {self.tile.columns}, which are finished alike"
        if self.y.largest > 1 and self.x.parts > 1:
            yield "tiles of several rows that are interleaved have all columns"

    def _tile_reasons(self) -> Iterator[str]:
        schedule = self.schedule
        if schedule.rows * ceil_div(schedule.columns, TILE_ROWS) > 2 or schedule.vectors > 2:
            yield f"sums are in one or two tiles of {TILE_ROWS} pixels of a row by one or two of {TILE_ROWS} channels"
        if not schedule.stage or not schedule.spill:
            yield "tiles are of rows that are copied first, and their results spilled"
        if schedule.prefetch_next:
            yield "tiles are loaded whole, and ask for no other"


def staged_step(shape: ConvShape, dim: int) -> int:
    """Return the copied coordinates between neighbouring outputs; for a kernel of extent 1, only those read are
    copied.
    """
    return shape.strides[dim] if shape.kernel[dim] > 1 else 1


def staged_extent(shape: ConvShape, dim: int, outputs: int) -> int:
    """Return the number of copied coordinates for `outputs` neighbouring outputs."""
    return (outputs - 1) * staged_step(shape, dim) + shape.dilations[dim] * (shape.kernel[dim] - 1) + 1


@dataclass(frozen=True)
class ConvTransposeShape:
    """A transposed convolution; `output`: spatial extents of the result, `pads`: what is cropped before it."""

    batch: int
    in_channels: int
    out_channels: int
    spatial: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int = 1
    x_dtype: str = "float32"
    w_dtype: str = "float32"
    acc_dtype: str = "float32"
    packed: bool = True
    channels_last: bool = True

    def __post_init__(self) -> None:
        ranks = {len(self.spatial), len(self.output), len(self.kernel), len(self.strides), len(self.dilations)}
        if ranks != {len(self.pads)} or not self.spatial:
            raise ValueError(f"transposed convolution of mixed rank in {self}; give one entry per spatial dimension")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ValueError(f"{self.groups} groups do not divide the channels of {self}; check the model")

    @property
    def group_in(self) -> int:
        return self.in_channels // self.groups

    @property
    def group_out(self) -> int:
        return self.out_channels // self.groups

    @property
    def reduction(self) -> int:
        return self.group_in * math.prod(self.kernel)

    @property
    def phase(self) -> int:
        """Output columns of the longest phase, that is of columns that meet the same taps."""
        return ceil_div(self.output[-1], self.strides[-1])


@dataclass(frozen=True)
class ConvTransposePlan:
    """A transposed convolution and its schedule, and what follows from both.

    A task first copies the input rows that it needs, one per kernel position before the last dimension, padded with
    zeros.
    """

    shape: ConvTransposeShape
    schedule: CpuConvTransposeSchedule

    @property
    def columns(self) -> Split:
        """Output columns of the longest phase, split into register tiles."""
        return split_evenly(self.shape.phase, self.schedule.rows)

    @property
    def tile(self) -> RegisterTile:
        return RegisterTile(self.columns.largest, self.schedule.vectors, self.schedule.lanes)

    @property
    def panels(self) -> int:
        return -(-self.shape.group_out // self.tile.columns)

    @property
    def n_blocks(self) -> int:
        return -(-self.panels // self.schedule.block_panels)

    @property
    def tasks(self) -> int:
        shape = self.shape
        return shape.batch * shape.groups * math.prod(shape.output[:-1]) * self.n_blocks

    @property
    def column_tiles(self) -> int:
        """Register tiles of the longest phase."""
        return ceil_div(self.shape.phase, self.tile.rows)

    @property
    def first_column(self) -> int:
        """Input coordinate of the first copied column (negative: zeros before the input)."""
        shape = self.shape
        return min(0, (shape.pads[-1] - (shape.kernel[-1] - 1) * shape.dilations[-1]) // shape.strides[-1])

    @property
    def staged_shape(self) -> tuple[int, int]:
        """Shape of the copied input: [taps before the last dimension, columns * channels]."""
        shape = self.shape
        last = self.column_tiles * self.tile.rows + (shape.strides[-1] - 1 + shape.pads[-1]) // shape.strides[-1]
        columns = largest(last, shape.spatial[-1]) - self.first_column
        return (math.prod(shape.kernel[:-1]), columns * shape.group_in)

    @property
    def staged_bytes(self) -> int:
        return align(math.prod(self.staged_shape) * storage_bytes(self.shape.acc_dtype))

    @property
    def scratch_bytes(self) -> int:
        return self.staged_bytes + (0 if self.shape.packed else self.packing.panel_bytes)

    @property
    def packing(self) -> Packing:
        """Layout of constant weights: [groups, kernel positions * input channels, output channels]."""
        shape = self.shape
        return Packing(shape.groups, shape.reduction, shape.group_out, self.tile.columns, shape.w_dtype)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel computes it as scheduled."""
        yield from tile_reasons(self.schedule.rows, self.schedule.vectors, self.schedule.lanes)
        if not self.schedule.block_panels:
            yield "a task has 0 panels; it has at least one"
