"""Transposed convolution in gather form; ``emit_conv_transpose`` emits the TIR of one task.

Output coordinate ``o`` receives input coordinate ``(o + pad - tap * dilation) / stride`` for every kernel tap where the
division is exact. Output columns of one phase (``o`` modulo the stride) use the same taps and neighbouring inputs, so a
register tile covers a few columns of one phase by one panel of output channels, as in conv.py. Rows and outer
dimensions test the division once per kernel row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import widen
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction import panels
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.panels import Operand
from tilestitch.codegen.cpu.convolution.geometry import LoadPixel, PixelEpilogue, nest
from tilestitch.passes.plan.cpu.conv import ConvTransposePlan
from tilestitch.passes.plan.cpu.tiling import EvenSplit, RegisterTile


def emit_conv_transpose(
    plan: ConvTransposePlan, load_x: LoadPixel, weights: Operand, epilogue: PixelEpilogue, task: Expr, scratch: Expr
) -> None:
    """Emit the body of one task. The ``batch`` argument of ``weights`` is the group.

    ``k`` of the weights is (kernel position, input channel of the group), channel fastest.
    """
    _Emitter(plan, load_x, weights, epilogue, scratch).run(task)


class _Emitter:
    """State shared by the pieces of one kernel."""

    def __init__(
        self, plan: ConvTransposePlan, load_x: LoadPixel, weights: Operand, epilogue: PixelEpilogue, scratch: Expr
    ) -> None:
        self.plan, self.load_x, self.epilogue = plan, load_x, epilogue
        shape, tile = plan.shape, plan.tile
        self.staged = mk.scratch_buffer(scratch, 0, plan.staged_shape, shape.acc_dtype, "staged")
        panel = None
        if not shape.packed:
            panel = panels.workspace(scratch, plan.staged_bytes, shape.reduction, tile.columns, shape.w_dtype)
        self.panels = panels.Panels(weights, shape.reduction, tile, shape.w_dtype, shape.acc_dtype, panel)

    def run(self, task: Expr) -> None:
        plan, shape = self.plan, self.plan.shape
        rest = T.bind(T.cast(task, "int64"))
        n_block, rest = rest % plan.n_blocks, rest // plan.n_blocks
        outer: list[Expr] = []
        for extent in reversed(shape.output[:-1]):
            outer.insert(0, T.bind(rest % extent))
            rest = rest // extent
        self.outer = outer
        self.group = T.bind(rest % shape.groups)
        self.image = T.bind(rest // shape.groups)
        first = T.bind(n_block * plan.schedule.block_panels)
        last = T.bind(T.min(first + plan.schedule.block_panels, plan.panels))
        self._for_each_kernel_row(self._stage_row)
        panels.for_each_panel(shape.group_out, plan.tile.columns, first, last, self._panel)

    def _for_each_kernel_row(self, body: Callable[[Expr, list[Expr]], None]) -> None:
        """Emit ``body(kernel row, input position)`` for the kernel rows that read an input row."""
        shape = self.plan.shape

        def row(taps: list[Expr]) -> None:
            flat: Expr = 0
            position: list[Expr] = []
            meets: Expr | None = None
            for dim, tap in enumerate(taps):
                flat = flat * shape.kernel[dim] + tap
                distance = self.outer[dim] + shape.pads[dim] - tap * shape.dilations[dim]
                at = distance // shape.strides[dim]
                here = T.And(distance % shape.strides[dim] == 0, T.And(at >= 0, at < shape.spatial[dim]))
                meets = here if meets is None else T.And(meets, here)
                position.append(at)
            if meets is None:
                body(0, [])
                return
            with T.If(meets), T.Then():
                body(flat, position)

        nest(shape.kernel[:-1], row)

    def _stage_row(self, flat: Expr, position: list[Expr]) -> None:
        plan, shape = self.plan, self.plan.shape
        channels, width = shape.group_in, shape.spatial[-1]
        total = plan.staged_shape[1]
        begin = -plan.first_column * channels
        end = begin + width * channels
        zero = mk.constant(0, shape.acc_dtype)
        lanes = plan.tile.lanes

        def copy(column: Expr, channel: Expr) -> None:
            value = self.load_x(self.image, (*position, column), self.group * channels + channel)
            value = widen(value, shape.x_dtype, shape.acc_dtype)
            T.buffer_store(self.staged, value, [flat, begin + column * channels + channel])

        mk.for_each_column(begin, lanes, lambda at: T.buffer_store(self.staged, zero, [flat, at]))
        if shape.channels_last:
            with mk.serial(0, width) as column:
                mk.for_each_column(channels, lanes, lambda channel: copy(column, channel))
        else:
            with mk.serial(0, channels) as channel:
                mk.for_each_column(width, lanes, lambda column: copy(column, channel))
        mk.for_each_column(total - end, lanes, lambda at: T.buffer_store(self.staged, zero, [flat, end + at]))

    def _panel(self, panel: Expr, width: int) -> None:
        plan = self.plan
        self.panels.prepare(self.group, panel, width)
        with mk.serial(0, plan.shape.strides[-1]) as phase:
            if isinstance(plan.columns, EvenSplit):
                mk.for_each_part(
                    plan.columns, 0, plan.columns.parts,
                    lambda part, rows: self._tile(panel, width, phase, mk.start_of(plan.columns, part), rows),
                )  # fmt: skip
                return
            with mk.serial(0, plan.column_tiles) as index:
                self._tile(panel, width, phase, T.bind(index * plan.tile.rows), plan.tile.rows)

    def _tile(self, panel: Expr, width: int, phase: Expr, first: Expr, rows: int) -> None:
        """Emit columns ``phase + stride * (first + row)``, row by row of a tile; the last tile may extend past the
        output.
        """
        plan, shape = self.plan, self.plan.shape
        tile = RegisterTile(rows, -(-width // plan.tile.lanes), plan.tile.lanes)
        stride, channels = shape.strides[-1], shape.group_in
        acc = mk.allocate(tile, shape.acc_dtype)
        mk.fill(acc, tile, mk.constant(0, shape.acc_dtype))

        def kernel_row(flat: Expr, position: list[Expr]) -> None:
            with mk.serial(0, shape.kernel[-1]) as tap:
                distance = T.bind(phase + shape.pads[-1] - tap * shape.dilations[-1])
                with T.If(distance % stride == 0), T.Then():
                    column = T.bind(first + distance // stride - plan.first_column)
                    start = T.bind((flat * shape.kernel[-1] + tap) * channels)
                    with mk.serial(0, channels) as channel:
                        mk.multiply_add(
                            acc,
                            tile,
                            lambda row: self.staged[flat, (column + row) * channels + channel],
                            lambda lane: self.panels.at(self.group, panel, start + channel, lane),
                        )

        if channels:
            self._for_each_kernel_row(kernel_row)
        self._finish(acc, tile, width, panel, [phase + (first + row) * stride for row in range(tile.rows)])

    def _finish(self, acc: Any, tile: RegisterTile, width: int, panel: Expr, columns: list[Expr]) -> None:
        """Store the rows of a tile whose output column exists."""
        shape = self.plan.shape
        first = self.group * shape.group_out + panel * self.plan.tile.columns
        for row, column in enumerate(columns):
            with T.If(column < shape.output[-1]), T.Then():
                self._finish_row(acc, row, width, column, first)

    def _finish_row(self, acc: Any, row: int, width: int, column: Expr, first: Expr) -> None:
        position = (*self.outer, column)
        mk.finish_row(
            acc, row, width, self.plan.tile.lanes,
            lambda at, value: self.epilogue(self.image, position, first + at, value),
        )  # fmt: skip
