"""Convolutions whose epilogues run among the multiplications of the next register tile.

An epilogue after each tile occupies the units that convert and add while the multipliers idle. So the sums of a tile go
to the workspace, and each of the first steps of the next tile's reduction finishes one pixel of them; a task finishes
its last tile at its end. The reduction is a single loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.convolution.conv import ConvEmitter
from tilestitch.codegen.cpu.convolution.geometry import Site
from tilestitch.codegen.cpu.convolution.taps import Step
from tilestitch.passes.plan.cpu.tiling import RegisterTile

Store = Callable[[Expr, Expr, Expr], None]
"""``store(pixel of a tile, column of a panel, value)``"""


class InterleavedConvEmitter(ConvEmitter):
    """A convolution with `ConvPlan.interleaves`. Variables describe the tile with pending sums: its number of pixels
    (0: none), its row, its column and its panel.
    """

    def _compute(self, first_panel: Expr, last_panel: Expr) -> None:
        self.waiting = T.alloc_buffer((4,), "int64", scope="local")
        self._wait(0, 0, 0, 0)
        super()._compute(first_panel, last_panel)
        store = self._store_of_waiting()
        with mk.serial(0, self.waiting[0]) as pixel:
            self._finish_pixel(store, pixel)

    def _wait(self, *tile: Expr) -> None:
        for place, value in enumerate(tile):
            T.buffer_store(self.waiting, mk.as_index(value), [place])

    def _store_of_waiting(self) -> Store:
        y0, x0, panel = (T.bind(self.waiting[place]) for place in (1, 2, 3))
        return self._stored(panel, Site(y0, self.plan.y.largest, x0, self.plan.x.largest, False, 0))

    def _finish_pixel(self, store: Store, pixel: Expr) -> None:
        """Finish all vectors of a pixel of the panel."""
        lanes = self.plan.tile.lanes

        def finish(column: Expr) -> None:
            store(pixel, column, self.sums[pixel, column])

        for vector in range(self.plan.tile.vectors):
            mk.vector(lanes, lambda lane, first=vector * lanes: finish(first + lane))  # type: ignore[misc]

    def _reduce(self, site: Site, step: Step) -> None:
        plan, kernel = self.plan, self.plan.shape.kernel
        looped, run = (kernel[:-1], plan.row_steps) if plan.merges_taps else (kernel, plan.channel_steps)
        rest = [0] * (len(kernel) - len(looped))

        def reduce(k: Expr) -> None:
            if math.prod(looped) == 1:
                step([0] * len(kernel), k, k, None)
            else:
                step([*unravel(T.bind(k // run), looped), *rest], k, T.bind(k % run), None)

        waiting, store = T.bind(self.waiting[0]), self._store_of_waiting()
        with mk.serial(0, waiting) as k:
            reduce(k)
            self._finish_pixel(store, k)
        with mk.serial(waiting, plan.steps) as k:
            reduce(k)

    def _finish(self, acc: Any, tile: RegisterTile, panel: Expr, width: int, site: Site) -> None:
        mk.for_each_vector(tile, lambda row, column: T.buffer_store(self.sums, acc[row, column], [row, column]))
        self._wait(site.pixels, site.y0, site.x0, panel)
