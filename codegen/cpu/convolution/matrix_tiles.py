"""Convolutions with AMX: a tile of the left operand is 64 bytes of neighbouring channels of 16 pixels.

The task copies its rows with room for whole tiles of channels, so that the pixels of a row have a constant stride, and
missing pixels of a tile are read from the data after them. Their sums are not stored.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.matrix_tiles import Products, configured, right_tile
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.convolution.conv import ConvEmitter
from tilestitch.codegen.cpu.convolution.geometry import Site
from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.cpu.conv import staged_step
from tilestitch.passes.plan.cpu.isa import TILE_BYTES, TILE_ROWS


class TileConvEmitter(ConvEmitter):
    """A convolution in tile registers."""

    def run(self, task: Expr) -> None:
        with configured(self.scratch, self.plan.scratch_bytes - self.plan.shapes_bytes):
            super().run(task)

    def _tile(self, panel: Expr, width: int, site: Site) -> None:
        plan, element = self.plan, storage_bytes(self.plan.staged_dtype)
        assert plan.dot is not None
        each = ceil_div(site.columns, TILE_ROWS)
        stride = staged_step(plan.shape, -1) * plan.room
        products = Products(plan.dot, range(site.rows * each), range(ceil_div(width, TILE_ROWS)))
        products.clear()

        def step(taps: list[Expr], k: Expr, channel: Expr, pixels: list[int] | None) -> None:
            at = self._staged_run(site, taps, channel * (TILE_BYTES // element))

            def rows(i: int) -> tuple[Expr, Expr]:
                return T.address_of(at(i // each, i % each * TILE_ROWS)), T.int64(stride * element)

            products.add(rows, lambda j: right_tile(self.panels, self.group, panel, k, j))

        self._reduce(site, step)
        products.store(self.sums, plan.tile.columns)
        store = self._stored(panel, site)
        for row in range(site.rows):
            with mk.serial(0, site.columns) as column:
                at, pixel = column + row * each * TILE_ROWS, column + row * site.columns
                mk.for_each_column(
                    width, plan.tile.lanes,
                    lambda n, at=at, pixel=pixel: store(pixel, n, self.sums[at, n]),  # type: ignore[misc]
                )  # fmt: skip
