"""Operators of ai.onnx.ml with lookup tables: label encoders, categories, and class labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.compiler.ir import AnyRankTensor, TensorType, Type, Value
from tilestitch.compiler.ir.types import is_float, is_integer, to_numpy_dtype

from ..builder import dtype_of
from ..context import Context, Versioned
from .host_types import tensor_step

MOST_COMPARED = 256
"""Most keys that are compared with each element; larger tables are looked up on the host."""

_KINDS = {"strings": ("string", "_Unused"), "int64s": ("int64", -1), "floats": ("float32", -0.0)}
_DEFAULTS = {"string": "default_string", "int64": "default_int64", "float32": "default_float"}


def look_up(ctx: Context, x: Value, keys: Sequence[Any], results: Sequence[Any], default: Any, dtype: str) -> Value:
    """Return the result for each element's key, or the default, as `dtype`. The last of equal keys counts."""
    if len(keys) != len(results):
        raise ctx.fail(f"{len(keys)} keys and {len(results)} values")
    kernels = dtype != "string" and (is_float(dtype_of(x)) or is_integer(dtype_of(x)))
    if kernels and isinstance(x.type, TensorType) and len(keys) <= MOST_COMPARED:
        return _compared(ctx, x, np.array(keys, to_numpy_dtype(dtype_of(x))), [default, *results], dtype)
    type_: Type = x.type.with_dtype(dtype) if isinstance(x.type, TensorType) else AnyRankTensor(dtype)
    attrs = {"keys": [*keys], "results": [*results], "default": default, "dtype": dtype}
    return tensor_step(ctx, "LabelEncoder", (x,), [type_], **attrs)[0]


def _compared(ctx: Context, x: Value, keys: np.ndarray, results: Sequence[Any], dtype: str) -> Value:
    """Look up by comparing each element with all keys. NaN is unequal to itself, yet the standard lets it be a key."""
    element = ctx.expand_dims(x, (ctx.rank(x),))
    found = ctx.equal(element, ctx.constant(keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        both = ctx.emit("logical_and", ctx.emit("is_nan", element), ctx.constant(np.isnan(keys)))
        found = ctx.emit("logical_or", found, both)
    places = ctx.select(found, ctx.constant(np.arange(1, len(keys) + 1)), ctx.constant(0, "int64"))
    place = ctx.reduce("max", places, (ctx.rank(x),), False) if len(keys) else ctx.mul(ctx.cast(x, "int64"), 0)
    return ctx.gather(ctx.constant(np.array(results, to_numpy_dtype(dtype))), ctx.maximum(place, 0), 0)


def convert_label_encoder(ctx: Context) -> Value:
    keys, _, _ = _labels(ctx, "keys")
    values, dtype, default = _labels(ctx, "values")
    if ctx.has_attr("default_tensor"):
        default = _plain(ctx.attr("default_tensor").reshape(-1).tolist()[0])
    elif dtype in _DEFAULTS:
        default = ctx.attr(_DEFAULTS[dtype], default)
    return look_up(ctx, ctx.input(0), keys, values, default, dtype)


def _labels(ctx: Context, what: str) -> tuple[list[Any], str, Any]:
    """Return the keys or values, their dtype, and the standard's default for it."""
    if ctx.has_attr(f"{what}_tensor"):
        data = ctx.attr(f"{what}_tensor")
        dtype = ctx.constant(data).dtype
        default = {"string": "_Unused", "float32": -0.0, "float64": -0.0}.get(dtype, -1)
        return [_plain(v) for v in data.reshape(-1).tolist()], dtype, default
    for kind, (dtype, default) in _KINDS.items():
        if ctx.has_attr(f"{what}_{kind}"):
            return list(ctx.attr(f"{what}_{kind}")), dtype, default
    raise ctx.fail(f"no attribute {what}_strings, {what}_int64s, {what}_floats or {what}_tensor")


def _plain(value: Any) -> Any:
    return value.decode("utf-8") if isinstance(value, bytes) else value


def convert_label_encoder_1(ctx: Context) -> Value:
    """Convert the first form of LabelEncoder: texts and their indices in one list."""
    texts = list(ctx.attr("classes_strings"))
    return _between(ctx, texts, list(range(len(texts))))


def convert_category_mapper(ctx: Context) -> Value:
    return _between(ctx, list(ctx.attr("cats_strings")), list(ctx.attr("cats_int64s")))


def _between(ctx: Context, texts: list[str], numbers: list[int]) -> Value:
    x = ctx.input(0)
    if dtype_of(x) == "string":
        return look_up(ctx, x, texts, numbers, ctx.attr("default_int64", -1), "int64")
    return look_up(ctx, x, numbers, texts, ctx.attr("default_string", "_Unused"), "string")


def convert_one_hot_encoder(ctx: Context) -> Value:
    x, is_text = ctx.input(0), dtype_of(ctx.input(0)) == "string"
    categories = list(ctx.attr("cats_strings" if is_text else "cats_int64s"))
    if len(set(categories)) < len(categories):
        raise ctx.fail("a category is listed twice; list each once")
    key, places = x if is_text else ctx.cast(x, "int64"), np.arange(len(categories))
    if not ctx.attr("zeros", 1):
        # A value without a category ends the run: there is no row for it.
        place = look_up(ctx, key, categories, places.tolist(), len(categories), "int64")
        return ctx.gather(ctx.constant(np.eye(len(categories), dtype=np.float32)), place, 0)
    number = look_up(ctx, key, categories, places.tolist(), -1, "int64") if is_text else key
    known = places if is_text else np.array(categories, np.int64)
    return ctx.cast(ctx.equal(ctx.expand_dims(number, (ctx.rank(x),)), ctx.constant(known)), "float32")


def class_labels(ctx: Context, names: tuple[str, str]) -> tuple[list[Any], str]:
    """Return the classes of a classifier, from one of two attributes, of integers and of texts, and their dtype."""
    for name, dtype in zip(names, ("int64", "string"), strict=True):
        if ctx.has_attr(name) and len(ctx.attr(name)):
            return list(ctx.attr(name)), dtype
    raise ctx.fail(f"no attribute {' or '.join(names)} with anything in it; name the classes or keys, in order, in one")


def labelled(ctx: Context, place: Value, labels: Sequence[Any], dtype: str) -> Value:
    """Return the label at each index into `labels`."""
    if dtype == "string":
        return look_up(ctx, place, list(range(len(labels))), labels, "", dtype)
    return ctx.gather(ctx.constant(np.array(labels, np.int64)), place, 0)


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "LabelEncoder": [(1, convert_label_encoder_1), (2, convert_label_encoder)],
    "CategoryMapper": [(1, convert_category_mapper)],
    "OneHotEncoder": [(1, convert_one_hot_encoder)],
}
