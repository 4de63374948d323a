"""Windows over each channel separately: pooling and depthwise convolution.

``emit_window`` reduces the elements of every window into one value with the caller's ``combine``. Channels-last input
is vectorised over channels, a few output columns at a time; channels-first input over columns. Positions outside the
input are skipped, so that maxima, sums and products need no padding value. Columns near the border are known at code
generation, rows are clamped by the loop's bounds: the interior has no conditions. Pooling of channels-first input
proceeds line by line (`pooling`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.convolution.geometry import LoadPixel, PixelEpilogue, flatten, may_be_positive, tap_range
from tilestitch.codegen.cpu.convolution.pooling import fill_line, line_buffers, pool_line, spread_phases
from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.passes.plan.cpu.images import ColumnRun, column_runs
from tilestitch.passes.plan.cpu.tiling import RegisterTile, split_at_most
from tilestitch.passes.plan.cpu.window import Line, WindowPlan

MOST_WRITTEN_TAPS = 12
"""Most taps of a kernel row that are unrolled, in vectors over columns."""

Combine = Callable[[Expr, Expr, Expr, Expr], Expr]
"""``combine(value so far, element, tap, output channel)``; ``tap`` counts kernel positions, last dimension fastest."""


def emit_window(
    plan: WindowPlan,
    load_x: LoadPixel,
    initial: Expr,
    combine: Combine,
    epilogue: PixelEpilogue,
    task: Expr,
    scratch: Expr = None,
) -> None:
    """Emit the body of one task.

    ``load_x(image, position, input channel)`` gives elements already in ``shape.acc_dtype``; the window starts from
    ``initial``. ``scratch`` is the workspace handle, if the plan needs one.
    """
    _Emitter(plan, load_x, initial, combine, epilogue, scratch).run(task)


class _Emitter:
    """State shared by the pieces of one kernel."""

    def __init__(
        self, plan: WindowPlan, load_x: LoadPixel, initial: Expr, combine: Combine, epilogue: PixelEpilogue,
        scratch: Expr,
    ) -> None:  # fmt: skip
        self.plan, self.initial, self.combine, self.scratch = plan, initial, combine, scratch
        self.schedule = plan.schedule
        multiplier = plan.shape.group_out

        def load(image: Expr, position: Sequence[Expr], channel: Expr) -> Expr:
            where = tuple(position)[-plan.spatial_rank :]
            return load_x(image, where, channel if multiplier == 1 else channel // multiplier)

        def store(image: Expr, position: Sequence[Expr], channel: Expr, value: Expr) -> None:
            epilogue(image, tuple(position)[-plan.spatial_rank :], channel, value)

        self.load, self.store = load, store

    def run(self, task: Expr) -> None:
        plan, shape = self.plan, self.plan.shape
        rest = T.bind(T.cast(task, "int64"))
        channel_block, rest = rest % plan.channel_blocks, rest // plan.channel_blocks
        row_block, rest = rest % plan.row_blocks, rest // plan.row_blocks
        outer: list[Expr] = []
        for extent in reversed(plan.outer):
            outer.insert(0, T.bind(rest % extent))
            rest = rest // extent
        self.outer = outer
        self.image = T.bind(rest)
        first_row = T.bind(row_block * self.schedule.block_rows)
        last_row = T.min(first_row + self.schedule.block_rows, shape.output[-2])
        self.first_channel = T.bind(channel_block * self.schedule.block_channels)
        self.last_channel = T.bind(T.min(self.first_channel + self.schedule.block_channels, shape.out_channels))
        if plan.line is not None:
            self._lines(plan.line, first_row, last_row)
            return
        with mk.serial(first_row, last_row) as row:
            if self.schedule.form == "columns":
                self._row_unrolled(row)
            elif self.schedule.form == "across":
                self._row_across(row)
            else:
                self._row_in_loops(row)

    def _for_each_channels(self, body: Callable[[Expr, RegisterTile], None]) -> None:
        """Emit ``body(first channel, registers)`` over the block's channels; the registers' ``rows`` are columns."""
        channels = self.plan.shape.out_channels
        step = self.schedule.vectors * self.schedule.lanes
        whole = channels // step * step
        tile = RegisterTile(self.schedule.columns, self.schedule.vectors, self.schedule.lanes)
        if whole:
            count = (T.min(self.last_channel, whole) - self.first_channel) // step
            with mk.serial(0, count) as index:
                body(self.first_channel + index * step, tile)
        if whole == channels:
            return
        with T.If(self.last_channel > whole), T.Then():
            for start, size in mk.chunks(channels - whole, self.schedule.lanes):
                body(whole + start, RegisterTile(self.schedule.columns, 1, size))

    def _row_unrolled(self, row: Expr) -> None:
        if is_open(self.plan.shape.output[-1]):
            self._open_row_unrolled(row)
            return
        for run in column_runs(self.plan.shape, split_at_most(self.plan.shape.output[-1], self.schedule.columns)):
            if run.border:
                self._column_run(row, run.start, run)
                continue
            with mk.serial(0, run.count) as index:
                self._column_run(row, T.bind(run.start + index * run.size), run)

    def _open_row_unrolled(self, row: Expr) -> None:
        """Emit windows at a border in loops, and those in between, which are split evenly, unrolled for each size."""
        between = self.plan.between
        first = T.bind(mk.as_index(self.plan.interior[0]))
        last = T.bind(first + between.extent)

        def written_out(part: Expr, size: int) -> None:
            start = T.bind(first + mk.start_of(between, part))
            self._for_each_channels(lambda channel, tile: self._columns(row, start, size, channel, tile, False))

        self._loop_of_windows(row, 0, first)
        mk.for_each_part(between, 0, between.parts, written_out)
        self._loop_of_windows(row, last, self.plan.shape.output[-1])

    def _row_in_loops(self, row: Expr) -> None:
        """Emit as many windows at a time as registers hold; the remainder of an open number one at a time."""
        output, columns = self.plan.shape.output[-1], self.schedule.columns
        split = split_at_most(output, columns)
        if columns == 1 or not is_open(output):
            mk.for_each_part(
                split, 0, split.parts, lambda part, size: self._windows(row, mk.start_of(split, part), size)
            )
            return
        whole = T.bind(mk.as_index(output // columns))
        with mk.serial(0, whole) as part:
            self._windows(row, T.bind(part * columns), columns)
        self._loop_of_windows(row, T.bind(whole * columns), output)

    def _loop_of_windows(self, row: Expr, first: Expr, last: Expr) -> None:
        with mk.serial(first, last) as column:
            self._windows(row, column, 1)

    def _windows(self, row: Expr, start: Expr, size: int) -> None:
        self._for_each_channels(lambda channel, tile: self._in_loops(row, start, size, channel, tile))

    def _column_run(self, row: Expr, start: Expr, run: ColumnRun) -> None:
        self._for_each_channels(lambda channel, tile: self._columns(row, start, run.size, channel, tile, run.border))

    def _for_each_kernel_row(self, row: Expr, body: Callable[[list[Expr], Expr], None]) -> None:
        """Emit ``body(input position up to the row, first tap of the row)`` for kernel rows inside the input."""
        shape = self.plan.shape
        bounds = [tap_range(shape, dim, at) for dim, at in enumerate([*self.outer, row])]

        def level(taps: list[Expr]) -> None:
            dim = len(taps)
            if dim < len(bounds):
                with mk.serial(*bounds[dim]) as tap:
                    level([*taps, tap])
                return
            flat = flatten(taps, shape.kernel[:-1])
            output = [*self.outer, row]
            position = [shape.source(at, output[at], tap) for at, tap in enumerate(taps)]
            body(position, flat * shape.kernel[-1])

        level([])

    def _accumulate(
        self, acc: Any, tile: RegisterTile, index: int, where: Sequence[Expr], tap: Expr, channel: Expr
    ) -> None:
        for vector in range(tile.vectors):

            def step(lane: Expr, first: int = vector * tile.lanes) -> None:
                here = channel + first + lane
                element = self.load(self.image, where, here)
                value = self.combine(acc[index, first + lane], element, tap, here)
                T.buffer_store(acc, value, [index, first + lane])

            mk.vector(tile.lanes, step)

    def _columns(self, row: Expr, start: Expr, size: int, channel: Expr, tile: RegisterTile, border: bool) -> None:
        """Emit ``size`` output columns from ``start``; at the border ``start`` is an int and taps outside are
        skipped.
        """
        shape = self.plan.shape
        tile = RegisterTile(size, tile.vectors, tile.lanes)
        acc = self._start(tile)

        def kernel_row(position: list[Expr], first_tap: Expr) -> None:
            for tap in range(shape.kernel[-1]):
                for index in range(size):
                    column = shape.source(-1, start + index, tap)
                    if border and not 0 <= column < shape.spatial[-1]:
                        continue
                    self._accumulate(acc, tile, index, [*position, column], first_tap + tap, channel)

        self._for_each_kernel_row(row, kernel_row)
        self._finish(acc, tile, row, start, channel)

    def _in_loops(self, row: Expr, start: Expr, size: int, channel: Expr, tile: RegisterTile) -> None:
        """Emit ``size`` output columns from ``start``, with loops over all kernel taps."""
        shape = self.plan.shape
        tile = RegisterTile(size, tile.vectors, tile.lanes)
        ranges = [tap_range(shape, shape.rank - 1, start + index) for index in range(size)]
        acc = self._start(tile)

        def kernel_row(position: list[Expr], first_tap: Expr) -> None:
            def accumulate(index: int, tap: Expr) -> None:
                where = [*position, shape.source(-1, start + index, tap)]
                self._accumulate(acc, tile, index, where, first_tap + tap, channel)

            _for_each_tap(ranges, accumulate)

        self._for_each_kernel_row(row, kernel_row)
        self._finish(acc, tile, row, start, channel)

    def _row_across(self, row: Expr) -> None:
        """Emit one output row of every channel in vectors over columns; the last vector is moved back so that it
        fits.
        """
        (first, last), lanes = self.plan.interior, self.schedule.lanes
        with mk.serial(self.first_channel, self.last_channel) as channel:

            def alone(begin: Size, end: Size) -> None:
                if may_be_positive(end - begin):
                    with mk.serial(begin, end) as column:
                        self._in_loops(row, column, 1, channel, RegisterTile(1, 1, 1))

            def across() -> None:
                with mk.serial(0, -(-(last - first) // lanes)) as index:
                    start = T.bind(T.min(first + index * lanes, last - lanes))
                    self._window_across(row, start, channel)

            alone(0, first)
            alone(last, self.plan.shape.output[-1])
            if not is_open(last - first):
                across() if last - first >= lanes else alone(first, last)
                return
            with T.If(mk.as_index(last - first) >= lanes):
                with T.Then():
                    across()
                with T.Else():
                    alone(first, last)

    def _window_across(self, row: Expr, start: Expr, channel: Expr) -> None:
        """Emit one vector of output columns from ``start``, whose windows lie inside the columns of the input."""
        shape, lanes = self.plan.shape, self.schedule.lanes
        acc = self._start(RegisterTile(1, 1, lanes))

        def accumulate(position: list[Expr], tap: Expr, number: Expr) -> None:
            def step(lane: Expr) -> None:
                element = self.load(self.image, [*position, shape.source(-1, start + lane, tap)], channel)
                T.buffer_store(acc, self.combine(acc[0, lane], element, number, channel), [0, lane])

            mk.vector(lanes, step)

        def kernel_row(position: list[Expr], first_tap: Expr) -> None:
            if shape.kernel[-1] <= MOST_WRITTEN_TAPS:
                for tap in range(shape.kernel[-1]):
                    accumulate(position, tap, first_tap + tap)
                return
            with mk.serial(0, shape.kernel[-1]) as tap:
                accumulate(position, tap, first_tap + tap)

        self._for_each_kernel_row(row, kernel_row)
        mk.vector(lanes, lambda lane: self.store(self.image, [*self.outer, row, start + lane], channel, acc[0, lane]))

    def _lines(self, line: Line, first_row: Expr, last_row: Expr) -> None:
        """Emit rows and channels one at a time: the windows' rows into a line, then columns of the line."""
        shape = self.plan.shape
        buffers = line_buffers(line, self.scratch, shape.acc_dtype)
        fill_line(line, buffers, self.initial)
        with mk.serial(self.first_channel, self.last_channel) as channel, mk.serial(first_row, last_row) as row:

            def column(at: Expr, size: int) -> None:
                acc = mk.allocate(RegisterTile(1, 1, size), shape.acc_dtype)
                mk.vector(size, lambda lane: T.buffer_store(acc, self.initial, [0, lane]))

                def kernel_row(position: list[Expr], first_tap: Expr) -> None:
                    def step(lane: Expr) -> None:
                        element = self.load(self.image, [*position, at + lane], channel)
                        T.buffer_store(acc, self.combine(acc[0, lane], element, first_tap, channel), [0, lane])

                    mk.vector(size, step)

                self._for_each_kernel_row(row, kernel_row)
                mk.vector(size, lambda lane: T.buffer_store(buffers[0], acc[0, lane], [line.before + at + lane]))

            mk.for_each_run(shape.spatial[-1], self.schedule.lanes, column)
            spread_phases(line, buffers)
            pool_line(
                line, buffers,
                lambda total, element: self.combine(total, element, 0, channel),
                lambda at, value: self.store(self.image, [*self.outer, row, at], channel, value),
            )  # fmt: skip

    def _start(self, tile: RegisterTile) -> Any:
        acc = mk.allocate(tile, self.plan.shape.acc_dtype)
        with mk.unroll(0, tile.rows) as index, mk.unroll(0, tile.vectors) as vector:
            mk.vector(tile.lanes, lambda lane: T.buffer_store(acc, self.initial, [index, vector * tile.lanes + lane]))
        return acc

    def _finish(self, acc: Any, tile: RegisterTile, row: Expr, start: Expr, channel: Expr) -> None:
        with mk.unroll(0, tile.rows) as index, mk.unroll(0, tile.vectors) as vector:
            first = vector * tile.lanes

            def store(lane: Expr) -> None:
                position = [*self.outer, row, start + index]
                self.store(self.image, position, channel + first + lane, acc[index, first + lane])

            mk.vector(tile.lanes, store)


def _for_each_tap(ranges: Sequence[tuple[Expr, Expr]], body: Callable[[int, Expr], None]) -> None:
    """Emit ``body(window, tap)`` for the taps of neighbouring windows, for each window in order.

    Taps that all windows have, which are most, are in one loop, others in loops of one window.
    """
    if len(ranges) == 1:
        with mk.serial(*ranges[0]) as tap:
            body(0, tap)
        return
    first, last = T.bind(ranges[0][0]), T.bind(ranges[-1][1])

    def alone(bounds: Callable[[Expr, Expr], tuple[Expr, Expr]]) -> None:
        for index, window in enumerate(ranges):
            with mk.serial(*bounds(*window)) as tap:
                body(index, tap)

    with T.If(ranges[-1][0] < first), T.Then():
        alone(lambda begin, end: (begin, T.min(first, end)))
    with mk.serial(first, last) as tap:
        for index in range(len(ranges)):
            body(index, tap)
    with T.If(last < ranges[0][1]), T.Then():
        alone(lambda begin, end: (T.max(begin, T.max(first, last)), end))
