"""Operators that only rearrange: reshape, transpose, concat, split, slice, pad, tile and their relatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod

import numpy as np

from tilestitch.compiler.frontend.converters.found_slices import taken_elements
from tilestitch.compiler.ir import TensorType, Value
from tilestitch.compiler.ir.claims import may_be_equal, may_be_natural
from tilestitch.compiler.ir.sizes import Size, as_size, bounds_of, is_open
from tilestitch.compiler.ir.types import broadcast_shapes

from ..builder import dtype_of, normalize_axis
from ..context import Context, Converted, Versioned
from ..errors import NotStatic
from ..found_sizes import Element, entries_of, sizes_of
from ..symbols import may_be_dropped, quotient_of
from .common import axes_of
from .computed_pads import must_be_computed, pad_as_computed
from .found_slices import found_slice


def convert_reshape(ctx: Context) -> Value:
    x = ctx.input(0)
    target = list(ctx.attr("shape") if ctx.opset < 5 else ctx.ints_of(1))
    if not ctx.attr("allowzero", 0):
        target = _kept_sizes(ctx, x, target)
    return reshaped(ctx, x, _resolved(x, target))


def reshaped(ctx: Context, x: Value, target: Sequence[int]) -> Value:
    """Reshape where element counts are equal only by a claim: adjacent dimensions, as few as possible, take what
    remains of the operand's elements, so that indices can be computed, and are then cropped to the model's (equal)
    sizes.
    """
    if not isinstance(x.type, TensorType) or not x.type.is_sized:
        return ctx.reshape(x, target)
    count = x.tensor_type.num_elements
    if not any(map(is_open, (count, *target))) or prod(target) == count:
        return ctx.reshape(x, target)
    for first, last in sorted(combinations(range(len(target) + 1), 2), key=lambda ends: ends[1] - ends[0]):
        head, size, tail = target[:first], prod(target[first:last]), target[last:]
        rest = prod((*head, *tail))
        left = count // rest if bounds_of(rest)[0] > 0 else 0
        if left * rest == count and any(map(is_open, (left, size))) and may_be_equal(left, size):
            whole, cut = ctx.reshape(x, (*head, left, *tail)), (*head, size, *tail)
            sliced = ctx.emit("slice", whole, starts=(0,) * len(cut), steps=(1,) * len(cut), sizes=cut)
            return ctx.reshape(sliced, target)
    return ctx.reshape(x, target)


def _kept_sizes(ctx: Context, x: Value, target: list[int]) -> list[int]:
    """Return the target with each zero replaced by the operand's size; a symbolic size can be kept as the one -1."""
    if 0 not in target:
        return target
    rank = ctx.rank(x)
    result = list(target)
    for i, size in enumerate(target):
        if size != 0:
            continue
        if i >= rank:
            raise ctx.fail(f"entry {i} of the shape {target} is 0, but operand 0 ({x.type}) has no such dimension")
        dim = x.tensor_type.shape[i]
        if isinstance(dim, str):
            if -1 in result:
                raise NotStatic(f"dimension {i} of %{x.name} ({x.type}) is kept, but known only at run time")
            result[i] = -1
        else:
            result[i] = dim
    return result


def _resolved(x: Value, target: Sequence[int]) -> Sequence[int]:
    """Return the -1 of a target shape as a number where the operand's size is known (with zero-sized operands too)."""
    if -1 not in target or not isinstance(x.type, TensorType) or not x.type.is_sized:
        return target
    rest = prod(d for d in target if d != -1)
    if is_open(rest) or is_open(x.type.num_elements):
        return [quotient_of(x.type.num_elements, rest) if d == -1 else d for d in target]
    if rest:
        return target
    return [0 if d == -1 else d for d in target]


def convert_flatten(ctx: Context) -> Value:
    x = ctx.input(0)
    axis = ctx.attr("axis", 1)
    axis = axis if axis == ctx.rank(x) else ctx.axis(x, axis)
    head, tail = ctx.symbolic_shape(x)[:axis], ctx.symbolic_shape(x)[axis:]
    if ctx.input(0).tensor_type.is_sized:
        return ctx.reshape(x, [prod(ctx.shape(x)[:axis]), prod(ctx.shape(x)[axis:])])
    head_open, tail_open = (any(isinstance(d, str) for d in part) for part in (head, tail))
    if head_open and tail_open:
        raise NotStatic(f"both halves of the flattened operand %{x.name} ({x.type}) have sizes known only at run time")
    sizes = [
        -1 if is_open else prod(d for d in part if isinstance(d, int))
        for part, is_open in ((head, head_open), (tail, tail_open))
    ]
    return ctx.reshape(x, sizes)


def convert_transpose(ctx: Context) -> Value:
    x = ctx.input(0)
    return ctx.transpose(x, ctx.attr("perm", tuple(reversed(range(ctx.rank(x))))))


def convert_squeeze(ctx: Context) -> Value:
    x = ctx.input(0)
    axes = axes_of(ctx, 13, ctx.rank(x))
    shape = ctx.symbolic_shape(x)
    if axes is None:
        axes = tuple(i for i, d in enumerate(ctx.shape(x)) if may_be_dropped(d))
    wrong = [a for a in axes if not isinstance(d := shape[a], str) and not may_be_equal(d, 1)]
    if wrong:
        raise ctx.fail(f"axes {wrong} of operand 0 ({x.type}) are not of size one")
    return ctx.squeeze(_first_along(ctx, x, [a for a in axes if is_open(shape[a])]), axes)


def _first_along(ctx: Context, x: Value, axes: Sequence[int]) -> Value:
    """Return the first elements along axes that have one only by a claim, so that their number is known."""
    for axis in axes:
        x = ctx.slice_axis(x, axis, 0, 1)
    return x


def convert_unsqueeze(ctx: Context) -> Value:
    x = ctx.input(0)
    axes = ctx.attr("axes") if ctx.opset < 13 else ctx.ints_of(1)
    rank = ctx.rank(x) + len(axes)
    positions = [normalize_axis(a, rank) for a in axes]
    if len(set(positions)) != len(positions):
        raise ctx.fail(f"axes {tuple(axes)} name a dimension twice")
    return ctx.expand_dims(x, positions)


def convert_concat(ctx: Context) -> Value:
    values = [ctx.input(i) for i in range(len(ctx.inputs))]
    axis = ctx.attr("axis", 1) if ctx.opset < 4 else ctx.attr("axis")
    return ctx.concat(values, ctx.axis(values[0], axis))


def convert_split(ctx: Context) -> Converted:
    x = ctx.input(0)
    axis = ctx.axis(x, ctx.attr("axis", 0))
    size = ctx.dim(x, axis)
    sizes = (
        ctx.attr("split", None)
        if 2 <= ctx.opset < 13 or (ctx.opset < 2 and ctx.has_attr("split"))
        else _sizes_of_parts(ctx)
    )
    if sizes is None:
        count = ctx.attr("num_outputs", ctx.num_outputs)
        step = -(-size // count)
        sizes = tuple(max(min(step, size - i * step), 0) for i in range(count))
    if not (all(map(may_be_natural, sizes)) and may_be_equal(sum(sizes), size)):
        raise ctx.fail(f"parts {tuple(sizes)} do not add up to the {size} elements of axis {axis}")
    return ctx.split(x, axis, sizes)


def _sizes_of_parts(ctx: Context) -> Sequence[Size] | None:
    """Return the sizes of parts in operand 1, which may be computed; None without it."""
    given = ctx.optional(1)
    entries = None if given is None else entries_of(given)
    if given is None or entries is None:
        return ctx.optional_ints(1)
    if len({each.value for each in entries if isinstance(each, Element)}) > 1:  # one host step finds all of them
        entries = [Element(given, place) if isinstance(e, Element) else e for place, e in enumerate(entries)]
    return sizes_of(ctx, entries)


# -- slice and pad -------------------------------------------------------------------------------------------------


def convert_slice(ctx: Context) -> Value:
    x = ctx.input(0)
    if ctx.opset < 10:
        starts, ends = ctx.attr("starts"), ctx.attr("ends")
        axes = ctx.attr("axes", tuple(range(len(starts))))
        steps = (1,) * len(starts)
    else:
        found = found_slice(ctx)
        if found is not None:
            return found
        starts, ends = ctx.ints_of(1), ctx.ints_of(2)
        axes = ctx.optional_ints(3) or tuple(range(len(starts)))
        steps = ctx.optional_ints(4) or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise ctx.fail(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} do not fit each other")
    shape = ctx.shape(x)
    begin, stride, sizes = [0] * len(shape), [1] * len(shape), list(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = ctx.axis(x, axis)
        begin[axis], sizes[axis] = taken_elements(shape[axis], start, end, step)
        stride[axis] = step
    if sizes == list(shape) and all(s == 1 for s in stride):
        return x
    return ctx.emit("slice", x, starts=tuple(begin), steps=tuple(stride), sizes=tuple(sizes))


def convert_pad(ctx: Context) -> Value:
    x = ctx.input(0)
    rank = ctx.rank(x)
    if ctx.opset < 11:
        pads = ctx.attr("pads" if ctx.opset >= 2 else "paddings")
        fill: Value | None = ctx.like(ctx.attr("value", 0.0), x)
        axes: tuple[int, ...] | None = None
    else:
        entries = entries_of(ctx.input(1))
        if entries is not None and any(map(must_be_computed, entries)):
            return pad_as_computed(ctx, x, entries)
        pads = ctx.ints_of(1)
        given = ctx.optional(2)
        fill = None if given is None else ctx.cast(ctx.reshape(given, ()), dtype_of(x))
        axes = ctx.optional_ints(3)
    axes = tuple(range(rank)) if axes is None else tuple(normalize_axis(a, rank) for a in axes)
    if len(pads) != 2 * len(axes):
        raise ctx.fail(f"{len(pads)} pads are given for {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    mode = ctx.attr("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ctx.fail(f"mode is {mode!r}, none of constant, edge, reflect, wrap")
    if _crops_all(ctx, x, before, after):
        return _only_padding(ctx, x, before, after, mode, fill)
    x = _cropped(ctx, x, before, after)
    positive = [max(p, 0) for p in before], [max(p, 0) for p in after]
    if mode != "constant":
        _check_repeatable(ctx, x, *positive, mode)
    return ctx.pad(x, *positive, mode=mode, value=fill if mode == "constant" else None)


def _check_repeatable(ctx: Context, x: Value, before: Sequence[int], after: Sequence[int], mode: str) -> None:
    """Refuse to pad an empty axis in any mode but constant, as there is no element to repeat."""
    for axis, (head, tail) in enumerate(zip(before, after, strict=True)):
        if x.tensor_type.shape[axis] == 0 and head + tail:
            left = f"the pads of axis {axis} leave no element that mode {mode} could repeat {head + tail} times"
            raise ctx.fail(f"{left}; crop less, or pad in mode constant")


def _crops_all(ctx: Context, x: Value, before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether negative pads remove more than an axis has, so that they remove padding of its other end, too."""
    pairs = zip(before, after, strict=True)
    return any(min(h, 0) + min(t, 0) < -ctx.dim(x, a) for a, (h, t) in enumerate(pairs) if h < 0 or t < 0)


def _only_padding(
    ctx: Context, x: Value, before: Sequence[int], after: Sequence[int], mode: str, fill: Value | None
) -> Value:
    """Return the result where no element of the operand remains."""
    shape = tuple(h + d + t for h, d, t in zip(before, ctx.shape(x), after, strict=True))
    if min(shape) < 0:
        raise ctx.fail(f"pads {(*before, *after)} leave a negative size of an operand of type {x.type}; crop less")
    if mode != "constant":
        left = f"pads {(*before, *after)} remove all of an operand of type {x.type}, which mode {mode} repeats"
        raise ctx.fail(f"{left}; crop less, or pad in mode constant")
    return ctx.broadcast_to(ctx.like(0.0, x) if fill is None else fill, shape)


def _cropped(ctx: Context, x: Value, before: Sequence[int], after: Sequence[int]) -> Value:
    """Return x cropped by negative pads."""
    if min((*before, *after), default=0) >= 0:
        return x
    for axis, (head, tail) in enumerate(zip(before, after, strict=True)):
        if head < 0 or tail < 0:
            size = ctx.dim(x, axis)
            start = min(max(-head, 0), size)
            x = ctx.slice_axis(x, axis, start, max(size + min(tail, 0), start))
    return x


def convert_center_crop_pad(ctx: Context) -> Value:
    """Crop or zero-pad every given axis around its centre."""
    x = ctx.input(0)
    rank = ctx.rank(x)
    axes = [normalize_axis(a, rank) for a in ctx.attr("axes", tuple(range(rank)))]
    before, after = [0] * rank, [0] * rank
    for axis, wanted in zip(axes, ctx.ints_of(1), strict=True):
        size = ctx.dim(x, axis)
        if wanted < 0:
            raise ctx.fail(f"the size wanted of axis {axis} is {wanted}")
        if wanted < size:
            start = (size - wanted) // 2
            x = ctx.slice_axis(x, axis, start, start + wanted)
        else:
            before[axis] = (wanted - size) // 2
            after[axis] = wanted - size - before[axis]
    return ctx.pad(x, before, after)


# -- repeat --------------------------------------------------------------------------------------------------------


def convert_expand(ctx: Context) -> Value:
    x = ctx.input(0)
    target = broadcast_shapes(ctx.shape(x), tuple(_expanded_to(ctx, x)))
    return ctx.broadcast_to(x, [as_size(d) for d in target])


def _expanded_to(ctx: Context, x: Value) -> Sequence[Size]:
    """Return the sizes that an Expand asks for. One that the data says may be 1, which leaves a dimension as it is: so
    it has to meet a dimension of 1.
    """
    entries = entries_of(ctx.input(1))
    if entries is None or not any(isinstance(entry, Element) for entry in entries):
        return ctx.ints_of(1)
    for entry, size in zip(reversed(entries), reversed(ctx.shape(x))):
        if isinstance(entry, Element) and size != 1:
            raise NotStatic(f"whether a dimension of {size} is expanded is known only at run time")
    return ctx.sizes_of(1)


def convert_tile(ctx: Context) -> Value:
    x = ctx.input(0)
    shape = ctx.shape(x)
    if ctx.opset < 6:
        repeats = [1] * len(shape)
        repeats[ctx.axis(x, ctx.ints_of(2)[0])] = ctx.ints_of(1)[0]
    else:
        repeats = list(ctx.ints_of(1))
    if len(repeats) != len(shape) or any(r < 0 for r in repeats):
        raise ctx.fail(f"repeats {repeats} do not fit operand 0 ({x.type})")
    if all(r == 1 for r in repeats):
        return x
    split, spread = [], []
    for size, repeat in zip(shape, repeats, strict=True):
        split += [size] if repeat == 1 else [1, size]
        spread += [size] if repeat == 1 else [repeat, size]
    return ctx.reshape(
        ctx.broadcast_to(ctx.reshape(x, split), spread), [s * r for s, r in zip(shape, repeats, strict=True)]
    )


# -- blocks --------------------------------------------------------------------------------------------------------


def convert_depth_to_space(ctx: Context) -> Value:
    x, block = ctx.input(0), ctx.attr("blocksize")
    batch, channels, *spatial = ctx.shape(x)
    count = len(spatial)
    factor = block**count
    if not may_be_equal(channels % factor, 0):
        raise ctx.fail(f"{channels} channels are not a multiple of {factor}")
    mode = ctx.attr("mode", "DCR")
    blocks, depth = (block,) * count, channels // factor
    x = _cut(ctx, x, (batch, depth * factor, *spatial))
    if mode == "DCR":
        split = ctx.reshape(x, (batch, *blocks, depth, *spatial))
        first, channel = 1, 1 + count
    elif mode == "CRD":
        split = ctx.reshape(x, (batch, depth, *blocks, *spatial))
        first, channel = 2, 1
    else:
        raise ctx.fail(f"mode is {mode!r}, neither DCR nor CRD")
    woven = [axis for i in range(count) for axis in (2 + count + i, first + i)]
    return ctx.reshape(ctx.transpose(split, (0, channel, *woven)), (batch, depth, *(s * block for s in spatial)))


def convert_space_to_depth(ctx: Context) -> Value:
    x, block = ctx.input(0), ctx.attr("blocksize")
    batch, channels, *spatial = ctx.shape(x)
    if not all(may_be_equal(s % block, 0) for s in spatial):
        raise ctx.fail(f"spatial sizes {spatial} are not multiples of {block}")
    count = len(spatial)
    x = _cut(ctx, x, (batch, channels, *(s // block * block for s in spatial)))
    split = ctx.reshape(x, (batch, channels, *(d for s in spatial for d in (s // block, block))))
    inner = [3 + 2 * i for i in range(count)]
    outer = [2 + 2 * i for i in range(count)]
    mode = ctx.attr("mode", "DCR")
    order = (0, *inner, 1, *outer) if mode == "DCR" else (0, 1, *inner, *outer)
    return ctx.reshape(ctx.transpose(split, order), (batch, channels * block**count, *(s // block for s in spatial)))


def _cut(ctx: Context, x: Value, whole: tuple[Size, ...]) -> Value:
    """Return a tensor as one whose shape equals its own only by a claim: indices are computed with multiples."""
    if whole == tuple(ctx.shape(x)):
        return x
    return ctx.emit("slice", x, starts=(0,) * len(whole), steps=(1,) * len(whole), sizes=whole)


# -- shapes as values ----------------------------------------------------------------------------------------------


def convert_shape(ctx: Context) -> Value:
    x = ctx.input(0)
    dims = ctx.symbolic_shape(x)[slice(ctx.attr("start", 0), ctx.attr("end", None))]
    if any(isinstance(d, str) for d in dims):
        raise NotStatic(f"the shape of %{x.name} ({x.type}) is known only at run time")
    return ctx.sizes(np.array(dims, object), TensorType("int64", (len(dims),)))


def convert_size(ctx: Context) -> Value:
    return ctx.size(prod(ctx.shape(ctx.input(0))))


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "Reshape": [(1, convert_reshape)],
    "Flatten": [(1, convert_flatten)],
    "Transpose": [(1, convert_transpose)],
    "Squeeze": [(1, convert_squeeze)],
    "Unsqueeze": [(1, convert_unsqueeze)],
    "Concat": [(1, convert_concat)],
    "Split": [(1, convert_split)],
    "Slice": [(1, convert_slice)],
    "Pad": [(1, convert_pad)],
    "CenterCropPad": [(18, convert_center_crop_pad)],
    "Expand": [(8, convert_expand)],
    "Tile": [(1, convert_tile)],
    "DepthToSpace": [(1, convert_depth_to_space)],
    "SpaceToDepth": [(1, convert_space_to_depth)],
    "Shape": [(1, convert_shape)],
    "Size": [(1, convert_size)],
}
