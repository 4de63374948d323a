"""How many neighbouring elements one memory access moves, which operands are contiguous along another dimension than
the outputs, and which neighbouring results of an anchor are contiguous in these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.accesses import Access, Walk
from tilestitch.compiler.ir.affine import Integer, variable
from tilestitch.compiler.ir.indexing import forward_index, ravel
from tilestitch.compiler.ir.sizes import Size, divisor_of, is_open
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.parts import MATMULS, Part, Roles

VECTOR_BYTES = 16
"""Bytes of a thread's widest access."""


def lanes_of(values: Sequence[Value], limit: int = 8) -> int:
    """Return the vector length at which the widest of `values` fills 16 bytes, at most `limit`."""
    widest = max([storage_bytes(v.dtype) for v in values], default=4)
    return max(1, min(limit, VECTOR_BYTES // widest))


def extents_of_threads(shape: Sequence[Size], lanes: int, pixels: int) -> tuple[Size, ...]:
    """Return the extents that threads are numbered over if each computes `lanes` channels, which come last, of `pixels`
    neighbouring columns.
    """
    if lanes * pixels == 1:
        return tuple(shape)
    *rest, columns, channels = shape
    return (*rest, columns // pixels, channels // lanes)


def accesses_along(axis: int, extents: Sequence[int], walk: Walk, inputs: Sequence[Value]) -> list[Access]:
    """Return the reads that are contiguous along `axis`, each the only read of its operand."""
    reads = [a for a in walk.accesses if a.value in inputs]
    return [a for a in reads if _runs_along(a, extents) == axis and sum(b.value is a.value for b in reads) == 1]


def _runs_along(access: Access, extents: Sequence[int]) -> int | None:
    """Return the dimension, other than the last, along which an access is contiguous; None if there is none."""
    if access.strides is None or access.strides[-1] in (0, 1):
        return None
    return next((d for d, stride in enumerate(access.strides[:-1]) if stride == 1 and extents[d] > 1), None)


Place = Callable[[Any, Any, Any], Sequence[Any]]
"""`place(batch, row, column)`: the index of a result in the anchor's output."""


def lie_together(
    roles: Roles, outputs: Sequence[Value], place: Place, extents: tuple[int, int, int], lanes: int
) -> bool:
    """Return whether aligned runs of `lanes` neighbouring results are contiguous in every output."""
    if any(not v.tensor_type.is_static for v in outputs) or any(map(is_open, extents)):
        return lanes == 1 or all(_open_run(roles, value) % lanes == 0 for value in outputs)
    batch, row, run = variable("batch", extents[0]), variable("row", extents[1]), variable("run", extents[2] // lanes)
    indices = [tuple(place(batch, row, run * lanes + lane)) for lane in range(lanes)]
    for value in outputs:
        views = _views_before(roles, value)
        first, *others = (_position(views, value, index) for index in indices)
        if first % lanes != 0 or any(other - first != lane for lane, other in enumerate(others, 1)):
            return False
    return True


def rows_lie_together(roles: Roles, outputs: Sequence[Value], place: Place, extents: tuple[int, int, int]) -> bool:
    """Return whether the largest output has neighbouring rows next to each other, and neighbouring columns apart.

    extents: of batch, row and column. False where it depends on open sizes.
    """
    _, rows, columns = extents
    if not outputs or not all(value.tensor_type.is_static for value in outputs):
        return False
    if is_open(rows) or is_open(columns) or rows < 2 or columns < 2:
        return False
    largest = max(outputs, key=lambda value: value.tensor_type.num_elements)
    views = _views_before(roles, largest)
    first, next_row, next_column = (
        _position(views, largest, tuple(place(0, row, column))) for row, column in ((0, 0), (1, 0), (0, 1))
    )
    return bool(next_row - first == 1) and not bool(next_column - first == 1)


def _open_run(roles: Roles, value: Value) -> int:
    """Return the length of aligned runs of results that are contiguous in an output, whatever the sizes are."""
    anchor = roles.anchor
    assert anchor is not None
    if anchor.op not in MATMULS and anchor.attrs.get("layout") != "NXC":
        return 1  # columns are pixels, of several images
    views = _views_before(roles, value)
    run = divisor_of((views[0].inputs[0] if views else value).shape[-1])
    for view in views:
        if view.op == "transpose":
            rank = len(view.attrs["perm"])
            run = math.gcd(run, divisor_of(view.output.shape[-1])) if view.attrs["perm"][-1] == rank - 1 else 1
        elif view.op != "reshape":
            return 1
    return run


def _views_before(roles: Roles, value: Value) -> list[Node]:
    """Return the chain of views that ends in a stored value."""
    views: list[Node] = []
    while value.producer is not None and roles.parts.get(value.producer) is Part.VIEW:
        views.insert(0, value.producer)
        value = value.producer.inputs[0]
    return views


def _position(views: Sequence[Node], value: Value, index: tuple[Any, ...]) -> Integer:
    for view in views:
        index = forward_index(view, index)
    position: Integer = ravel(index, value.shape)
    return position
