"""Bins of RoiAlign: sample positions of a region along an axis of an image, and the weights of their neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import Size, bounds_of

from .dtypes import Expr, named
from .sizes import integer

CORNERS = 4
Product = Callable[[Expr, Expr], Expr]
Neighbours = list[tuple[Expr, Expr]]
"""Position and weight of the two neighbours of a sample along an axis."""


def sides_of(node: Node) -> tuple[Size, Size, Size]:
    """Return height, width and channels of the images of a roi_align node."""
    first, second, third = node.inputs[0].shape[1:]
    return (first, second, third) if node.attrs["layout"] == "NXC" else (second, third, first)


@dataclass(frozen=True)
class Axis:
    """Bins of `width` from `start` on, with this number of samples each, along an image axis of `size`. `product`: a
    rounded multiplication, so that all targets have the same samples.
    """

    start: Expr
    width: Expr
    samples: Expr
    size: Size
    product: Product

    @staticmethod
    def of(node: Node, regions: Any, region: Expr, side: int, product: Product) -> Axis:
        """Return the axis for a region of a roi_align node in a flat buffer [R * CORNERS]; `side`: 0 for its columns, 1
        for its rows.

        Empty images have no samples.
        """
        attrs, x = node.attrs, node.inputs[0]
        bins, ratio = attrs["size"][1 - side], attrs["ratio"]
        scale, offset = T.float32(attrs["scale"]), T.float32(attrs["offset"])
        start = named(product(regions[region * CORNERS + side], scale) - offset)
        end = named(product(regions[region * CORNERS + side + 2], scale) - offset)
        extent = named(end - start if attrs["offset"] else T.max(end - start, T.float32(1)))
        width = named(extent / T.float32(bins))
        samples = T.int32(ratio) if ratio else T.max(T.cast(T.ceil(width), "int32"), T.int32(0))
        some = T.int32(0) if not bounds_of(x.tensor_type.num_elements)[1] else samples
        return Axis(start, width, T.bind(some), sides_of(node)[1 - side], product)

    def neighbours(self, number: Expr, sample: Expr) -> Neighbours:
        """Return the neighbours of a sample of bin `number`. More than one element outside the image it counts as 0;
        nearer, it is moved to the border.
        """
        size, half = named(T.cast(integer(self.size, "int64"), "float32")), T.float32(0.5)
        before = named(self.product(T.cast(number, "float32"), self.width))
        inner = (T.cast(sample, "float32") + half) * self.width / T.cast(self.samples, "float32")
        place = named(self.start + before + inner)
        inside = tirx.all(place >= T.float32(-1), place <= size)
        clamped = named(T.min(T.max(place, T.float32(0)), size - T.float32(1)))
        low = T.bind(T.cast(T.floor(clamped), "int64"))
        fraction = named(clamped - T.cast(low, "float32"))
        high = T.bind(T.min(low + 1, integer(self.size, "int64") - 1))
        none = T.float32(0)
        return [
            (low, named(tirx.Select(inside, T.float32(1) - fraction, none))),
            (high, named(tirx.Select(inside, fraction, none))),
        ]
