"""Copy of the input rows that a task of a convolution reads, in the task's workspace.

The copy is channels-last whatever the layout of the input, and has zeros where windows extend over the border, so the
loops over it have no conditions. A pixel has room for whole steps of the reduction (``ConvPlan.room``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import storage_dtype
from tilestitch.codegen.cpu.contraction import dots
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.transpose import interleave
from tilestitch.codegen.cpu.convolution.geometry import LoadPixel, flatten, inside, may_be_positive, nest
from tilestitch.compiler.ir.sizes import Size, ceil_div, largest, smallest
from tilestitch.compiler.ir.types import HALVES
from tilestitch.passes.plan.cpu.conv import ConvPlan, staged_extent, staged_step

MOST_INTERLEAVED = 4
"""Most channels of a channels-first image that are interleaved by shuffles."""


@dataclass(frozen=True)
class Row:
    """One row of the copy: its position there, and in the input without the column."""

    at: tuple[Expr, Expr]
    source: tuple[Expr, ...]


class InputCopy:
    """Emits the copy of one task, from the channels of one group of an image to ``buffer``."""

    def __init__(self, plan: ConvPlan, load_x: LoadPixel, buffer: Any, image: Expr, group: Expr) -> None:
        shape = plan.shape
        self.plan, self.load_x, self.buffer, self.image, self.group = plan, load_x, buffer, image, group
        self.zero = mk.constant(0, storage_dtype(plan.staged_dtype))
        self.columns = plan.staged_shape[2] // plan.room
        self.jump, self.pad = shape.strides[-1] // staged_step(shape, -1), shape.pads[-1][0]
        self.first = largest(0, smallest(self.columns, ceil_div(self.pad, self.jump)))
        """First column of the copy that lies inside the input, and one past the last."""
        self.last = largest(
            self.first, smallest(self.columns, (shape.spatial[-1] - 1 + self.pad) // self.jump + 1)
        )  # fmt: skip

    def emit(self, outer: Sequence[Expr], first_row: Expr, output_rows: Expr) -> None:
        """Copy what ``output_rows`` rows of results from ``first_row`` on read; ``outer``: their other coordinates."""
        shape, kernel = self.plan.shape, self.plan.shape.kernel
        rows = staged_extent(shape, -2, output_rows)

        def row_of(taps: Sequence[Expr]) -> None:
            sources = [shape.source(dim, outer[dim], tap) for dim, tap in enumerate(taps)]
            flat = flatten(taps, kernel[:-2])
            with mk.serial(0, rows) as row:
                source = first_row * shape.strides[-2] - shape.pads[-2][0]
                source = T.bind(source + row * (shape.strides[-2] // staged_step(shape, -2)))
                self._row(Row((flat, row), (*sources, source)))

        nest(kernel[:-2], row_of)

    def _row(self, row: Row) -> None:
        shape = self.plan.shape
        within = inside(row.source, shape.spatial[:-1], shape.pads[:-1])
        if within is None:
            self._row_inside(row)
            return
        with T.If(within):
            with T.Then():
                self._row_inside(row)
            with T.Else():
                self._clear(row, 0, self.columns)

    def _row_inside(self, row: Row) -> None:
        self._clear(row, 0, self.first)
        if self._is_contiguous:
            self._copy_contiguous(row)
        elif may_be_positive(self.last - self.first):
            self._copy_pixels(row)
        self._clear(row, self.last, self.columns)

    @property
    def _is_contiguous(self) -> bool:
        """Whether copied pixels are contiguous in the source, too."""
        plan, shape = self.plan, self.plan.shape
        each = self.jump == 1 and shape.groups == 1 and shape.in_channels > 1
        return plan.joins_taps and shape.plain and shape.channels_last and each

    def _copy_pixels(self, row: Row) -> None:
        plan, channels = self.plan, self.plan.shape.group_in
        if plan.filled != channels and plan.staged_dtype in HALVES:
            self._clear(row, self.first, self.last)  # zero weights suffice for bytes there, but floats may be NaN
        if plan.shape.channels_last:
            self._copy_channels_last(row)
        elif 1 < channels == plan.room <= MOST_INTERLEAVED:
            self._copy_interleaved(row)
        else:
            self._copy_channels_first(row)

    def _clear(self, row: Row, begin: Size, end: Size) -> None:
        if not may_be_positive(end - begin):
            return
        room, lanes = self.plan.room, self.plan.tile.lanes
        mk.for_each_column((end - begin) * room, lanes, lambda at: self._store(row, begin * room + at, self.zero))

    def _copy_contiguous(self, row: Row) -> None:
        """Copy elements from the first channel of a pixel on."""
        plan = self.plan
        elements = (self.last - self.first) * plan.shape.group_in
        position = (*row.source, self.first - self.pad)

        def copy(at: Expr) -> None:
            value = self.load_x(self.image, position, at)
            self._store(row, self.first * plan.room + at, dots.staged(value, plan.shape.x_dtype, plan.staged_dtype))

        if elements > 0:
            mk.for_each_column(elements, plan.tile.lanes * plan.neighbours, copy)

    def _copy_channels_last(self, row: Row) -> None:
        plan = self.plan
        with mk.serial(self.first, self.last) as column:
            mk.for_each_column(plan.shape.group_in, plan.tile.lanes, lambda channel: self._copy(row, column, channel))

    def _copy_channels_first(self, row: Row) -> None:
        plan = self.plan
        with mk.serial(0, plan.shape.group_in) as channel:
            mk.for_each_column(
                self.last - self.first, plan.tile.lanes, lambda column: self._copy(row, self.first + column, channel)
            )

    def _copy_interleaved(self, row: Row) -> None:
        """Copy few channels of a channels-first image in vectors of all of them."""
        plan, channels, first = self.plan, self.plan.shape.group_in, self.first

        def copy(start: Expr, size: int) -> None:
            begin = T.bind((first + start) * channels)
            interleave(
                channels, size, storage_dtype(plan.staged_dtype),
                lambda channel, lane: self._load(row, first + start + lane, channel),
                lambda at, vector: self._store(row, mk.run_of(begin + at, size), vector),
            )  # fmt: skip

        mk.for_each_run(self.last - first, plan.tile.lanes, copy)

    def _copy(self, row: Row, column: Expr, channel: Expr) -> None:
        self._store(row, column * self.plan.room + channel, self._load(row, column, channel))

    def _load(self, row: Row, column: Expr, channel: Expr) -> Expr:
        plan, position = self.plan, (*row.source, column * self.jump - self.pad)
        value = self.load_x(self.image, position, self.group * plan.shape.group_in + channel)
        return dots.staged(value, plan.shape.x_dtype, plan.staged_dtype)

    def _store(self, row: Row, at: Expr, value: Expr) -> None:
        T.buffer_store(self.buffer, value, [*row.at, at])
