"""What operators with templates of their own (`cpu.opaque`, `cuda.opaque`) compute, alike on every target.

Run-time indices, and the messages where they are out of range; where the updates of scatters go, and how they change
the element there; the lexicographic order of rows; the boxes of NonMaxSuppression, bit-exact to the reference by the
same order of operations; the bins of RoiAlign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import Size, bounds_of
from tilestitch.compiler.ir.types import is_float
from tilestitch.passes.plan.index_checks import IndexCheck

from . import reducers
from .dtypes import Expr, from_storage, is_nan, named, to_storage
from .evaluator import Evaluator
from .indexing import unravel
from .sizes import integer

SIDES = 4
CORNERS = 4


def wrapped(raw: Expr, size: Size) -> Expr:
    """Return a possibly negative index counted from the front, int64."""
    wide = T.bind(T.cast(raw, "int64"))
    return T.bind(tirx.Select(wide < T.int64(0), wide + integer(size, "int64"), wide))


def in_range(index: Expr, size: Size) -> Expr:
    return tirx.And(index >= T.int64(0), index < integer(size, "int64"))


def offset_of(node: Node) -> Callable[[Expr, range], Expr]:
    """Return, for scatter_elements, `offset(flat, dims)`: the position in the data of the flat index `flat` into the
    dimensions `dims` of the updates.
    """
    x, shape = node.inputs[0], node.inputs[1].shape
    strides = [prod(x.shape[d + 1 :]) for d in range(len(shape))]

    def offset(flat: Expr, dims: range) -> Expr:
        position: Expr = T.int64(0)
        rest: Size = prod(shape[d] for d in dims)
        for d in dims:
            rest //= shape[d]
            position = position + flat // rest % shape[d] * strides[d]
        return T.bind(position)

    return offset


def slice_of(node: Node, indices: Any, number: Expr) -> tuple[Expr, Expr]:
    """Return, for scatter_nd, the number of the slice that update `number` goes to, and whether there is one."""
    x, depth = node.inputs[0], node.inputs[1].shape[-1]
    place, inside = T.int64(0), T.bool(True)
    for d in range(depth):
        entry = wrapped(indices[number * depth + d], x.shape[d])
        inside = tirx.And(inside, in_range(entry, x.shape[d]))
        place = place + entry * prod(x.shape[d + 1 : depth])
    return T.bind(place), inside


def store_update(node: Node, target: Any, position: Expr, update: Expr) -> None:
    """Replace an element of the data, or combine it with an update."""
    dtype, reduction = node.inputs[0].dtype, node.attrs["reduction"]
    if reduction == "none":
        T.buffer_store(target, update, [position])
        return
    reducer = {"add": "sum", "mul": "prod"}.get(reduction, reduction)
    old, new = (named(reducers.to_accumulator(from_storage(e, dtype), dtype)) for e in (target[position], update))
    joined = named(reducers.combine(reducer, dtype, old, new))
    T.buffer_store(target, to_storage(reducers.from_accumulator(joined, dtype), dtype), [position])


def fault_message(node: Node) -> str:
    if node.op == "append":
        return f"{node.attrs['cache']}: the place of a new row is not below {node.attrs['until']}"
    return f"{node.op}: an index is out of range of the data, whose shape is {list(node.inputs[0].shape)}"


def is_out_of_range(check: IndexCheck, number: Expr, evaluator: Evaluator) -> Expr:
    """Return whether index number `number` is out of range."""
    shape = check.indices.shape
    index = unravel(number, shape) if check.column is None else (*unravel(number, shape[:-1]), check.column)
    value = evaluator.bind(T.cast(evaluator.value(check.indices, index), "int64"))
    return tirx.Or(value < T.int64(-check.size), value >= T.int64(check.size))


def comes_first(rows: Any, dtype: str, starts: tuple[Expr, Expr], length: Expr) -> tuple[Expr, Expr]:
    """Return whether the row at the first of two positions precedes the other one, and whether they are equal. NaN is
    above all numbers, and equal to NaN.
    """
    differs = T.alloc_buffer((1,), "int32", scope="local")
    place = T.alloc_buffer((1,), str(length.ty.dtype), scope="local")
    T.buffer_store(differs, T.int32(0), [0])
    T.buffer_store(place, tirx.const(0, str(length.ty.dtype)), [0])
    with T.While(tirx.And(place[0] < length, tirx.EQ(differs[0], 0))):
        a, b = (named(from_storage(rows[start + place[0]], dtype)) for start in starts)
        below, above = (_below(a, b, dtype), _below(b, a, dtype))
        T.buffer_store(differs, T.cast(above, "int32") - T.cast(below, "int32"), [0])
        T.buffer_store(place, place[0] + 1, [0])
    found = T.bind(differs[0])
    return found < 0, tirx.EQ(found, 0)


def _below(a: Expr, b: Expr, dtype: str) -> Expr:
    if dtype == "bool":
        a, b = T.cast(a, "int32"), T.cast(b, "int32")
    if not is_float(dtype):
        return a < b
    return tirx.Or(a < b, tirx.And(is_nan(b), tirx.Not(is_nan(a))))


def corners(boxes: Any, number: Expr, centers: bool) -> list[Expr]:
    """Return both ends along two axes, the lower ones first, and the area, for box `number` of a flat buffer [N *
    SIDES].
    """
    a, b, c, d = (named(boxes[number * SIDES + side]) for side in range(SIDES))
    if centers:
        half = T.float32(0.5)
        ends = [a - c * half, b - d * half, a + c * half, b + d * half]
    else:
        ends = [T.min(a, c), T.min(b, d), T.max(a, c), T.max(b, d)]
    low_a, low_b, high_a, high_b = map(named, ends)
    return [low_a, low_b, high_a, high_b, named((high_a - low_a) * (high_b - low_b))]


def share_too_much(box: Sequence[Expr], other: Sequence[Expr], overlap: Expr) -> Expr:
    """Return whether the intersection over the union of two boxes, from `corners`, exceeds `overlap`."""
    low_a, low_b, high_a, high_b, area = box
    zero = T.float32(0)
    along = named(T.max(T.min(high_a, other[2]) - T.max(low_a, other[0]), zero))
    across = named(T.max(T.min(high_b, other[3]) - T.max(low_b, other[1]), zero))
    shared = named(along * across)
    union = named(area + other[4] - shared)
    some = tirx.all(shared > zero, area > zero, other[4] > zero, union > zero)
    return tirx.And(some, shared / union > overlap)


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
