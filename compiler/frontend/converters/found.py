"""Operators with data-dependent result sizes, as kernels: NonZero, Compress, Unique.

Matches are counted block by block; their total becomes a size (`host.Extent`), and the running totals of the counts
give the positions at which the matches are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilestitch.compiler.frontend.builder import Builder, dtype_of
from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.frontend.errors import NotStatic
from tilestitch.compiler.ir import TensorType, Value
from tilestitch.compiler.ir.claims import may_be_natural
from tilestitch.compiler.ir.sizes import Size, bounds_of
from tilestitch.compiler.ir.types import is_float

from ..found_sizes import required
from ..symbols import found_size, sizes_are_symbols, taken_sizes

BLOCK = 1024
"""Elements of a mask that are counted together."""


def places_of_true(b: Builder, mask: Value) -> Value:
    """Return the positions where a mask, not a scalar, is true: int64 [rank, found], in row-major order. What was found
    in this mask before is found again, so that as much is.
    """
    for node, place in mask.uses:
        if node.op == "compact" and place == 0:
            return node.output
    counts = b.emit("tally", mask, block=BLOCK)
    ends = b.emit("cumulative", counts, axis=0, reducer="sum", exclusive=False, reverse=False)
    blocks = b.dim(ends, 0)
    last = b.slice_axis(b.pad(ends, (1,), (0,)), 0, blocks, blocks + 1)  # 0 if there are no blocks
    ends, found = _as_size(b, last, prod(b.shape(mask)), ends)
    return b.emit("compact", mask, ends, block=BLOCK, count=found)


def _as_size(b: Builder, count: Value, most: Size, ends: Value) -> tuple[Value, Size]:
    """Return the running totals, checked against the room for them, and their last one, a count that is known at run
    time, as a size.
    """
    hint = f"{b.origins[-1] if b.origins else 'found'}"
    with taken_sizes() as taken:
        size = found_size(hint, bounds_of(most)[1])
    if taken:
        return required(b, ends, taken), taken[0]
    (extent,) = b.host("Extent", [count], [TensorType("bool", (size,))])
    return ends, b.dim(extent, 0)


def _require_kernels(ctx: Context, values: Sequence[Value]) -> None:
    """Raise NotStatic where the host must do all of it: sizes are not symbols, nothing is left to compute, or operands
    are strings.
    """
    if not sizes_are_symbols():
        raise NotStatic("the size of the result depends on the data")
    if all(value.is_constant for value in values):
        raise NotStatic("the operands are constants")
    if any(dtype_of(value) == "string" for value in values):
        raise NotStatic("there are no kernels for text")


def non_zero(ctx: Context) -> Value:
    x = ctx.input(0)
    _require_kernels(ctx, [x])
    if ctx.rank(x) == 0:
        raise NotStatic("a scalar has no axes")
    return places_of_true(ctx, is_true(ctx, x))


def is_true(b: Builder, x: Value) -> Value:
    """Return whether elements are not zero; True for NaN."""
    return x if dtype_of(x) == "bool" else b.emit("logical_not", b.equal(x, 0))


def compress(ctx: Context) -> Value:
    x, condition = ctx.input(0), ctx.input(1)
    taken = None
    if condition.is_constant:
        taken = ctx.constant(np.flatnonzero(ctx.array_of(condition)), "int64")
    else:
        _require_kernels(ctx, [x, condition])
    axis = 0
    if ctx.has_attr("axis"):
        axis = ctx.axis(x, ctx.attr("axis"))
    else:
        x = ctx.reshape(x, (-1,))
    if taken is None:
        may_be_natural(ctx.dim(x, axis) - ctx.dim(condition, 0))
        taken = ctx.reshape(places_of_true(ctx, condition), (-1,))
    return ctx.gather(x, taken, axis)


def unique(ctx: Context) -> Sequence[Value]:
    """Convert Unique: equal elements are adjacent when sorted, and the first of each is found like any true element."""
    x = ctx.input(0)
    _require_kernels(ctx, [x])
    ascending = ctx.attr("sorted", 1) != 0
    if ctx.has_attr("axis"):
        return _distinct_slices(ctx, x, ctx.axis(x, ctx.attr("axis")), ascending)
    flat = ctx.reshape(x, (-1,))
    keys, places = _in_order(ctx, flat)
    return _distinct(ctx, flat, _is_first(ctx, keys), places, ascending)


def _distinct_slices(b: Builder, x: Value, axis: int, ascending: bool) -> tuple[Value, ...]:
    """Return distinct slices along an axis, in lexicographic order."""
    perm = (axis, *(other for other in range(b.rank(x)) if other != axis))
    turned = b.transpose(x, perm)
    count, *rest = b.shape(turned)
    rows = b.reshape(turned, (count, prod(rest)))
    places = b.iota(count) if prod(rest) == 0 else b.emit("order_rows", rows)
    is_first = _differ_from_before(b, b.gather(rows, places, 0))
    values, *others = _distinct(b, rows, is_first, places, ascending)
    back = b.reshape(values, (b.dim(values, 0), *rest))
    return b.transpose(back, tuple(np.argsort(perm))), *others


def _differ_from_before(b: Builder, rows: Value) -> Value:
    """Return whether sorted rows differ from the previous one."""
    differ = b.emit("logical_not", _same_as_before(b, rows))
    count = b.reduce("sum", b.cast(differ, "int32"), (1,), keepdims=False)
    return b.emit("logical_or", b.less(0, count), b.equal(b.iota(b.dim(rows, 0)), 0))


def _in_order(b: Builder, flat: Value) -> tuple[Value, Value]:
    """Return the elements in ascending order, and their original positions; stable."""
    keys = b.cast(flat, "uint8") if dtype_of(flat) == "bool" else flat
    values, places = b.emit_many("top_k", [keys], {"k": b.dim(flat, 0), "axis": 0, "largest": False})
    return values, places


def _is_first(b: Builder, keys: Value) -> Value:
    """Return whether sorted elements differ from the previous one."""
    differ = b.emit("logical_not", _same_as_before(b, keys))
    return b.emit("logical_or", differ, b.equal(b.iota(b.dim(keys, 0)), 0))


def _same_as_before(b: Builder, entries: Value) -> Value:
    """Return whether elements equal those of the previous entry, zeros for the first one. NaNs are equal."""
    rest = (0,) * (b.rank(entries) - 1)
    before = b.slice_axis(b.pad(entries, (1, *rest), (0, *rest)), 0, 0, b.dim(entries, 0))
    same = b.equal(entries, before)
    if not is_float(dtype_of(entries)):
        return same
    return b.emit("logical_or", same, b.emit("logical_and", b.emit("is_nan", entries), b.emit("is_nan", before)))


def _distinct(b: Builder, entries: Value, is_first: Value, places: Value, ascending: bool) -> tuple[Value, ...]:
    """Return the outputs of Unique: distinct entries, their first positions, the inverse, and the counts.

    `is_first`, `places`: for entries in ascending order, whether they differ from the previous one, and their original
    positions.
    """
    size = b.dim(entries, 0)
    starts = b.reshape(places_of_true(b, is_first), (-1,))
    found = b.dim(starts, 0)
    end = b.size(size)
    counts = b.sub(b.slice_axis(b.pad(starts, (0,), (1,), value=end), 0, 1, found + 1), starts)
    firsts = b.gather(places, starts, 0)
    number = b.sub(_running(b, is_first), 1)
    which = _put(b, size, places, number)
    if not ascending:
        in_place = _put(b, size, places, b.cast(is_first, "int64"))
        number = b.gather(b.sub(_running(b, in_place), 1), firsts, 0)
        which = b.gather(number, which, 0)
        firsts, counts = _put(b, found, number, firsts), _put(b, found, number, counts)
    return b.gather(entries, firsts, 0), firsts, which, counts


def _running(b: Builder, mask: Value) -> Value:
    count = b.cast(mask, "int64")
    return b.emit("cumulative", count, axis=0, reducer="sum", exclusive=False, reverse=False)


def _put(b: Builder, size: Size, places: Value, values: Value) -> Value:
    """Return int64 [size] with values at these distinct positions, zeros elsewhere."""
    zeros = b.full((size,), 0, "int64")
    return b.emit("scatter_elements", zeros, places, values, axis=0, reduction="none")


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "NonZero": [(9, non_zero)],
    "Compress": [(9, compress)],
    "Unique": [(11, unique)],
}
