"""Run-time forms of nodes whose shapes, axes or bounds are known only at run time.

Each is a host step of the same name as the ONNX operator, which takes ONNX's operands and attributes; opsets that gave
an operand as an attribute are brought to the newest form. The types state all that is known: the dtype always, the rank
where it can be derived, single dimensions where they cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilestitch.compiler.frontend.builder import dtype_of
from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.frontend.errors import NotStatic
from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, TensorType, Type, Value
from tilestitch.compiler.ir.sizes import bounds_of
from tilestitch.runtime.host.shaping import slice_index

from . import dynamic_folding, dynamic_images, host_ops
from .found_slices import cuts_of, sizes_after
from .host_types import (
    Dim,
    constant_ints,
    ints_operand,
    length_of,
    present,
    rank_or_none,
    resized,
    tensor_step,
    unknown_tensor,
    with_unknown,
)


def shape(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    rank = rank_or_none(x)
    count: Dim = UNKNOWN if rank is None else len(range(rank)[ctx.attr("start", 0) : ctx.attr("end", None)])
    return ctx.host("Shape", (x,), [TensorType("int64", (count,))], **present(ctx, "start", "end"))


def size(ctx: Context) -> Sequence[Value]:
    return ctx.host("Size", (ctx.input(0),), [TensorType("int64", ())])


def reshape(ctx: Context) -> Sequence[Value]:
    x, target = ctx.input(0), ctx.input(1)
    return tensor_step(ctx, "Reshape", (x, target), [_reshaped_type(ctx, x, target)], **present(ctx, "allowzero"))


def _reshaped_type(ctx: Context, x: Value, target: Value) -> Type:
    sizes = constant_ints(target)
    if sizes is None:
        return unknown_tensor(dtype_of(x), length_of(target))
    dims: list[Dim] = []
    for i, d in enumerate(sizes):
        if d > 0 or (d == 0 and ctx.attr("allowzero", 0)):
            dims.append(d)
        elif d == 0 and isinstance(x.type, TensorType) and i < x.type.rank:
            dims.append(x.type.shape[i])
        else:
            dims.append(UNKNOWN)
    return TensorType(dtype_of(x), tuple(dims))


def flatten(ctx: Context) -> Sequence[Value]:
    x, axis = ctx.input(0), ctx.attr("axis", 1)
    dims: list[Dim] = [UNKNOWN, UNKNOWN]
    if isinstance(x.type, TensorType):
        split = axis + x.type.rank if axis < 0 else axis
        dims = [_product(x.type.shape[:split]), _product(x.type.shape[split:])]
    return tensor_step(ctx, "Flatten", (x,), [TensorType(dtype_of(x), tuple(dims))], axis=axis)


def _product(dims: Sequence[Dim]) -> Dim:
    """Return the number of elements, or the one symbol among ones."""
    rest = [d for d in dims if d != 1]
    if len(rest) == 1:
        return rest[0]
    known = [d for d in rest if isinstance(d, int)]
    return prod(known) if len(known) == len(rest) else UNKNOWN


def expand(ctx: Context) -> Sequence[Value]:
    x, target = ctx.input(0), ctx.input(1)
    rank, wanted = rank_or_none(x), length_of(target)
    type_ = unknown_tensor(dtype_of(x), None if rank is None or wanted is None else max(rank, wanted))
    if isinstance(type_, TensorType) and isinstance(x.type, TensorType):
        # A dimension other than one is the same after any broadcast that succeeds.
        source = (1,) * (type_.rank - x.type.rank) + x.type.shape
        sizes = constant_ints(target)
        asked = (None,) * type_.rank if sizes is None else (1,) * (type_.rank - len(sizes)) + sizes
        type_ = type_.with_shape(tuple(_expanded(d, s) for d, s in zip(source, asked, strict=True)))
    return tensor_step(ctx, "Expand", (x, target), [type_])


def _expanded(dim: Dim, asked: int | None) -> Dim:
    if isinstance(dim, int) and dim != 1:
        return dim
    if asked is None or (isinstance(dim, str) and asked == 1):
        return dim if asked == 1 else UNKNOWN
    return asked


def tile(ctx: Context) -> Sequence[Value]:
    x, repeats = ctx.input(0), ctx.input(1)
    counts = constant_ints(repeats)
    type_ = with_unknown(x, None)
    if counts is not None:
        type_ = resized(x, dict(enumerate(counts)), lambda size, count: size * count)
    if isinstance(type_, AnyRankTensor):
        type_ = unknown_tensor(type_.dtype, length_of(repeats))
    return tensor_step(ctx, "Tile", (x, repeats), [type_])


MOST_AXES = 32
"""Most axes of a tensor: more starts than this are not known to be few."""


def slice_(ctx: Context) -> Sequence[Value]:
    x, starts, ends = ctx.input(0), ints_operand(ctx, 1, "starts"), ints_operand(ctx, 2, "ends")
    axes = ints_operand(ctx, 3, "axes")
    if starts is None or ends is None:
        raise ctx.fail("starts and ends are required")
    steps, count = ctx.optional(4), _most(starts)
    cut = constant_ints(axes) if axes is not None else None if count is None else tuple(range(count))
    type_ = with_unknown(x, cut)
    firsts, lasts = constant_ints(starts), constant_ints(ends)
    strides = (1,) * len(cut or ()) if steps is None else constant_ints(steps)
    if cut is not None and firsts is not None and lasts is not None and strides is not None:
        type_ = resized(x, dict(zip(cut, zip(firsts, lasts, strides, strict=True), strict=True)), _sliced_size)
    elif isinstance(type_, TensorType) and isinstance(x.type, TensorType):
        cuts = cuts_of(x, starts, ends, axes, steps)
        type_ = type_ if cuts is None else type_.with_shape(sizes_after(cuts, x.type))
    return tensor_step(ctx, "Slice", (x, starts, ends, axes, steps), [type_])


def _most(vector: Value) -> int | None:
    """Return the most elements that a vector can have, if that is known."""
    if not isinstance(vector.type, TensorType) or not vector.type.is_sized:
        return length_of(vector)
    most = bounds_of(prod(vector.type.sizes))[1]
    return most if most <= MOST_AXES else None


def _sliced_size(size: int, bounds: tuple[int, int, int]) -> int:
    start, end, step = bounds
    (index,) = slice_index((size,), [start], [end], None, [step])
    return len(range(size)[index])


def pad(ctx: Context) -> Sequence[Value]:
    x, pads, axes = ctx.input(0), ints_operand(ctx, 1, "pads"), ctx.optional(3)
    value = ctx.optional(2)
    if value is None and ctx.has_attr("value"):
        value = ctx.like(ctx.attr("value"), x)
    type_ = with_unknown(x, None if axes is None else constant_ints(axes))
    amounts = constant_ints(pads)
    places = constant_ints(axes) if axes is not None else tuple(range(len(amounts or ()) // 2))
    if amounts is not None and places is not None and len(amounts) == 2 * len(places):
        added = [b + a for b, a in zip(amounts[: len(places)], amounts[len(places) :], strict=True)]
        type_ = resized(x, dict(zip(places, added, strict=True)), lambda size, more: max(size + more, 0))
    return tensor_step(ctx, "Pad", (x, pads, value, axes), [type_], **present(ctx, "mode"))


def squeeze(ctx: Context) -> Sequence[Value]:
    x, axes = ctx.input(0), ints_operand(ctx, 1, "axes")
    return tensor_step(ctx, "Squeeze", (x, axes), [_squeezed_type(x, axes)])


def _squeezed_type(x: Value, axes: Value | None) -> Type:
    dtype = dtype_of(x)
    if not isinstance(x.type, TensorType):
        return AnyRankTensor(dtype)
    if axes is None:
        return (
            AnyRankTensor(dtype)
            if not x.type.is_static
            else x.type.with_shape(tuple(d for d in x.type.shape if d != 1))
        )
    dropped, count = constant_ints(axes), length_of(axes)
    if dropped is None:
        return unknown_tensor(dtype, None if count is None else x.type.rank - count)
    gone = {a % x.type.rank for a in dropped}
    return x.type.with_shape(tuple(d for i, d in enumerate(x.type.shape) if i not in gone))


def unsqueeze(ctx: Context) -> Sequence[Value]:
    x, axes = ctx.input(0), ints_operand(ctx, 1, "axes")
    if axes is None:
        raise ctx.fail("axes are required")
    count, places = length_of(axes), constant_ints(axes)
    rank = None if count is None or not isinstance(x.type, TensorType) else x.type.rank + count
    type_ = unknown_tensor(dtype_of(x), rank)
    if rank is not None and places is not None and isinstance(x.type, TensorType):
        dims = list(x.type.shape)
        for place in sorted(p % rank for p in places):
            dims.insert(place, 1)
        type_ = x.type.with_shape(tuple(dims))
    return tensor_step(ctx, "Unsqueeze", (x, axes), [type_])


def split(ctx: Context) -> Sequence[Value]:
    x, sizes, axis = ctx.input(0), ints_operand(ctx, 1, "split"), ctx.attr("axis", 0)
    known = constant_ints(sizes)
    base = with_unknown(x, (axis,))
    types: list[Type] = []
    for i in range(ctx.num_outputs):
        if known is not None and isinstance(base, TensorType) and i < len(known):
            place = axis % base.rank
            types.append(base.with_shape((*base.shape[:place], known[i], *base.shape[place + 1 :])))
        else:
            types.append(base)
    return tensor_step(ctx, "Split", (x, sizes), types, axis=axis, num_outputs=ctx.num_outputs)


def concat(ctx: Context) -> Sequence[Value]:
    values = [ctx.input(i) for i in range(len(ctx.inputs))]
    ranks = [r for r in map(rank_or_none, values) if r is not None]
    type_ = unknown_tensor(dtype_of(values[0]), ranks[0] if ranks else None)
    return tensor_step(ctx, "Concat", values, [type_], axis=ctx.attr("axis", 1))


def transpose(ctx: Context) -> Sequence[Value]:
    x, perm = ctx.input(0), ctx.attr("perm", None)
    type_ = unknown_tensor(dtype_of(x), None if perm is None else len(perm))
    return tensor_step(ctx, "Transpose", (x,), [type_], **present(ctx, "perm"))


def range_(ctx: Context) -> Sequence[Value]:
    values = [ctx.input(i) for i in range(3)]
    return tensor_step(ctx, "Range", values, [TensorType(dtype_of(values[0]), (UNKNOWN,))])


def constant_of_shape(ctx: Context) -> Sequence[Value]:
    target = ctx.input(0)
    value = ctx.constant(ctx.attr("value")) if ctx.has_attr("value") else ctx.constant([0.0], "float32")
    return tensor_step(ctx, "ConstantOfShape", (target, value), [unknown_tensor(value.dtype, length_of(target))])


def center_crop_pad(ctx: Context) -> Sequence[Value]:
    x, target = ctx.input(0), ctx.input(1)
    type_ = with_unknown(x, ctx.attr("axes", None))
    return tensor_step(ctx, "CenterCropPad", (x, target), [type_], **present(ctx, "axes"))


def eye_like(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    dtype = ctx.dtype_attr("dtype", dtype_of(x))
    type_ = x.type.with_dtype(dtype) if isinstance(x.type, TensorType) else TensorType(dtype, (UNKNOWN, UNKNOWN))
    return tensor_step(ctx, "EyeLike", (x,), [type_], dtype=dtype, k=ctx.attr("k", 0))


def trilu(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    return tensor_step(ctx, "Trilu", (x, ctx.optional(1)), [x.type], **present(ctx, "upper"))


def one_hot(ctx: Context) -> Sequence[Value]:
    indices, depth, values = ctx.input(0), ctx.input(1), ctx.input(2)
    axis = ctx.attr("axis", -1)
    type_: Type = AnyRankTensor(dtype_of(values))
    if isinstance(indices.type, TensorType):
        dims = list(indices.type.shape)
        count = constant_ints(depth)
        dims.insert(axis + len(dims) + 1 if axis < 0 else axis, UNKNOWN if count is None else count[0])
        type_ = TensorType(dtype_of(values), tuple(dims))
    return tensor_step(ctx, "OneHot", (indices, depth, values), [type_], axis=axis)


def compress(ctx: Context) -> Sequence[Value]:
    x, condition = ctx.input(0), ctx.input(1)
    type_: Type = TensorType(dtype_of(x), (UNKNOWN,))
    if ctx.has_attr("axis"):
        type_ = with_unknown(x, (ctx.attr("axis"),))
    return tensor_step(ctx, "Compress", (x, condition), [type_], **present(ctx, "axis"))


def dropout(ctx: Context) -> Sequence[Value]:
    """Convert Dropout with a training_mode that is not a constant."""
    if ctx.opset < 12:
        raise NotStatic("Dropout of this opset has no training mode at run time")
    x = ctx.input(0)
    mask = x.type.with_dtype("bool") if isinstance(x.type, TensorType) else AnyRankTensor("bool")
    values = (x, ctx.optional(1), ctx.optional(2))
    given = [ctx.none() if v is None else v for v in values]
    return ctx.host("Dropout", given, [x.type, mask], **present(ctx, "seed"))


DYNAMIC: Mapping[str, Sequence[Versioned]] = {
    "Shape": [(1, shape)],
    "Size": [(1, size)],
    "Reshape": [(5, reshape)],
    "Flatten": [(1, flatten)],
    "Expand": [(8, expand)],
    "Tile": [(6, tile)],
    "Slice": [(1, slice_)],
    "Pad": [(2, pad)],
    "Squeeze": [(1, squeeze)],
    "Unsqueeze": [(1, unsqueeze)],
    "Split": [(2, split)],
    "Concat": [(1, concat)],
    "Transpose": [(1, transpose)],
    "Range": [(11, range_)],
    "ConstantOfShape": [(9, constant_of_shape)],
    "CenterCropPad": [(18, center_crop_pad)],
    "EyeLike": [(9, eye_like)],
    "Trilu": [(14, trilu)],
    "OneHot": [(9, one_hot)],
    "Compress": [(9, compress)],
    "Dropout": [(12, dropout)],
    **dynamic_folding.DYNAMIC,
    **dynamic_images.DYNAMIC,
    **host_ops.DYNAMIC,
}
"""Operator -> its run-time forms, each with the opset version from which on it is correct."""
