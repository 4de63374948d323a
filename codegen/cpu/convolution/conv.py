"""Convolution as an implicit GEMM over output pixels; ``emit_conv`` emits the TIR of one task.

A register tile covers a few neighbouring output pixels by one panel of output channels. The inner loop never has a
condition. Padding is handled in one of two ways. With many channels, taps outside are skipped (taps.py): rows by the
loop's bounds, while tiles at the left and right border have code of their own. Otherwise, or where the input needs a
conversion or a prologue, the task first copies the rows that it needs into its workspace with the border filled in
(input_copy.py); kernel column and channel then are one loop.
Depthwise convolution is in window.py, transposed convolution in conv_transpose.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import named, storage_dtype, widen
from tilestitch.codegen.cpu.contraction import dots, panels
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.panels import Operand
from tilestitch.codegen.cpu.contraction.transpose import transposed
from tilestitch.codegen.cpu.convolution.geometry import LoadPixel, PixelEpilogue, Site, flatten, nest, tap_range
from tilestitch.codegen.cpu.convolution.input_copy import InputCopy
from tilestitch.codegen.cpu.convolution.taps import Step, TapsInside, emit_columns_inside
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.cpu.conv import ConvPlan, staged_step
from tilestitch.passes.plan.cpu.images import column_runs
from tilestitch.passes.plan.cpu.tiling import EvenSplit, RegisterTile


def emit_conv(
    plan: ConvPlan, load_x: LoadPixel, weights: Operand, epilogue: PixelEpilogue, task: Expr, scratch: Expr,
    emitter: type[ConvEmitter] | None = None, begin: Callable[[Expr], Expr] | None = None,
) -> None:  # fmt: skip
    """Emit the body of one task. The ``batch`` argument of ``weights`` is the group.

    ``k`` of the weights is (kernel position, channel of the group), channel fastest. Sums start from ``begin`` of an
    output channel, or from 0.
    """
    with dots.imported(plan.dot):
        (emitter or ConvEmitter)(plan, load_x, weights, epilogue, scratch, begin).run(task)


class ConvEmitter:
    """State shared by the pieces of one kernel: the plan, the callbacks and the workspace buffers."""

    def __init__(
        self, plan: ConvPlan, load_x: LoadPixel, weights: Operand, epilogue: PixelEpilogue, scratch: Expr,
        begin: Callable[[Expr], Expr] | None = None,
    ) -> None:  # fmt: skip
        self.begin = begin
        self.plan, self.schedule, self.epilogue, self.scratch = plan, plan.schedule, epilogue, scratch
        self.load_x: LoadPixel = lambda image, position, channel: load_x(image, position[-plan.spatial_rank :], channel)
        shape, tile = plan.shape, plan.tile
        self.open_columns = isinstance(plan.x, EvenSplit)
        if self.schedule.stage:
            stored = storage_dtype(plan.staged_dtype)
            self.staged = mk.scratch_buffer(scratch, 0, plan.staged_shape, stored, "staged")
            if is_open(shape.output[-1]) or plan.multiplies_tiles:
                self.line = T.decl_buffer((math.prod(plan.staged_shape),), stored, data=self.staged.data)
        panel = None
        if plan.panel_bytes:
            panel = panels.workspace(scratch, plan.staged_bytes, shape.reduction, tile.columns, shape.w_dtype)
        self.panels = panels.Panels(
            weights, plan.steps, tile, shape.w_dtype, shape.acc_dtype, panel, plan.neighbours
        )  # fmt: skip
        if self.schedule.spill:
            offset = plan.staged_bytes + plan.panel_bytes
            self.sums = mk.scratch_buffer(scratch, offset, plan.sums_shape, shape.acc_dtype, "sums")

    def run(self, task: Expr) -> None:
        plan, shape = self.plan, self.plan.shape
        rest = T.bind(T.cast(task, "int64"))
        y_block, rest = rest % plan.y_blocks, rest // plan.y_blocks
        n_block, rest = rest % plan.n_blocks, rest // plan.n_blocks
        outer: list[Expr] = []
        for extent in reversed(plan.outer):
            outer.insert(0, T.bind(rest % extent))
            rest = rest // extent
        self.outer = tuple(outer)
        self.group = T.bind(rest % shape.groups)
        self.image = T.bind(rest // shape.groups)
        self.first_tile = T.bind(y_block * self.schedule.block_tiles)
        self.last_tile = T.bind(T.min(self.first_tile + self.schedule.block_tiles, plan.y.parts))
        self.first_row = T.bind(mk.start_of(plan.y, self.first_tile))
        first_panel = T.bind(n_block * self.schedule.block_panels)
        last_panel = T.bind(T.min(first_panel + self.schedule.block_panels, plan.panels))
        if self.schedule.stage:
            rows = mk.start_of(plan.y, self.last_tile) - self.first_row
            copy = InputCopy(plan, self.load_x, self.staged, self.image, self.group)
            copy.emit(self.outer, self.first_row, rows)
        self._compute(first_panel, last_panel)

    def _compute(self, first_panel: Expr, last_panel: Expr) -> None:
        if self.schedule.rows_outer:
            self._for_each_tile(
                lambda site: self._for_each_panel(
                    first_panel, last_panel, lambda panel, width: self._tile(panel, width, site)
                )
            )
            return
        self._for_each_panel(first_panel, last_panel, self._panel)

    def _for_each_panel(self, first: Expr, last: Expr, body: Callable[[Expr, int], None]) -> None:
        panels.for_each_panel(self.plan.shape.group_out, self.plan.tile.columns, first, last, body)

    def _for_each_tile(self, body: Callable[[Site], None]) -> None:
        """Emit ``body`` for every register tile of the block, once per kind of tile."""
        y_split = self.plan.y
        if self.plan.skips and y_split.largest > 1:
            row = 0
            for part, size in enumerate(y_split.all_sizes()):
                here = T.And(self.first_tile <= part, self.last_tile > part)
                with T.If(here), T.Then():
                    self._for_each_column_tile(part, row, size, body)
                row += size
            return
        mk.for_each_part(
            y_split,
            self.first_tile,
            self.last_tile,
            lambda y, rows: self._for_each_column_tile(y, T.bind(mk.start_of(y_split, y)), rows, body),
        )

    def _for_each_column_tile(self, y: Expr, y0: Expr, rows: int, body: Callable[[Site], None]) -> None:
        first = (mk.number_of(y) - self.first_tile) * self.plan.x.parts
        if not self.plan.skips or self.open_columns:
            mk.for_each_part(
                self.plan.x,
                0,
                self.plan.x.parts,
                lambda x, columns: body(
                    Site(y0, rows, T.bind(mk.start_of(self.plan.x, x)), columns, False, first + mk.number_of(x))
                ),
            )
            return
        done = 0
        for run in column_runs(self.plan.shape, self.plan.x):
            if run.border:
                body(Site(y0, rows, run.start, run.size, True, first + done))
            else:
                with mk.serial(0, run.count) as index:
                    x0 = T.bind(run.start + index * run.size)
                    body(Site(y0, rows, x0, run.size, False, first + done + index))
            done += run.count

    def _panel(self, panel: Expr, width: int) -> None:
        self.panels.prepare(self.group, panel, width)
        self._for_each_tile(lambda site: self._tile(panel, width, site))

    def _left(self, site: Site) -> Callable[[Expr, list[Expr], Expr], Expr]:
        """Return ``left(pixel of the tile, kernel taps, channel)``; the channel may be a ramp."""
        shape, kernel, dot = self.plan.shape, self.plan.shape.kernel, self.plan.dot
        room = self.plan.room
        if not self.schedule.stage:

            def direct(pixel: Expr, taps: list[Expr], channel: Expr) -> Expr:
                output = (*self.outer, site.y0 + pixel // site.columns, site.x0 + pixel % site.columns)
                where = tuple(shape.source(dim, output[dim], tap) for dim, tap in enumerate(taps))
                first = self.group * shape.group_in
                if dot is not None:
                    return dots.group_of(dot, channel, lambda at: self.load_x(self.image, where, first + at))
                value = self.load_x(self.image, where, first + channel)
                return widen(value, shape.x_dtype, shape.acc_dtype)

            return direct
        step_y, step_x = staged_step(shape, -2), staged_step(shape, -1)

        def staged(pixel: Expr, taps: list[Expr], channel: Expr) -> Expr:
            flat = flatten(taps[:-2], kernel[:-2])
            row = (site.y0 - self.first_row + pixel // site.columns) * step_y + taps[-2] * shape.dilations[-2]
            column = (site.x0 + pixel % site.columns) * step_x + taps[-1] * shape.dilations[-1]
            return self.staged[flat, row, column * room + channel]

        return staged

    def _staged_run(self, site: Site, taps: list[Expr], channel: Expr) -> Callable[[Expr, Expr], Expr]:
        """Return the elements of the copied input by row and column of a tile, with a constant stride between
        columns.
        """
        shape, (_, height, length) = self.plan.shape, self.plan.staged_shape
        step_y, step_x, room = staged_step(shape, -2), staged_step(shape, -1), self.plan.room
        row = (site.y0 - self.first_row) * step_y + taps[-2] * shape.dilations[-2]
        column = site.x0 * step_x + taps[-1] * shape.dilations[-1]
        lines = flatten(taps[:-2], shape.kernel[:-2]) * height + row
        first = T.bind(mk.as_index(lines * length + column * room + channel))
        return lambda y, x: self.line[first + (y * step_y * length + x * (step_x * room))]

    def _tile(self, panel: Expr, width: int, site: Site) -> None:
        plan, shape = self.plan, self.plan.shape
        tile = RegisterTile(site.pixels, -(-width // plan.tile.lanes), plan.tile.lanes)
        acc = mk.allocate(tile, shape.acc_dtype)
        self._begin(acc, tile, panel, width)
        left = self._left(site)
        prefetches = self.schedule.prefetch_next
        tiles = min(self.schedule.block_tiles, plan.y.parts) * plan.x.parts if prefetches else 0

        def step(taps: list[Expr], k: Expr, channel: Expr, pixels: list[int] | None = None) -> None:
            if prefetches:
                self.panels.prefetch_next(self.group, panel, site.index, self.panels.piece_of(tiles), k)
            if plan.dot is not None:
                group = T.ramp(channel * plan.dot.group, T.int64(1), plan.dot.group)
                dots.dot_add(
                    acc, tile, plan.dot, lambda pixel: left(pixel, taps, group),
                    lambda column: self.panels.neighbours_at(self.group, panel, k, column, tile.lanes), pixels,
                )  # fmt: skip
                return
            at = self._staged_run(site, taps, channel) if is_open(shape.output[-1]) and self.schedule.stage else None
            mk.multiply_add(
                acc,
                tile,
                lambda pixel: left(pixel, taps, channel) if at is None else at(0, pixel),
                lambda column: self.panels.at(self.group, panel, k, column),
                pixels,
            )

        if shape.group_in and plan.skips:
            TapsInside(plan, self.outer, site, step).emit()
        elif shape.group_in:
            self._reduce(site, step)
        self._finish(acc, tile, panel, width, site)

    def _begin(self, acc: Any, tile: RegisterTile, panel: Expr, width: int) -> None:
        if self.begin is None or width % tile.lanes:
            mk.fill(acc, tile, mk.constant(0, self.plan.shape.acc_dtype))
        if self.begin is None:
            return
        begin, first = self.begin, self._first_channel(panel)
        with mk.unroll(0, tile.rows) as row:
            for start, size in mk.chunks(width, tile.lanes):
                mk.vector(
                    size,
                    lambda lane, start=start: T.buffer_store(  # type: ignore[misc]
                        acc, begin(first + (start + lane)), [row, start + lane]
                    ),
                )

    def _first_channel(self, panel: Expr) -> Expr:
        return self.group * self.plan.shape.group_out + panel * self.plan.tile.columns

    def _leaves_columns_out(self, site: Site) -> bool:
        """Return whether border columns are skipped in this tile: only in full tiles of a wide image, or of a narrow
        one, as each size of tile doubles the code.
        """
        return self.plan.leaves_columns_out and site.columns >= self.plan.x.largest // 2 and site.columns > 1

    def _reduce(self, site: Site, step: Step) -> None:
        """Emit loops over kernel taps and channels, several of these multiplied at once; the last tap and the channel
        are one loop where pixels are contiguous.
        """
        shape, kernel = self.plan.shape, self.plan.shape.kernel
        merged = self.plan.merges_taps
        looped = kernel[:-1] if merged else kernel
        channels = self.plan.channel_steps // self.plan.at_once
        run = self.plan.row_steps // self.plan.at_once if merged else channels

        def body(taps: list[Expr]) -> None:
            first = T.bind(flatten(taps, looped) * run) if taps else 0
            if merged and self._leaves_columns_out(site):
                emit_columns_inside(shape, site, channels, lambda at, pixels: step([*taps, 0], first + at, at, pixels))
                return
            with mk.serial(0, run) as at:
                step([*taps, 0] if merged else taps, first + at, at, None)

        if not self.plan.leaves_rows_out:
            nest(looped, body)
            return
        outer, rows, columns = len(kernel) - 2, tap_range(shape, len(kernel) - 2, site.y0), looped[len(kernel) - 1 :]

        def row(taps: list[Expr]) -> None:
            with mk.serial(*rows) as tap:
                nest(columns, lambda last: body([*taps, tap, *last]))

        nest(kernel[:outer], row)

    def _finish(self, acc: Any, tile: RegisterTile, panel: Expr, width: int, site: Site) -> None:
        store = self._stored(panel, site)
        if not self.schedule.spill:
            mk.finish(acc, tile.rows, width, tile.lanes, store)
            return
        if self.plan.transposes_sums:
            self._finish_transposed(acc, tile, panel, width, site)
            return
        mk.for_each_vector(tile, lambda row, column: T.buffer_store(self.sums, acc[row, column], [row, column]))
        with mk.serial(0, tile.rows) as pixel:
            mk.for_each_column(width, tile.lanes, lambda column: store(pixel, column, self.sums[pixel, column]))

    def _finish_transposed(self, acc: Any, tile: RegisterTile, panel: Expr, width: int, site: Site) -> None:
        """Emit the epilogue in vectors of adjacent pixels of a channel, from sums transposed in registers."""
        lanes, first_channel = tile.lanes, self._first_channel(panel)
        for first in range(0, tile.rows, lanes):
            rows = [min(first + lane, tile.rows - 1) for lane in range(lanes)]
            for start in range(0, tile.vectors * lanes, lanes):
                columns = T.ramp(T.int64(start), T.int64(1), lanes)
                for i, vector in enumerate(transposed([named(acc[row, columns]) for row in rows])):
                    T.buffer_store(self.sums, vector, [start + i, T.ramp(T.int64(first), T.int64(1), lanes)])
        with mk.serial(0, width) as column:
            for row in range(site.rows):
                for start, size in mk.chunks(site.columns, lanes):
                    mk.vector(
                        size,
                        lambda lane, row=row, start=start: self.epilogue(  # type: ignore[misc]
                            self.image,
                            (*self.outer, site.y0 + row, site.x0 + (start + lane))[-self.plan.spatial_rank :],
                            first_channel + column,
                            self.sums[column, row * site.columns + start + lane],
                        ),
                    )

    def _stored(self, panel: Expr, site: Site) -> Callable[[Expr, Expr, Expr], None]:
        """Return ``store(pixel of a tile, column of a panel, value)``."""
        plan, first = self.plan, self._first_channel(panel)

        def store(pixel: Expr, column: Expr, value: Expr) -> None:
            position = (*self.outer, site.y0 + pixel // site.columns, site.x0 + pixel % site.columns)
            self.epilogue(self.image, position[-plan.spatial_rank :], first + column, value)

        return store
