"""Type rules of the primitives: from operand types and attributes to output types; all accept symbolic dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from .blocks import BlockFormat
from .claims import may_be_equal, may_be_natural
from .errors import TypeRuleError
from .sizes import Size, ceil_div, is_open
from .types import (
    UNKNOWN,
    AnyRankTensor,
    Dim,
    Shape,
    TensorType,
    Type,
    broadcast_shapes,
    dims_compatible,
    dtype_kind,
    is_dtype,
    is_float,
    is_integer,
    storage_bytes,
)

Attrs = Mapping[str, Any]

_BYTES = ("int8", "uint8")
_TABLE = re.compile("[0-9a-f]{512}")


def _tensors(inputs: Sequence[Type]) -> list[TensorType]:
    tensors = [t for t in inputs if isinstance(t, TensorType)]
    if len(tensors) != len(inputs):
        raise TypeRuleError("operands must be tensors of known rank")
    return tensors


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TypeRuleError(message)


# -- element-wise ------------------------------------------------------------------------------------------------


def _elementwise_any_rank(inputs: Sequence[Type], dtype: str) -> list[Type] | None:
    """Return output types if an operand has unknown rank, on which element-wise operators work as host steps; else
    None.
    """
    if any(isinstance(t, AnyRankTensor) for t in inputs):
        return [AnyRankTensor(dtype)]
    return None


def _dtype_of(type_: Type) -> str:
    if isinstance(type_, (TensorType, AnyRankTensor)):
        return type_.dtype
    raise TypeRuleError("operands must be tensors")


def _same(inputs: Sequence[Type], kinds: tuple[str, ...]) -> list[Type]:
    _require(dtype_kind(_dtype_of(inputs[0])) in kinds, f"dtype must be of kind {' or '.join(kinds)}")
    return [inputs[0]]


def same_numeric(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    return _same(inputs, ("float", "int", "uint", "complex"))


def same_float(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    return _same(inputs, ("float", "complex"))


def same_bool(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    return _same(inputs, ("bool",))


def same_integer(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    return _same(inputs, ("int", "uint"))


def float_to_bool(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    _require(is_float(_dtype_of(inputs[0])), "dtype must be a float")
    return [_with_dtype(inputs[0], "bool")]


def _with_dtype(type_: Type, dtype: str) -> Type:
    if isinstance(type_, AnyRankTensor):
        return AnyRankTensor(dtype)
    assert isinstance(type_, TensorType)
    return type_.with_dtype(dtype)


def cast(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    _require(is_dtype(attrs["to"]), f"unknown dtype {attrs['to']!r}")
    _dtype_of(inputs[0])
    return [_with_dtype(inputs[0], attrs["to"])]


def bit_cast(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    source = _dtype_of(inputs[0])
    _require(
        is_dtype(attrs["to"]) and storage_bytes(source) == storage_bytes(attrs["to"]),
        "dtypes must be of the same width",
    )
    return [_with_dtype(inputs[0], attrs["to"])]


def look_up(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    _require(_dtype_of(inputs[0]) in _BYTES and attrs["to"] in _BYTES, "operand and result must be int8 or uint8")
    table = attrs["table"]
    _require(isinstance(table, str) and bool(_TABLE.fullmatch(table)), "`table` must be 512 hexadecimal digits")
    return [_with_dtype(inputs[0], attrs["to"])]


def _pair(inputs: Sequence[Type], dtype: str) -> list[Type]:
    any_rank = _elementwise_any_rank(inputs, dtype)
    if any_rank is not None:
        return any_rank
    return [TensorType(dtype, broadcast_shapes(*(t.shape for t in _tensors(inputs))))]


def _same_dtypes(inputs: Sequence[Type]) -> str:
    dtypes = {_dtype_of(t) for t in inputs}
    _require(len(dtypes) == 1, "operands must have one dtype")
    return dtypes.pop()


def same_pair(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    dtype = _same_dtypes(inputs)
    _require(dtype not in ("bool", "string"), "operands must be numeric")
    return _pair(inputs, dtype)


def power(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    return _pair(inputs, _dtype_of(inputs[0]))


def compare(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    _same_dtypes(inputs)
    return _pair(inputs, "bool")


def same_bool_pair(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    _require(_same_dtypes(inputs) == "bool", "operands must be bool")
    return _pair(inputs, "bool")


def same_integer_pair(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    dtype = _same_dtypes(inputs)
    _require(is_integer(dtype), "operands must be integers")
    return _pair(inputs, dtype)


def select(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    _require(_dtype_of(inputs[0]) == "bool", "the condition must be bool")
    return _pair(inputs, _same_dtypes(inputs[1:]))


# -- views and data movement -------------------------------------------------------------------------------------


def reshape(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    dtype, target = _dtype_of(inputs[0]), tuple(attrs["shape"])
    source = inputs[0]
    wild = [i for i, d in enumerate(target) if d == -1]
    fits = all(is_open(d) or (isinstance(d, int) and d >= -1) for d in target)
    _require(len(wild) <= 1 and fits, f"bad target shape {target}")
    if not isinstance(source, TensorType) or not source.is_sized:
        return [TensorType(dtype, tuple(UNKNOWN if d == -1 else d for d in target))]
    count, rest = source.num_elements, prod(d for d in target if d != -1)
    if wild:
        _require(rest > 0 and (is_open(count % rest) or count % rest == 0), f"{count} elements do not fit {target}")
        target = tuple(count // rest if d == -1 else d for d in target)
    _require(dims_compatible(prod(target), count), f"{count} elements do not fit {target}")
    return [TensorType(dtype, target)]


def transpose(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    (x,) = _tensors(inputs)
    perm = tuple(attrs["perm"])
    _require(sorted(perm) == list(range(x.rank)), f"perm {perm} is no permutation of {x.rank} axes")
    return [x.with_shape(tuple(x.shape[p] for p in perm))]


def broadcast_to(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    (x,) = _tensors(inputs)
    shape = tuple(attrs["shape"])
    result = broadcast_shapes(x.shape, shape)
    _require(
        all(dims_compatible(a, b) for a, b in zip(result, shape, strict=False)) and len(result) == len(shape),
        f"does not broadcast to {shape}",
    )
    return [x.with_shape(shape)]


def slice_(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    (x,) = _tensors(inputs)
    starts, steps, sizes = (tuple(attrs[a]) for a in ("starts", "steps", "sizes"))
    _require(len(starts) == len(steps) == len(sizes) == x.rank, "starts, steps and sizes need one entry a dimension")
    for dim, start, step, size in zip(x.shape, starts, steps, sizes, strict=True):
        last = start + step * (size - 1)
        inside = isinstance(dim, str) or size == 0 or _inside(start, last, step, dim)
        _require(
            step != 0 and may_be_natural(size) and inside,
            f"start {start}, step {step}, size {size} leave a dimension of {dim}",
        )
    return [x.with_shape(sizes)]


def _inside(start: Size, last: Size, step: int, dim: Size) -> bool:
    """Return whether positions from `start` to `last` may lie in a dimension; an empty range has `last` before
    `start`.
    """
    lowest, highest = (start, last) if step > 0 else (last, start)
    return may_be_natural(lowest) and may_be_natural(dim - 1 - highest)


def concat(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    tensors, axis = _tensors(inputs), attrs["axis"]
    _same_dtypes(inputs)
    first = tensors[0]
    _require(0 <= axis < first.rank and all(t.rank == first.rank for t in tensors), f"axis {axis} or ranks do not fit")
    shape: list[Dim] = []
    for i in range(first.rank):
        dims = [t.shape[i] for t in tensors]
        if i == axis:
            shape.append(
                UNKNOWN if any(isinstance(d, str) for d in dims) else sum(d for d in dims if not isinstance(d, str))
            )
            continue
        _require(all(dims_compatible(dims[0], d) for d in dims), f"dimension {i} differs: {dims}")
        known = [d for d in dims if not isinstance(d, str)]
        shape.append(next((d for d in known if not is_open(d)), next(iter(known), dims[0])))
    return [first.with_shape(tuple(shape))]


def pad(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x = _tensors(inputs)[0]
    before, after = tuple(attrs["before"]), tuple(attrs["after"])
    _require(
        len(before) == len(after) == x.rank and all(map(may_be_natural, (*before, *after))),
        "pads need one entry >= 0 a dimension",
    )
    _require(attrs["mode"] in ("constant", "edge", "reflect", "wrap"), f"unknown mode {attrs['mode']!r}")
    empty = any(d == 0 and b + a != 0 for d, b, a in zip(x.shape, before, after, strict=True))
    _require(attrs["mode"] == "constant" or not empty, f"mode {attrs['mode']} has nothing to repeat of {x}")
    return [x.with_shape(tuple(_padded(d, b + a) for d, b, a in zip(x.shape, before, after, strict=True)))]


def _padded(dim: Dim, amount: Size) -> Dim:
    if not isinstance(dim, str):
        return dim + amount
    return dim if amount == 0 else UNKNOWN


def iota(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    shape = tuple(attrs["shape"])
    _require(0 <= attrs["axis"] < len(shape), f"axis {attrs['axis']} is not in shape {shape}")
    return [TensorType(attrs["dtype"], shape)]


def sizes(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    shape, count = tuple(attrs["shape"]), len(attrs["values"])
    _require(all(isinstance(d, int) for d in shape) and prod(shape) == count, f"{count} sizes do not fill {shape}")
    return [TensorType(attrs["dtype"], shape)]


def _require_indices(type_: TensorType) -> None:
    _require(type_.dtype in ("int32", "int64"), "indices must be int32 or int64")


def gather(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, indices = _tensors(inputs)
    axis = attrs["axis"]
    _require_indices(indices)
    _require(0 <= axis < x.rank, f"axis {axis} out of range")
    return [x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))]


def gather_elements(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, indices = _tensors(inputs)
    _require_indices(indices)
    _require_within(indices, x, attrs["axis"])
    return [x.with_shape(indices.shape)]


def gather_nd(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, indices = _tensors(inputs)
    batch = attrs["batch_dims"]
    _require_indices(indices)
    depth = indices.shape[-1] if indices.rank else None
    _require(
        isinstance(depth, int) and batch + depth <= x.rank and batch < indices.rank,
        "the last dimension of indices must index x",
    )
    assert isinstance(depth, int)
    _require(all(map(dims_compatible, x.shape[:batch], indices.shape[:batch])), f"{batch} first dimensions differ")
    return [x.with_shape((*indices.shape[:-1], *x.shape[batch + depth :]))]


# -- reductions and contractions ---------------------------------------------------------------------------------


def _reduced(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    _require(
        all(0 <= a < len(shape) for a in axes) and len(set(axes)) == len(axes),
        f"axes {tuple(axes)} do not fit rank {len(shape)}",
    )
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def reduce(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    (x,) = _tensors(inputs)
    _require(x.dtype != "string", "strings do not reduce")
    return [x.with_shape(_reduced(x.shape, attrs["axes"], attrs["keepdims"]))]


def reduce_bits(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    _require(is_integer(_dtype_of(inputs[0])), "only integers have bits to reduce")
    return reduce(inputs, attrs)


def arg_reduce(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    (x,) = _tensors(inputs)
    return [TensorType("int64", _reduced(x.shape, (attrs["axis"],), attrs["keepdims"]))]


def matmul(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    a, b = _tensors(inputs)
    _require(a.rank >= 2 and b.rank >= 2, "operands need rank >= 2")
    widened = attrs.get("out_dtype")
    _require(a.dtype == b.dtype or widened is not None, "operands of different dtypes need out_dtype")
    m, ka = (a.shape[-1], a.shape[-2]) if attrs.get("trans_a") else (a.shape[-2], a.shape[-1])
    kb, n = (b.shape[-1], b.shape[-2]) if attrs.get("trans_b") else (b.shape[-2], b.shape[-1])
    _require(dims_compatible(ka, kb), f"inner dimensions {ka} and {kb} differ")
    return [TensorType(widened or a.dtype, (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, n))]


def block_matmul(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, w, *chosen = _tensors(inputs)
    form = BlockFormat.of(attrs)
    _require(form.problem is None, form.problem or "")
    _require(x.rank >= 2 and is_float(x.dtype), "x is of floats, of rank >= 2")
    _require(w.rank == 3 + len(chosen) and w.dtype == "uint8", "weights are uint8[.., N, blocks, bytes of a block]")
    _require(dims_compatible(x.shape[-1], form.depth), f"inner dimensions {x.shape[-1]} and {form.depth} differ")
    _require(w.shape[-2:] == (form.blocks, form.block_bytes), f"blocks are {form.blocks} of {form.block_bytes} bytes")
    for indices in chosen:
        _require(x.rank == 3 and is_integer(indices.dtype) and indices.rank == 1, "x is [B, M, K] with indices[B]")
        _require(dims_compatible(indices.shape[0], x.shape[0]), f"{indices.shape[0]} indices for {x.shape[0]} matrices")
    return [TensorType(attrs.get("out_dtype") or x.dtype, (*x.shape[:-1], w.shape[-3]))]


def _split_layout(x: TensorType, layout: str) -> tuple[Dim, Dim, Shape]:
    _require(x.rank >= 3 and layout in ("NCX", "NXC"), f"rank {x.rank} or layout {layout!r} does not fit")
    return (x.shape[0], x.shape[1], x.shape[2:]) if layout == "NCX" else (x.shape[0], x.shape[-1], x.shape[1:-1])


def _join_layout(batch: Dim, channels: Dim, spatial: Shape, layout: str) -> Shape:
    return (batch, channels, *spatial) if layout == "NCX" else (batch, *spatial, channels)


def _window_sizes(spatial: Shape, kernel: Sequence[Dim], attrs: Attrs) -> Shape:
    rank = len(spatial)
    _require(
        all(len(attrs[a]) == rank for a in ("strides", "before", "after", "dilations")) and len(kernel) == rank,
        "strides, pads, dilations and kernel need one entry a spatial axis",
    )
    return tuple(
        _window_size(
            spatial[i], kernel[i], attrs["strides"][i], attrs["before"][i] + attrs["after"][i], attrs["dilations"][i]
        )
        for i in range(rank)
    )


def _window_size(size: Dim, kernel: Dim, stride: int, padding: int, dilation: int) -> Dim:
    if isinstance(size, str) or isinstance(kernel, str):
        return UNKNOWN
    span = size + padding - (dilation * (kernel - 1) + 1)
    _require(
        may_be_natural(span),
        f"a window of {kernel} (dilation {dilation}) does not fit {size} elements with {padding} of padding",
    )
    return span // stride + 1


def conv(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, w = _tensors(inputs)
    layout, groups = attrs["layout"], attrs["groups"]
    batch, channels, spatial = _split_layout(x, layout)
    _require(w.rank == x.rank, "x and w must have one rank")
    out, per_group, kernel = (
        (w.shape[0], w.shape[1], w.shape[2:]) if layout == "NCX" else (w.shape[-1], w.shape[-2], w.shape[:-2])
    )
    fits = isinstance(channels, str) or isinstance(per_group, str) or may_be_equal(channels, per_group * groups)
    fits &= isinstance(out, str) or is_open(out) or out % groups == 0
    _require(fits, f"{channels} channels, {groups} groups, weight {w} do not fit")
    _require(x.dtype == w.dtype or attrs.get("out_dtype") is not None, "operands of different dtypes need out_dtype")
    shape = _join_layout(batch, out, _window_sizes(spatial, kernel, attrs), layout)
    return [TensorType(attrs.get("out_dtype") or x.dtype, shape)]


def conv_transpose(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, w = _tensors(inputs)
    layout, groups = attrs["layout"], attrs["groups"]
    batch, channels, spatial = _split_layout(x, layout)
    _require(w.rank == x.rank, "x and w must have one rank")
    in_channels, per_group, kernel = (
        (w.shape[0], w.shape[1], w.shape[2:]) if layout == "NCX" else (w.shape[-2], w.shape[-1], w.shape[:-2])
    )
    _require(dims_compatible(channels, in_channels), f"x has {channels} channels, w expects {in_channels}")
    sizes: list[Dim] = []
    for i, (size, k) in enumerate(zip(spatial, kernel, strict=True)):
        if isinstance(size, str) or isinstance(k, str):
            sizes.append(UNKNOWN)
            continue
        full = (size - 1) * attrs["strides"][i] + (k - 1) * attrs["dilations"][i] + 1
        left = full - attrs["before"][i] - attrs["after"][i] + attrs["output_padding"][i]
        _require(may_be_natural(left), f"{left} elements are left of axis {i}")
        sizes.append(left)
    out: Dim = UNKNOWN if isinstance(per_group, str) else per_group * groups
    return [TensorType(attrs.get("out_dtype") or x.dtype, _join_layout(batch, out, tuple(sizes), layout))]


def window_reduce(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    (x,) = _tensors(inputs)
    _require(attrs["reducer"] in ("sum", "max"), f"unknown reducer {attrs['reducer']!r}")
    batch, channels, spatial = _split_layout(x, attrs["layout"])
    return [
        x.with_shape(_join_layout(batch, channels, _window_sizes(spatial, attrs["kernel"], attrs), attrs["layout"]))
    ]


# -- templates of their own --------------------------------------------------------------------------------------


def top_k(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    (x,) = _tensors(inputs)
    k, axis = attrs["k"], attrs["axis"]
    _require(0 <= axis < x.rank, f"axis {axis} out of range")
    dim = x.shape[axis]
    fits = isinstance(dim, str) or may_be_natural(dim - k)
    _require(may_be_natural(k) and fits, f"k = {k} of {dim} elements")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [x.with_shape(shape), TensorType("int64", shape)]


def order_rows(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    (x,) = _tensors(inputs)
    _require(x.rank == 2, "x must be [N, M]")
    return [TensorType("int64", x.shape[:1])]


def scatter_elements(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, indices, updates = _scattered(inputs, attrs)
    _require_within(indices, x, attrs["axis"])
    _require_updates(updates, indices.shape)
    return [x]


def scatter_nd(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, indices, updates = _scattered(inputs, attrs)
    depth = indices.shape[-1] if indices.rank else None
    _require(depth is not None, "indices must have a dimension")
    if isinstance(depth, int):
        _require_updates(updates, (*indices.shape[:-1], *x.shape[depth:]))
    return [x]


def _scattered(inputs: Sequence[Type], attrs: Attrs) -> list[TensorType]:
    """Return the types of data, indices and updates."""
    x, indices, updates = _tensors(inputs)
    _require_indices(indices)
    _require(x.dtype == updates.dtype, "data and updates must have one dtype")
    _require(attrs["reduction"] in ("none", "add", "mul", "max", "min"), f"unknown reduction {attrs['reduction']!r}")
    return [x, indices, updates]


def _require_within(indices: TensorType, x: TensorType, axis: int) -> None:
    """Other axes than the one that is indexed are at most as long as those of the data."""
    _require(x.rank == indices.rank and 0 <= axis < x.rank, "ranks must be equal and contain the axis")
    for at, (size, most) in enumerate(zip(indices.shape, x.shape, strict=True)):
        fits = at == axis or isinstance(size, str) or isinstance(most, str) or may_be_natural(most - size)
        _require(fits, f"indices have {size} elements along axis {at}, the data {most}")


def _require_updates(updates: TensorType, shape: Shape) -> None:
    fits = len(shape) == updates.rank and all(map(dims_compatible, updates.shape, shape))
    _require(fits, f"updates must be of shape {shape}")


def suppress(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    boxes, scores, most, overlap, least = _tensors(inputs)
    floats = [t.dtype for t in (boxes, scores, overlap, least)]
    _require(floats == ["float32"] * 4 and most.dtype == "int64", "operands must be float32, the third one int64")
    _require(boxes.rank == 3 and boxes.shape[2] == 4, "boxes must be [B, N, 4]")
    _require(scores.rank == 3, "scores must be [B, C, N]")
    for a, b in ((boxes.shape[0], scores.shape[0]), (boxes.shape[1], scores.shape[2])):
        _require(dims_compatible(a, b), "boxes and scores must have the same images, and as many boxes")
    return [TensorType("int64", (*scores.shape[:2], boxes.shape[1])), TensorType("int64", scores.shape[:2])]


def tally(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    (mask,) = _tensors(inputs)
    _require(mask.dtype == "bool", "the mask must be bool")
    return [TensorType("int64", (_blocks(mask, attrs["block"]),))]


def compact(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    mask, ends = _tensors(inputs)
    count = attrs["count"]
    _require(mask.dtype == "bool" and mask.rank > 0, "the mask must be bool, and no scalar")
    _require(ends.dtype == "int64" and ends.rank == 1, "ends must be int64, of rank 1")
    _require(dims_compatible(ends.shape[0], _blocks(mask, attrs["block"])), "there must be an end for each block")
    _require(may_be_natural(count), f"{count} elements")
    return [TensorType("int64", (mask.rank, count))]


def _blocks(mask: TensorType, block: int) -> Dim:
    _require(block > 0, f"blocks of {block} elements")
    return ceil_div(mask.num_elements, block) if mask.is_sized else UNKNOWN


def roi_align(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, regions, images = _tensors(inputs)
    _require(x.rank == 4 and regions.rank == 2 and regions.shape[1] == 4, "operands must be images and [R, 4]")
    _require(x.dtype == regions.dtype == "float32", "operands must be float32")
    _require(images.dtype == "int64" and images.rank == 1, "the third operand must be the image of each region, int64")
    _require(dims_compatible(regions.shape[0], images.shape[0]), "each region must have an image")
    _require(attrs["mode"] in ("avg", "max"), f"unknown mode {attrs['mode']!r}")
    _, channels, _ = _split_layout(x, attrs["layout"])
    return [x.with_shape((regions.shape[0], channels, *attrs["size"]))]


def append(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    x, *places = _tensors(inputs)
    axis, capacity = attrs["axis"], attrs["capacity"]
    _require(len(places) < 2 or (places[1].dtype, places[1].shape) == ("int64", (1,)), "the end of zeros is int64 [1]")
    _require(0 <= axis < x.rank, f"axis {axis} of a tensor of rank {x.rank}")
    if places:
        batch, rows = places[0].shape if places[0].rank == 2 else (0, 0)
        fits = batch in (1, x.shape[0]) and rows == x.shape[axis] and places[0].dtype == "int64"
        _require(axis > 0 and fits, f"{places[0]} are no places of rows of {x}")
        _require(may_be_natural(capacity - attrs["until"]), f"{attrs['until']} places do not fit in {capacity}")
    else:
        at = attrs["at"]
        fits = may_be_natural(at) and may_be_natural(capacity - at - x.shape[axis])
        _require(fits, f"{x.shape[axis]} places from {at} on do not fit in {capacity}")
    return [x.with_shape((*x.shape[:axis], capacity, *x.shape[axis + 1 :]))]


def stated(inputs: Sequence[Type], attrs: Attrs) -> list[Type]:
    raise TypeRuleError("output types must be stated")
