"""Operators with data-dependent result sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilestitch.compiler.frontend.builder import dtype_of
from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.ir import UNKNOWN, TensorType, Type, Value

from ..symbols import sizes_are_symbols
from .found import places_of_true
from .host_types import length_of, present, rank_or_none, tensor_step, with_unknown


def non_zero(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    rank = rank_or_none(x)
    return tensor_step(ctx, "NonZero", (x,), [TensorType("int64", (UNKNOWN if rank is None else rank, UNKNOWN))])


def unique(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    values: Type = (
        with_unknown(x, (ctx.axis(x, ctx.attr("axis")),))
        if ctx.has_attr("axis")
        else TensorType(dtype_of(x), (UNKNOWN,))
    )
    entries: int | str | None = length_of(x)
    if ctx.has_attr("axis"):
        entries = x.tensor_type.shape[ctx.axis(x, ctx.attr("axis"))]
    some, all_ = TensorType("int64", (UNKNOWN,)), TensorType("int64", (UNKNOWN if entries is None else entries,))
    return tensor_step(ctx, "Unique", (x,), [values, some, all_, some], **present(ctx, "axis", "sorted"))


def non_max_suppression(ctx: Context) -> Sequence[Value]:
    if sizes_are_symbols() and all(dtype_of(ctx.input(i)) == "float32" for i in (0, 1)):
        return _suppressed(ctx)
    values = (ctx.input(0), ctx.input(1), ctx.optional(2), ctx.optional(3), ctx.optional(4))
    return tensor_step(
        ctx, "NonMaxSuppression", values, [TensorType("int64", (UNKNOWN, 3))], **present(ctx, "center_point_box")
    )


def _suppressed(ctx: Context) -> Sequence[Value]:
    """Convert NonMaxSuppression: a kernel finds the boxes to keep of each class, which are then concatenated."""
    most, overlap, least = (ctx.optional(i) for i in (2, 3, 4))
    centers = bool(ctx.attr("center_point_box", 0))
    operands = (
        ctx.input(0),
        ctx.input(1),
        ctx.constant(0, "int64") if most is None else ctx.reshape(most, ()),
        ctx.constant(0.0, "float32") if overlap is None else ctx.reshape(overlap, ()),
        ctx.constant(-np.inf, "float32") if least is None else ctx.reshape(least, ()),
    )
    places, counts = ctx.emit_many("suppress", operands, {"centers": centers})
    boxes = ctx.dim(places, 2)
    is_kept = ctx.less(ctx.broadcast_to(ctx.iota(boxes), ctx.shape(places)), ctx.expand_dims(counts, (2,)))
    kept = ctx.transpose(places_of_true(ctx, is_kept), (1, 0))
    numbers = ctx.expand_dims(ctx.emit("gather_nd", places, kept, batch_dims=0), (1,))
    return [ctx.concat([ctx.slice_axis(kept, 1, 0, 2), numbers], 1)]


def image_decoder(ctx: Context) -> Sequence[Value]:
    pixel_format = ctx.attr("pixel_format", "RGB")
    type_ = TensorType("uint8", (UNKNOWN, UNKNOWN, 1 if pixel_format == "Grayscale" else 3))
    return tensor_step(ctx, "ImageDecoder", (ctx.input(0),), [type_], pixel_format=pixel_format)


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "NonMaxSuppression": [(10, non_max_suppression)],
    "ImageDecoder": [(20, image_decoder)],
}


DYNAMIC: Mapping[str, Sequence[Versioned]] = {"NonZero": [(9, non_zero)], "Unique": [(11, unique)]}
"""Operators that kernels compute where sizes are symbols."""
