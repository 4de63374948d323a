"""ScatterND of the rows that a mask selects, as `x.at[places].set(rows, mode="drop")` of JAX is exported: NonZero of
the mask, and Gather of the indices and updates at the positions found.

The number of rows would be known only at run time. Instead, all rows are scattered, those that the mask excludes to a
row beyond the data, which is cropped again.
"""

from __future__ import annotations

from tilestitch.compiler.ir import TensorType, Value
from tilestitch.compiler.ir.sizes import is_open

from ..builder import Builder

REARRANGING = frozenset(("reshape", "transpose"))
"""Views that have every position exactly once; slices leave positions out, and broadcasts repeat them."""
MOST_ELEMENTS = 1 << 16
"""Largest data for which an additional copy is accepted."""


def scatter_chosen(b: Builder, x: Value, indices: Value, updates: Value, reduction: str) -> Value | None:
    """Return the result of ScatterND, or None unless a mask chooses the indices and updates."""
    chosen, of_updates = _chosen(indices), _chosen(updates)
    if chosen is None or of_updates is None or chosen[1:] != of_updates[1:] or not _is_small(x):
        return None
    (all_indices, mask, _), all_updates = chosen, of_updates[0]
    if not _is_matrix(all_indices) or {b.dim(all_indices, 0), b.dim(all_updates, 0)} != {b.dim(mask, 0)}:
        return None
    shape = b.shape(x)
    rows, width = shape[0], b.dim(all_indices, 1)
    no_rows = [0] * len(shape)
    padded = b.pad(x, no_rows, [1, *no_rows[1:]])
    columns = [b.slice_axis(b.cast(all_indices, "int64"), 1, i, i + 1) for i in range(width)]
    mask = b.expand_dims(mask, (1,))
    places = [b.select(mask, _beyond_padding(b, columns[0], rows), rows)]
    places += [b.select(mask, column, 0) for column in columns[1:]]
    result = b.emit("scatter_nd", padded, b.concat(places, 1), all_updates, reduction=reduction)
    return b.slice_axis(result, 0, 0, rows)


def _beyond_padding(b: Builder, places: Value, rows: int) -> Value:
    """Return row indices counted from the front; those out of range of the data are also out of range of the padded
    data.
    """
    places = b.select(b.less(places, 0), b.add(places, rows), places)
    outside = b.emit("logical_or", b.less(places, 0), b.less_equal(rows, places))
    return b.select(outside, rows + 1, places)


def _chosen(value: Value) -> tuple[Value, Value, Value] | None:
    """Return the value that is gathered along its first axis, the mask that selects from it, and the positions of the
    mask; None for others.
    """
    node = value.producer
    if node is None or node.op != "gather" or node.attrs["axis"] != 0:
        return None
    places = node.inputs[1]
    if not isinstance(places.type, TensorType) or places.type.rank != 1:
        return None
    while (by := places.producer) is not None and by.op in REARRANGING:
        places = by.inputs[0]
    if by is None or by.op != "compact" or by.inputs[1].producer is None or by.inputs[1].producer.op != "cumulative":
        return None  # otherwise the run requires a certain number of positions
    mask = by.inputs[0]
    return (node.inputs[0], mask, places) if mask.tensor_type.rank == 1 else None


def _is_small(x: Value) -> bool:
    type_ = x.type
    known = isinstance(type_, TensorType) and type_.is_static and type_.dtype != "string"
    return known and 0 < x.tensor_type.num_elements <= MOST_ELEMENTS


def _is_matrix(indices: Value) -> bool:
    type_ = indices.type
    return isinstance(type_, TensorType) and type_.rank == 2 and type_.is_sized and not is_open(type_.shape[1])
