"""Convolutions by Winograd's F(2x2, 3x3): transforms around 16 GEMMs (compare `passes.plan.cpu.winograd`).

The transforms are those of Lavin and Gray (2016), section 4.1: with B', G and A' for pixels d and a filter g,
the result is A' [(G g G') * (B' d B)] A.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import named
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.convolution.conv import ConvEmitter
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.cpu.tiling import RegisterTile
from tilestitch.passes.plan.cpu.winograd import GEMMS, OUTPUTS, PIXELS, WinogradPlan

_FILTERS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
"""G."""


def transformed_filters(filters: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return filters [groups, 9, channels in, channels out] as the right operands of the GEMMs: [groups, 16 * channels
    in, channels out]. Transformed in float64, and rounded once; above 1.5e38 they may overflow.
    """
    groups, taps, channels, out = filters.shape
    wide = filters.reshape(groups, taps, channels * out).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        both = (np.kron(_FILTERS, _FILTERS) @ wide).astype(filters.dtype)
    return both.reshape(groups, GEMMS * channels, out)


class WinogradEmitter(ConvEmitter):
    """One task: pixels are copied and transformed, then multiplied and transformed back panel by panel."""

    plan: WinogradPlan

    def _compute(self, first_panel: Expr, last_panel: Expr) -> None:
        plan, dtype = self.plan, self.plan.shape.acc_dtype
        transformed, multiplied, results, _ = plan.offsets
        self.pixels = mk.scratch_buffer(self.scratch, transformed, (GEMMS * plan.transformed,), dtype, "pixels")
        self.products = mk.scratch_buffer(self.scratch, multiplied, (GEMMS * plan.multiplied,), dtype, "products")
        self.results = mk.scratch_buffer(
            self.scratch, results, (OUTPUTS * OUTPUTS * plan.tile.columns,), dtype, "results"
        )
        rows = T.bind(mk.as_index(self.last_tile - self.first_tile))
        tiles = T.bind(rows * plan.x.parts)
        parts = T.bind((tiles + (plan.tile.rows - 1)) // plan.tile.rows)
        self._for_each_tile_of_rows(tiles, self._transform_pixels)

        def panel(number: Expr, width: int) -> None:
            with mk.serial(0, GEMMS) as gemm, mk.serial(0, parts) as part:
                self._multiply(number, width, gemm, part)
            self._for_each_tile_of_rows(tiles, lambda *tile: self._transform_back(number, width, *tile))

        self._for_each_panel(first_panel, last_panel, panel)

    def _for_each_tile_of_rows(self, tiles: Expr, body: Callable[[Expr, Expr, Expr], None]) -> None:
        """Emit ``body(tile, row, column)`` for the tiles of the task, in one loop (see ``_finish_tile``)."""
        with mk.serial(0, tiles) as tile:
            length = mk.as_index(self.plan.x.parts)
            body(tile, T.bind(tile // length), T.bind(tile % length))

    def _transform_pixels(self, tile: Expr, y: Expr, x: Expr) -> None:
        plan, channels, room = self.plan, self.plan.shape.group_in, self.plan.room
        first = T.bind(tile * plan.pitch)

        def transform(channel: Expr, lanes: int) -> None:
            at = [
                [
                    named(self.staged[0, y * OUTPUTS + i, mk.run_of((x * OUTPUTS + j) * room + channel, lanes)])
                    for j in range(PIXELS)
                ]
                for i in range(PIXELS)
            ]
            by_rows = [_pixels(column) for column in zip(*at, strict=True)]
            for i, row in enumerate(zip(*by_rows, strict=True)):
                for j, value in enumerate(_pixels(row)):
                    where = (i * PIXELS + j) * plan.transformed + (first + channel)
                    T.buffer_store(self.pixels, value, [mk.run_of(where, lanes)])

        _for_each_run(channels, plan.tile.lanes, transform)

    def _multiply(self, panel: Expr, width: int, gemm: Expr, part: Expr) -> None:
        """Emit register tile number ``part`` of one of the GEMMs. Missing tiles are multiplied, too, from whatever the
        workspace holds, and their results are unused.
        """
        plan, shape, lanes = self.plan, self.plan.shape, self.plan.tile.lanes
        first = T.bind(part * plan.tile.rows)
        tile = RegisterTile(plan.tile.rows, -(-width // lanes), lanes)
        acc = mk.allocate(tile, shape.acc_dtype)
        mk.fill(acc, tile, mk.constant(0, shape.acc_dtype))
        left = T.bind(gemm * plan.transformed + first * plan.pitch)
        filters = T.bind(gemm * shape.group_in)
        with mk.serial(0, shape.group_in) as channel:
            if self.schedule.prefetch_next:
                after, parts = (gemm + 1) * shape.group_in, plan.parts
                piece = self.panels.piece_of(parts)
                self.panels.prefetch_piece(self.group, panel, after, part, piece, shape.group_in, channel)
            mk.multiply_add(
                acc,
                tile,
                lambda row: self.pixels[left + (row * plan.pitch + channel)],
                lambda column: self.panels.at(self.group, panel, filters + channel, column),
            )
        into = T.bind(gemm * plan.multiplied + first * plan.tile.columns)
        mk.for_each_vector(
            tile,
            lambda row, column: T.buffer_store(
                self.products, acc[row, column], [into + (row * plan.tile.columns + column)]
            ),
        )

    def _transform_back(self, panel: Expr, width: int, tile: Expr, y: Expr, x: Expr) -> None:
        plan, columns = self.plan, self.plan.tile.columns
        first = T.bind(tile * columns)

        def transform(column: Expr, lanes: int) -> None:
            at = [
                [
                    named(self.products[mk.run_of((i * PIXELS + j) * plan.multiplied + (first + column), lanes)])
                    for j in range(PIXELS)
                ]
                for i in range(PIXELS)
            ]
            by_rows = [_outputs(column_of) for column_of in zip(*at, strict=True)]
            for i, row in enumerate(zip(*by_rows, strict=True)):
                for j, value in enumerate(_outputs(row)):
                    T.buffer_store(self.results, value, [mk.run_of((i * OUTPUTS + j) * columns + column, lanes)])

        _for_each_run(width, plan.tile.lanes, transform)
        self._finish_tile(panel, width, T.bind((self.first_tile + y) * OUTPUTS), T.bind(x * OUTPUTS))

    def _finish_tile(self, panel: Expr, width: int, top: Expr, start: Expr) -> None:
        """Emit the epilogue of the existing pixels of a tile.

        It is in fewer loops than the reduction: LLVM weighs values by loop depth, and would otherwise keep the
        constants of exponentials in registers instead of sums.
        """
        plan, shape, columns = self.plan, self.plan.shape, self.plan.tile.columns
        lanes, channel, (height, length) = plan.tile.lanes, self._first_channel(panel), shape.output[-2:]
        odd = [(at, extent) for at, extent in ((0, height), (1, length)) if is_open(extent) or extent % OUTPUTS]

        def finish(pixel: Expr, first: Expr, size: int) -> None:
            at = (top + pixel // OUTPUTS, start + pixel % OUTPUTS)
            exists = [at[dim] < mk.as_index(extent) for dim, extent in odd]

            def emit() -> None:
                mk.vector(
                    size,
                    lambda lane: self.epilogue(
                        self.image, at, channel + (first + lane), self.results[pixel * columns + (first + lane)]
                    ),
                )

            if not exists:
                emit()
                return
            with T.If(functools.reduce(T.And, exists)), T.Then():
                emit()

        whole = width // lanes
        if whole:
            with mk.serial(0, OUTPUTS * OUTPUTS * whole) as run:
                finish(T.bind(run // whole), T.bind(run % whole * lanes), lanes)
        for begin, size in mk.chunks(width - whole * lanes, lanes):
            with mk.serial(0, OUTPUTS * OUTPUTS) as pixel:
                finish(pixel, whole * lanes + begin, size)


def _pixels(d: tuple[Expr, ...] | list[Expr]) -> list[Expr]:
    """Return B' times four values."""
    return [named(each) for each in (d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3])]


def _outputs(m: tuple[Expr, ...] | list[Expr]) -> list[Expr]:
    """Return A' times four values."""
    return [named(each) for each in (m[0] + m[1] + m[2], m[1] - m[2] - m[3])]


def _for_each_run(width: int, lanes: int, emit: Callable[[Expr, int], None]) -> None:
    """Emit ``emit(first, lanes)`` for runs that cover ``width``: whole vectors in a loop, then powers of two."""
    whole = width // lanes
    if whole:
        with mk.serial(0, whole) as number:
            emit(T.bind(number * lanes), lanes)
    for start, size in mk.chunks(width - whole * lanes, lanes):
        emit(T.int64(whole * lanes + start), size)
