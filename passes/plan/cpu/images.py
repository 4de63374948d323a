"""Windows over images, shared by convolution and pooling: shapes, kernel taps, borders."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tilestitch.compiler.ir.sizes import ceil_div, largest, smallest

from .isa import Dot
from .tiling import Split


@dataclass(frozen=True)
class ConvShape:
    """A convolution or pooling window over `spatial` (any rank >= 1) of `batch` images.

    pads: (before, after) for each spatial dimension; padding counts as zeros. packed: the weights are a constant.
    plain: an input element is a plain load, without a prologue; channels_last: its channels are contiguous, else its
    columns are. long_epilogue: its code is too long to be repeated for every register. pools: all elements of a window
    have equal weight. y_channels_first: results are stored so, else channels last. small_pairs: see
    `pairs`.
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
    packed: bool = True
    plain: bool = True
    channels_last: bool = True
    long_epilogue: bool = False
    pools: bool = False
    y_channels_first: bool = False
    small_pairs: bool = False

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
            largest(0, (size + sum(pad) - dilation * (kernel - 1) - 1) // stride + 1)
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

    def multiplied_by(self, dot: Dot) -> bool:
        """Return whether an instruction for groups of 8-bit integers or half floats computes it from constant
        panels.
        """
        fits = (self.x_dtype, self.w_dtype, self.acc_dtype) == (*dot.operands, dot.sums)
        return fits and self.packed and (self.small_pairs or not dot.pairs)

    def reads_in_place(self, dot: Dot) -> bool:
        """Return whether whole groups of channels are read in place."""
        return self.plain and self.channels_last and self.x_dtype == dot.left and self.group_in % dot.group == 0

    @property
    def padded(self) -> bool:
        return any(pad != (0, 0) for pad in self.pads)

    def source(self, dim: int, output: Any, tap: Any) -> Any:
        """Return the input coordinate (possibly outside) of an output coordinate and kernel tap, as a number or
        expression.
        """
        return output * self.strides[dim] - self.pads[dim][0] + tap * self.dilations[dim]

    def in_planes(self) -> ConvShape:
        """Return the same window with at least two spatial dimensions: a single one gets another of extent 1 before
        it.
        """
        if self.rank > 1:
            return self
        return replace(
            self, spatial=(1, *self.spatial), kernel=(1, *self.kernel), strides=(1, *self.strides),
            dilations=(1, *self.dilations), pads=((0, 0), *self.pads),
        )  # fmt: skip


@dataclass(frozen=True)
class ColumnRun:
    """`count` neighbouring tiles of `size` output columns from `start`; border: their windows reach outside."""

    start: int
    size: int
    count: int
    border: bool


def column_runs(shape: ConvShape, split: Split) -> list[ColumnRun]:
    """Return the parts of the output columns: border tiles singly, equal interior neighbours as one run."""
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


def interior(shape: ConvShape) -> tuple[int, int]:
    """Return the first and one past the last output column whose window lies inside the input's columns; may be
    empty.
    """
    stride, pad, width = shape.strides[-1], shape.pads[-1][0], shape.output[-1]
    reach = shape.dilations[-1] * (shape.kernel[-1] - 1)
    first = smallest(width, ceil_div(pad, stride))
    return first, largest(first, smallest(width, (shape.spatial[-1] - 1 - reach + pad) // stride + 1))
