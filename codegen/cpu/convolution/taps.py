"""Loops over the kernel taps that lie inside the input, for one register tile of a convolution.

Where all pixels of a tile read padding with a tap, the loops leave it out; where only some do, the tap has code of its
own for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.convolution.geometry import Site, flatten, tap_range
from tilestitch.passes.plan.cpu.conv import ConvPlan
from tilestitch.passes.plan.cpu.images import ConvShape
from tilestitch.passes.plan.cpu.tiling import EvenSplit

Step = Callable[[list[Expr], Expr, Expr, list[int] | None], None]
"""``step(taps, k, channel, pixels)`` emits one step of the reduction for some pixels of a tile; None: for all."""


@dataclass(frozen=True)
class TapsInside:
    """The loops of one tile over taps and channels. ``outer``: output coordinates of all dimensions but the last two.

    Taps of a pixel are found dimension by dimension: the outer ones, rows, then columns.
    """

    plan: ConvPlan
    outer: tuple[Expr, ...]
    site: Site
    step: Step

    def emit(self) -> None:
        self._outer([])

    def _outer(self, taps: list[Expr]) -> None:
        if len(taps) == len(self.outer):
            self._rows(taps)
            return
        with mk.serial(*tap_range(self.plan.shape, len(taps), self.outer[len(taps)])) as tap:
            self._outer([*taps, tap])

    def _rows(self, taps: list[Expr]) -> None:
        shape, site = self.plan.shape, self.site
        if isinstance(site.y0, int):
            for tap in range(shape.kernel[-2]):
                self._columns([*taps, tap], _outputs_inside(shape, -2, site.y0, site.rows, tap))
            return
        with mk.serial(*tap_range(shape, shape.rank - 2, site.y0)) as tap:
            self._columns([*taps, tap], [0])

    def _columns(self, taps: list[Expr], rows: list[int]) -> None:
        if isinstance(self.plan.x, EvenSplit):
            self._open_columns(taps)
        elif self.site.border:
            self._border_columns(taps, rows)
        else:
            with mk.serial(0, self.plan.shape.kernel[-1]) as tap:
                self._channels([*taps, tap], self._pixels(rows, range(self.site.columns)))

    def _open_columns(self, taps: list[Expr]) -> None:
        """Emit the columns of taps of a tile of one row in an image of open width."""
        pixels, last = list(range(self.site.columns)), self.plan.shape.kernel[-1] - 1
        begins, ends = _reads_padding(self.plan.shape, self.site)
        first = T.bind(T.Select(begins, T.int64(1), T.int64(0)))
        with mk.serial(first, T.bind(T.Select(ends, T.int64(last), T.int64(last + 1)))) as tap:
            self._channels([*taps, tap], pixels)
        if self.site.columns == 1:
            return
        with T.If(begins), T.Then():
            self._channels([*taps, 0], pixels[1:])
        with T.If(ends), T.Then():
            self._channels([*taps, last], pixels[:-1])

    def _border_columns(self, taps: list[Expr], rows: list[int]) -> None:
        shape, site = self.plan.shape, self.site
        for tap in range(shape.kernel[-1]):
            columns = _outputs_inside(shape, -1, site.x0, site.columns, tap)
            self._channels([*taps, tap], self._pixels(rows, columns))

    def _pixels(self, rows: Iterable[int], columns: Iterable[int]) -> list[int]:
        return [row * self.site.columns + column for row in rows for column in columns]

    def _channels(self, taps: list[Expr], pixels: list[int]) -> None:
        if not pixels:
            return
        channels = self.plan.channel_steps
        first = T.bind(T.cast(flatten(taps, self.plan.shape.kernel) * channels, "int64"))
        with mk.serial(0, channels) as channel:
            self.step(taps, first + channel, channel, pixels)


def emit_columns_inside(
    shape: ConvShape, site: Site, channels: int, step: Callable[[Expr, list[int] | None], None]
) -> None:
    """Emit the steps of a row of taps, of which ``channels`` belong to each: those within the image for all pixels of a
    tile, then those for all but one.
    """
    taps = shape.kernel[-1]
    begins, ends = _reads_padding(shape, site)
    first = T.bind(T.Select(begins, T.int64(channels), T.int64(0)))
    last = T.bind(T.Select(ends, T.int64((taps - 1) * channels), T.int64(taps * channels)))
    with mk.serial(first, last) as at:
        step(at, None)
    with T.If(begins), T.Then(), mk.serial(0, channels) as at:
        step(at, list(range(1, site.columns)))
    with T.If(ends), T.Then(), mk.serial((taps - 1) * channels, taps * channels) as at:
        step(at, list(range(site.columns - 1)))


def _reads_padding(shape: ConvShape, site: Site) -> tuple[Expr, Expr]:
    """Return whether the first pixel of a tile reads padding with its first column of taps, and the last with its
    last.
    """
    begins = T.bind(shape.source(-1, site.x0, 0) < 0)
    beyond = shape.source(-1, site.x0 + (site.columns - 1), shape.kernel[-1] - 1)
    return begins, T.bind(beyond >= shape.spatial[-1])


def _outputs_inside(shape: ConvShape, dim: int, first: int, size: int, tap: int) -> list[int]:
    """Return which of ``size`` outputs from ``first`` read the input with a kernel tap."""
    return [i for i in range(size) if 0 <= shape.source(dim, first + i, tap) < shape.spatial[dim]]
