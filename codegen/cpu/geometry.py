"""Geometry of windows over images, shared by convolution and pooling: shapes, kernel taps, borders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu import microkernel as mk
from tilestitch.codegen.cpu.microkernel import Expr, Split

LoadPixel = Callable[[Expr, tuple[Expr, ...], Expr], Expr]
"""``load(image, position, channel)``: one input element; position and channel are always inside the input."""

PixelEpilogue = Callable[[Expr, tuple[Expr, ...], Expr, Expr], None]
"""``epilogue(image, position, channel, value)`` emits the store of one output; channel may be a vector lane."""


@dataclass(frozen=True)
class ConvShape:
    """A convolution or pooling window over ``spatial`` (any rank >= 1) of ``batch`` images.

    ``pads`` are (before, after) for each spatial dimension; padding counts as zeros.
    """

    batch: int
    in_channels: int
    out_channels: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    groups: int = 1
    x_dtype: str = "float32"
    w_dtype: str = "float32"
    acc_dtype: str = "float32"

    def __post_init__(self) -> None:
        ranks = {len(self.spatial), len(self.kernel), len(self.strides), len(self.dilations), len(self.pads)}
        if len(ranks) != 1 or not self.spatial:
            raise ValueError(f"convolution geometry of mixed rank in {self}; give one entry per spatial dimension")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ValueError(f"{self.groups} groups divide neither the channels of {self}; check the model")

    @property
    def rank(self) -> int:
        return len(self.spatial)

    @property
    def output(self) -> tuple[int, ...]:
        """Spatial extents of the output (0 where the window does not fit)."""
        return tuple(
            max(0, (size + sum(pad) - dilation * (kernel - 1) - 1) // stride + 1)
            for size, kernel, stride, dilation, pad in zip(
                self.spatial, self.kernel, self.strides, self.dilations, self.pads, strict=True
            )
        )

    @property
    def group_in(self) -> int:
        return self.in_channels // self.groups

    @property
    def group_out(self) -> int:
        return self.out_channels // self.groups

    @property
    def reduction(self) -> int:
        """Multiply-adds of one output element."""
        return self.group_in * math.prod(self.kernel)

    def source(self, dim: int, output: Expr, tap: Expr) -> Expr:
        """Input coordinate (possibly outside) that output coordinate and kernel tap meet."""
        return output * self.strides[dim] - self.pads[dim][0] + tap * self.dilations[dim]

    def with_leading_dimension(self) -> ConvShape:
        """The same convolution with one more spatial dimension of extent 1 in front."""
        return ConvShape(
            self.batch, self.in_channels, self.out_channels, (1, *self.spatial), (1, *self.kernel), (1, *self.strides),
            (1, *self.dilations), ((0, 0), *self.pads), self.groups, self.x_dtype, self.w_dtype, self.acc_dtype,
        )  # fmt: skip


def tap_range(shape: ConvShape, dim: int, at: Expr) -> tuple[Expr, Expr]:
    """First and one past the last kernel tap inside the input for output coordinate ``at``; may be empty."""
    dilation, extent = shape.dilations[dim], shape.spatial[dim]
    begin = at * shape.strides[dim] - shape.pads[dim][0]
    first = T.max((dilation - 1 - begin) // dilation, 0)
    last = T.min((extent - 1 - begin) // dilation + 1, shape.kernel[dim])
    return first, last


@dataclass(frozen=True)
class ColumnRun:
    """``count`` neighbouring tiles of ``size`` output columns from ``start``; ``border``: windows reach outside."""

    start: int
    size: int
    count: int
    border: bool


def column_runs(shape: ConvShape, split: Split) -> list[ColumnRun]:
    """The parts of the output columns: border tiles one by one, equal interior neighbours as one run."""
    stride, pad, extent = shape.strides[-1], shape.pads[-1][0], shape.spatial[-1]
    reach = shape.dilations[-1] * (shape.kernel[-1] - 1)
    runs: list[ColumnRun] = []
    start = 0
    for size, count in split.sizes():
        for _ in range(count):
            border = start * stride - pad < 0 or (start + size - 1) * stride - pad + reach >= extent
            last = runs[-1] if runs else None
            if last is not None and last.size == size and not border and not last.border:
                runs[-1] = ColumnRun(last.start, size, last.count + 1, False)
            else:
                runs.append(ColumnRun(start, size, 1, border))
            start += size
    return runs


def nest(extents: Sequence[int], body: Callable[[list[Expr]], None]) -> None:
    """Emits serial loops over ``extents`` around ``body(indices)``; loops of one iteration are left out."""

    def level(done: list[Expr]) -> None:
        if len(done) == len(extents):
            body(done)
        elif extents[len(done)] == 1:
            level([*done, 0])
        else:
            with mk.serial(0, extents[len(done)]) as index:
                level([*done, index])

    level([])


def inside(position: Sequence[Expr], extents: Sequence[int], pads: Sequence[tuple[int, int]]) -> Expr | None:
    """Whether a position lies inside the input; None when it cannot lie outside."""
    condition: Expr | None = None
    for at, extent, pad in zip(position, extents, pads, strict=True):
        if not any(pad):
            continue
        here = T.And(at >= 0, at < extent)
        condition = here if condition is None else T.And(condition, here)
    return condition


def flatten(index: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """Row-major position of ``index`` in an array of ``extents``."""
    flat: Expr = 0
    for at, extent in zip(index, extents, strict=True):
        flat = flat * extent + at
    return flat
