"""Operators whose result's size depends on the data, and those of the domain ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.compiler.frontend.builder import dtype_of
from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, TensorType, Type, Value

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
    """A kernel finds what is kept of each class; then all of it is put together."""
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
"""Those that kernels compute where sizes are symbols."""


# -- ai.onnx.ml ------------------------------------------------------------------------------------------------------


def array_feature_extractor(ctx: Context) -> Value:
    x, indices = ctx.input(0), ctx.input(1)
    rank, count = ctx.rank(x), int(np.prod(ctx.shape(indices)))
    picked = ctx.gather(x, ctx.reshape(indices, (count,)), rank - 1)
    return ctx.reshape(picked, (1, count)) if rank == 1 else picked


def binarizer(ctx: Context) -> Value:
    x = ctx.input(0)
    return ctx.cast(ctx.less(ctx.like(ctx.attr("threshold", 0.0), x), x), dtype_of(x))


_LABEL_KINDS = {"strings": ("string", "_Unused"), "int64s": ("int64", -1), "floats": ("float32", -0.0)}


def label_encoder(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    keys, _, _ = _labels(ctx, "keys")
    values, dtype, default = _labels(ctx, "values")
    default_name = {"string": "default_string", "int64": "default_int64", "float32": "default_float"}.get(dtype, "")
    if ctx.has_attr("default_tensor"):
        default = ctx.attr("default_tensor").reshape(-1).tolist()[0]
    elif ctx.has_attr(default_name):
        default = ctx.attr(default_name)
    if len(keys) != len(values):
        raise ctx.fail(f"{len(keys)} keys and {len(values)} values")
    type_: Type = x.type.with_dtype(dtype) if isinstance(x.type, TensorType) else AnyRankTensor(dtype)
    return tensor_step(ctx, "LabelEncoder", (x,), [type_], keys=keys, results=values, default=default, dtype=dtype)


def _labels(ctx: Context, what: str) -> tuple[list[Any], str, Any]:
    """The keys or values, their dtype, and the standard's default for it."""
    if ctx.has_attr(f"{what}_tensor"):
        data = ctx.attr(f"{what}_tensor")
        dtype = ctx.constant(data).dtype
        default = {"string": "_Unused", "float32": -0.0, "float64": -0.0}.get(dtype, -1)
        return [_plain(v) for v in data.reshape(-1).tolist()], dtype, default
    for kind, (dtype, default) in _LABEL_KINDS.items():
        if ctx.has_attr(f"{what}_{kind}"):
            return list(ctx.attr(f"{what}_{kind}")), dtype, default
    raise ctx.fail(f"no attribute {what}_strings, {what}_int64s, {what}_floats or {what}_tensor")


def _plain(value: Any) -> Any:
    return value.decode("utf-8") if isinstance(value, bytes) else value


_TREE_INTS = (
    "nodes_featureids",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "nodes_trueleafs",
    "nodes_falseleafs",
    "leaf_targetids",
    "tree_roots",
)


def tree_ensemble(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    ctx.rank(x)
    attrs: dict[str, Any] = {name: ctx.attr(name) for name in _TREE_INTS}
    for name in ("nodes_splits", "nodes_modes", "leaf_weights"):
        attrs[name] = ctx.attr(name).reshape(-1).tolist()
    if ctx.has_attr("membership_values"):
        attrs["membership_values"] = ctx.attr("membership_values").reshape(-1).tolist()
    attrs |= present(ctx, "nodes_missing_value_tracks_true", "post_transform", "aggregate_function")
    attrs["n_targets"] = ctx.attr("n_targets", max(attrs["leaf_targetids"], default=0) + 1)
    type_ = TensorType(dtype_of(x), (x.tensor_type.shape[0], attrs["n_targets"]))
    return tensor_step(ctx, "TreeEnsemble", (x,), [type_], **attrs)


ML_CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "ArrayFeatureExtractor": [(1, array_feature_extractor)],
    "Binarizer": [(1, binarizer)],
    "LabelEncoder": [(2, label_encoder)],
    "TreeEnsemble": [(5, tree_ensemble)],
}
"""Converters of the domain ai.onnx.ml."""
