"""Boxes of NonMaxSuppression: their corners, and whether two overlap too much; bit-exact to the reference, by the same
order of operations.
"""

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .dtypes import Expr, named

SIDES = 4


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
