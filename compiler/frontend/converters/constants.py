"""Operators that make tensors of nothing but sizes and positions: constants, ranges, diagonals and triangles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size, ceil_div, is_open, largest
from tilestitch.compiler.ir.types import to_numpy_dtype

from ..builder import dtype_of
from ..context import Context, Versioned
from ..errors import NotStatic
from ..found_sizes import Element, sizes_of
from ..fractional_sizes import EXACT
from ..sizes import contents_of, fractions_of
from ..tensors import to_array


def convert_constant(ctx: Context) -> Value:
    for name, dtype in (
        ("value_float", "float32"),
        ("value_floats", "float32"),
        ("value_int", "int64"),
        ("value_ints", "int64"),
    ):
        if ctx.has_attr(name):
            return ctx.constant(np.asarray(ctx.attr(name), to_numpy_dtype(dtype)))
    for name in ("value_string", "value_strings"):
        if ctx.has_attr(name):
            return ctx.constant(np.asarray(ctx.attr(name), object))
    if ctx.has_attr("sparse_value"):
        return ctx.constant(_dense(ctx))
    return ctx.constant(ctx.attr("value"))


def _dense(ctx: Context) -> np.ndarray:
    """Return a sparse constant (COO, indices linear or per coordinate) as a dense array."""
    sparse = ctx.attr("sparse_value")
    values, indices = to_array(sparse.values), to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def convert_constant_of_shape(ctx: Context) -> Value:
    value = np.asarray(ctx.attr("value", np.zeros(1, np.float32))).reshape(())
    return ctx.broadcast_to(ctx.constant(value), ctx.sizes_of(0))


def convert_range(ctx: Context) -> Value:
    bounds = [contents_of(ctx.input(i)) for i in range(3)]
    if all(b is not None for b in bounds) and any(is_open(b.item()) for b in bounds if b is not None):
        return _open_range(ctx, *(b.item() for b in bounds if b is not None))
    if (
        dtype_of(ctx.input(0)) in ("int32", "int64")
        and ctx.input(2).is_constant
        and not all(ctx.input(i).is_constant for i in range(2))
    ):
        return _found_range(ctx)
    if dtype_of(ctx.input(0)) in EXACT and not all(ctx.input(i).is_constant for i in range(3)):
        return _open_range_of_floats(ctx)
    start, limit, delta = (ctx.constant_of(i).reshape(()) for i in range(3))
    if not delta:
        raise ctx.fail("delta is zero")
    wide = np.float64 if start.dtype.kind not in "iu" else np.int64
    first, last, step = (v.astype(wide).item() for v in (start, limit, delta))
    count = max(int(np.ceil((last - first) / step)), 0)
    return ctx.constant((first + np.arange(count) * step).astype(start.dtype))


def _found_range(ctx: Context) -> Value:
    """Return a range of integers, one after the other, whose ends the data says."""
    dtype, step = dtype_of(ctx.input(0)), ctx.constant_of(2).reshape(()).item()
    if abs(step) != 1:
        raise NotStatic(f"how many steps of {step} the range has is known only at run time")
    start, limit = (ctx.cast(ctx.reshape(ctx.input(i), ()), "int64") for i in range(2))
    length = ctx.mul(ctx.sub(limit, start), step)
    count = ctx.emit("maximum", length, ctx.constant(0, "int64"))
    (size,) = sizes_of(ctx, [Element(count, 0)])
    return ctx.cast(ctx.add(ctx.mul(ctx.iota(size, "int64"), step), start), dtype)


def _open_range(ctx: Context, start: Size, limit: Size, step: Size) -> Value:
    """Return a range of integers whose ends are sizes."""
    if is_open(step) or step == 0:
        raise NotStatic(f"the step of the range is {step}")
    count = largest(0, ceil_div(limit - start, step) if step > 0 else ceil_div(start - limit, -step))
    dtype = dtype_of(ctx.input(0))
    positions = ctx.iota(count, dtype)
    scaled = positions if step == 1 else ctx.mul(positions, step)
    return scaled if start == 0 else ctx.add(scaled, ctx.size(start, dtype))


def _open_range_of_floats(ctx: Context) -> Value:
    """Return a range of floats whose ends are sizes, possibly with a fraction."""
    ends = [fractions_of(ctx.input(i)) for i in range(3)]
    known = [end.item() for end in ends if end is not None]
    if len(known) < 3:
        raise NotStatic("the ends of the range are no arithmetic on sizes")
    start, limit, step = known
    dtype = dtype_of(ctx.input(0))
    length = limit.plus(start.negated())
    steps = None if length is None else length.over(step)
    count = None if steps is None else steps.ceil(dtype)
    if count is None:
        raise NotStatic(f"how many steps of {step} the range has")
    scaled = ctx.mul(ctx.cast(ctx.iota(largest(0, count)), dtype), ctx.reshape(ctx.input(2), ()))
    return ctx.add(scaled, ctx.reshape(ctx.input(0), ()))


def convert_eye_like(ctx: Context) -> Value:
    x = ctx.input(0)
    rows, columns = ctx.shape(x)
    dtype = ctx.dtype_attr("dtype", dtype_of(x))
    row = ctx.emit("iota", shape=(rows, 1), axis=0, dtype="int64")
    column = ctx.emit("iota", shape=(1, columns), axis=1, dtype="int64")
    return ctx.cast(ctx.equal(ctx.add(row, ctx.attr("k", 0)), column), dtype)


def convert_trilu(ctx: Context) -> Value:
    """Keep one triangle; the diagonal `k` may be a run-time value."""
    x, k = ctx.input(0), ctx.optional(1)
    rank = ctx.rank(x)
    if rank < 2:
        raise ctx.fail(f"operand 0 ({x.type}) is no matrix")
    row = ctx.emit("iota", shape=(ctx.dim(x, rank - 2), 1), axis=0, dtype="int64")
    column = ctx.emit("iota", shape=(1, ctx.dim(x, rank - 1)), axis=1, dtype="int64")
    diagonal = row if k is None else ctx.add(row, ctx.reshape(k, ()))
    keep = ctx.less_equal(diagonal, column) if ctx.attr("upper", 1) else ctx.less_equal(column, diagonal)
    return ctx.select(keep, x, 0)


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "Constant": [(1, convert_constant)],
    "ConstantOfShape": [(9, convert_constant_of_shape)],
    "Range": [(11, convert_range)],
    "EyeLike": [(9, convert_eye_like)],
    "Trilu": [(14, convert_trilu)],
}
