"""Loops over windows of images, shared by convolution and pooling: kernel taps, borders."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.compiler.ir.sizes import Size, bounds_of
from tilestitch.passes.plan.cpu.images import ConvShape

LoadPixel = Callable[[Expr, tuple[Expr, ...], Expr], Expr]
"""``load(image, position, channel)``: one input element; position and channel are always inside the input."""

PixelEpilogue = Callable[[Expr, tuple[Expr, ...], Expr, Expr], None]
"""``epilogue(image, position, channel, value)`` emits the store of one output; channel may be a vector lane."""


@dataclass(frozen=True)
class Site:
    """Position of a register tile: output rows from ``y0``, columns from ``x0``, ``index`` in the block.

    ``border``: windows extend over the left or right border; ``x0`` is then an int.
    """

    y0: Expr
    rows: int
    x0: Expr
    columns: int
    border: bool
    index: Expr

    @property
    def pixels(self) -> int:
        return self.rows * self.columns


def tap_range(shape: ConvShape, dim: int, at: Expr) -> tuple[Expr, Expr]:
    """Return the first kernel tap inside the input for output coordinate ``at``, and one past the last; may be
    empty.
    """
    dilation, extent = shape.dilations[dim], shape.spatial[dim]
    begin = at * shape.strides[dim] - shape.pads[dim][0]
    first = T.max((dilation - 1 - begin) // dilation, 0)
    last = T.min((extent - 1 - begin) // dilation + 1, shape.kernel[dim])
    return first, last


def may_be_positive(size: Size) -> bool:
    """Return whether a size, which may be open, can be positive."""
    return bounds_of(size)[1] > 0


def nest(extents: Sequence[int], body: Callable[[list[Expr]], None]) -> None:
    """Emit serial loops over ``extents`` around ``body(indices)``; loops of one iteration are left out."""

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
    """Return whether a position lies inside the input; None when it cannot lie outside."""
    condition: Expr | None = None
    for at, extent, pad in zip(position, extents, pads, strict=True):
        if pad == (0, 0):
            continue
        here = T.And(at >= 0, at < extent)
        condition = here if condition is None else T.And(condition, here)
    return condition


def flatten(index: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """Return the row-major position of ``index`` in an array of ``extents``."""
    flat: Expr = 0
    for at, extent in zip(index, extents, strict=True):
        flat = flat * extent + at
    return flat
