"""Reading and writing at indices: gather and scatter families, OneHot, ReverseSequence, TensorScatter; caches in memory
that a run may write to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from tilestitch.compiler.ir import TensorType, Value
from tilestitch.compiler.ir.claims import may_be_equal, may_be_natural
from tilestitch.compiler.ir.sizes import Size, is_open

from ..builder import Builder
from ..context import Context, Versioned


def is_donated(ctx: Context, cache: Value) -> bool:
    """Return whether a value is an input of the model that is donated."""
    module = ctx.scope.module
    is_input = module.main is not None and cache in module.main.inputs
    return is_input and any(fnmatchcase(cache.name, pattern) for pattern in module.donated)


def stored_rows(
    ctx: Context, cache: Value, new: Value, *places: Value, axis: int, room: Size, until: Size, clears: bool
) -> Value:
    """Return the cache, `room` rows along `axis`, with new rows at places int64 [batch or 1, rows], all below `until`.
    `clears`: there are zeros from the last row to `until`, or to a second one of `places`, int64 [1].
    """
    return ctx.emit("append", new, *places, cache=cache.name, axis=axis, capacity=room, until=until, clears=clears)


REARRANGING = frozenset(("reshape", "transpose"))
"""Views that have every position exactly once; slices leave positions out, and broadcasts repeat them."""
MOST_ELEMENTS = 1 << 16
"""Largest data for which an additional copy is accepted."""


def scatter_chosen(b: Builder, x: Value, indices: Value, updates: Value, reduction: str) -> Value | None:
    """Return the result of ScatterND, or None unless a mask chooses the indices and updates, as `x.at[places].set(rows,
    mode="drop")` of JAX is exported: NonZero of the mask, and Gather of the indices and updates at the positions found.

    The number of rows would be known only at run time. Instead, all rows are scattered, those that the mask excludes to
    a row beyond the data, which is cropped again.
    """
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


def along_axis(b: Builder, vector: Value, axis: int, rank: int) -> Value:
    """Return a vector shaped so that it broadcasts along one axis of a tensor of that rank."""
    size = b.dim(vector, 0)
    return b.reshape(vector, tuple(size if i == axis else 1 for i in range(rank)))


def convert_gather(ctx: Context) -> Value:
    x = ctx.input(0)
    return gathered(ctx, x, ctx.input(1), ctx.axis(x, ctx.attr("axis", 0)))


def gathered(ctx: Context, x: Value, indices: Value, axis: int) -> Value:
    if isinstance(x.type, TensorType) and indices.data is not None and indices.data.size:
        _claim_to_hold(x.type.shape[axis], int(indices.data.min()), int(indices.data.max()))
    return ctx.gather(x, indices, axis)


def _claim_to_hold(size: Size | str, first: int, last: int) -> None:
    """Claim that an open dimension has these two positions; negative ones count from its end."""
    if not isinstance(size, str) and is_open(size):
        may_be_natural(size - 1 - last)
        may_be_natural(size + first)


def convert_gather_elements(ctx: Context) -> Value:
    x = ctx.input(0)
    return ctx.emit("gather_elements", x, ctx.input(1), axis=ctx.axis(x, ctx.attr("axis", 0)))


def convert_gather_nd(ctx: Context) -> Value:
    ctx.dim(ctx.input(1), -1)  # the number of coordinates decides the rank of the result
    return ctx.emit("gather_nd", ctx.input(0), ctx.input(1), batch_dims=ctx.attr("batch_dims", 0))


def convert_scatter_elements(ctx: Context) -> Value:
    x = ctx.input(0)
    axis = ctx.axis(x, ctx.attr("axis", 0))
    return ctx.emit(
        "scatter_elements", x, ctx.input(1), ctx.input(2), axis=axis, reduction=ctx.attr("reduction", "none")
    )


def convert_scatter_nd(ctx: Context) -> Value:
    x, indices, updates, reduction = ctx.input(0), ctx.input(1), ctx.input(2), ctx.attr("reduction", "none")
    axes = ctx.rank(x) + ctx.rank(indices) - 1 - ctx.rank(updates)  # as many as each entry of the indices is for
    if not may_be_equal(ctx.dim(indices, -1), axes):
        raise ctx.fail(f"indices {indices.type} and updates {updates.type} do not fit {x.type}; correct the model")
    chosen = scatter_chosen(ctx, x, indices, updates, reduction)
    return ctx.emit("scatter_nd", x, indices, updates, reduction=reduction) if chosen is None else chosen


def convert_one_hot(ctx: Context) -> Value:
    indices, values = ctx.input(0), ctx.input(2)
    (depth,) = ctx.sizes_of(1)
    rank = ctx.rank(indices) + 1
    axis = ctx.attr("axis", -1)
    if not -rank <= axis < rank:
        raise ctx.fail(f"axis {axis} is out of range for an output of rank {rank}")
    axis %= rank
    places = ctx.expand_dims(ctx.cast(indices, "int64"), (axis,))
    places = ctx.select(ctx.less(places, 0), ctx.add(places, ctx.size(depth)), places)
    off, on = (ctx.reshape(ctx.slice_axis(values, 0, i, i + 1), ()) for i in (0, 1))
    return ctx.select(ctx.equal(along_axis(ctx, ctx.iota(depth), axis, rank), places), on, off)


def reverse_sequence(b: Builder, x: Value, lengths: Value, batch_axis: int, time_axis: int) -> Value:
    """Return x with the first lengths[i] elements along `time_axis` of batch entry i reversed. Axes are 0 and 1."""
    time = along_axis(b, b.iota(b.shape(x)[time_axis]), time_axis, 3)
    length = along_axis(b, b.cast(lengths, "int64"), batch_axis, 3)
    source = b.select(b.less(time, length), b.sub(b.sub(length, 1), time), time)
    if batch_axis == 0:
        return b.emit("gather_nd", x, source, batch_dims=1)
    entry = b.broadcast_to(along_axis(b, b.iota(b.shape(x)[batch_axis]), batch_axis, 3), b.shape(source))
    return b.emit("gather_nd", x, b.emit("concat", source, entry, axis=2), batch_dims=0)


def convert_reverse_sequence(ctx: Context) -> Value:
    x = ctx.input(0)
    batch, time = ctx.axis(x, ctx.attr("batch_axis", 1)), ctx.axis(x, ctx.attr("time_axis", 0))
    if {batch, time} != {0, 1}:
        raise ctx.fail(f"batch_axis {batch} and time_axis {time} are not 0 and 1, in either order; correct the model")
    lengths = ctx.input(1)
    if ctx.rank(lengths) != 1 or not may_be_equal(ctx.dim(lengths, 0), ctx.dim(x, batch)):
        raise ctx.fail(f"sequence_lens {lengths.type} are not one for each batch entry of {x.type}; correct the model")
    return reverse_sequence(ctx, x, lengths, batch, time)


def convert_tensor_scatter(ctx: Context) -> Value:
    """Write `update` into the cache from write_indices on (of each batch entry), possibly wrapping around its end."""
    cache, update, starts = ctx.input(0), ctx.input(1), ctx.optional(2)
    axis = ctx.axis(cache, ctx.attr("axis", -2))
    if axis == 0:
        raise ctx.fail("axis is the batch dimension")
    rank, size = ctx.rank(cache), ctx.dim(cache, axis)
    donated = is_donated(ctx, cache)
    along, of = (1, 2) if donated else (axis, rank)
    step = along_axis(ctx, ctx.iota(ctx.dim(update, axis)), along, of)
    place = step if starts is None else ctx.add(step, along_axis(ctx, starts, 0, of))
    if ctx.attr("mode", "linear") == "circular":
        place = ctx.emit("mod", place, ctx.size(size))
    if donated:
        return stored_rows(ctx, cache, update, place, axis=axis, room=size, until=size, clears=False)
    indices = ctx.broadcast_to(place, ctx.shape(update))
    return ctx.emit("scatter_elements", cache, indices, update, axis=axis, reduction="none")


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "Gather": [(1, convert_gather)],
    "GatherElements": [(11, convert_gather_elements)],
    "GatherND": [(11, convert_gather_nd)],
    "Scatter": [(9, convert_scatter_elements)],
    "ScatterElements": [(11, convert_scatter_elements)],
    "ScatterND": [(11, convert_scatter_nd)],
    "OneHot": [(9, convert_one_hot)],
    "ReverseSequence": [(10, convert_reverse_sequence)],
    "TensorScatter": [(24, convert_tensor_scatter)],
}
