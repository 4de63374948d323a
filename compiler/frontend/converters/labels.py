"""Operators of ai.onnx.ml with lookup tables: label encoders, categories, and class labels; and on maps, which are
dicts that only host steps handle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, MapType, SequenceType, TensorType, Type, Value
from tilestitch.compiler.ir.types import is_float, is_integer, to_numpy_dtype

from ..builder import dtype_of
from ..context import Context, Versioned
from .host_types import present, tensor_step

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


_CASTS = {"TO_FLOAT": "float32", "TO_INT64": "int64", "TO_STRING": "string"}


def convert_zip_map(ctx: Context) -> Sequence[Value]:
    x, (keys, dtype) = ctx.input(0), class_labels(ctx, ("classlabels_int64s", "classlabels_strings"))
    if dtype_of(x) != "float32":
        raise ctx.fail(f"the scores are {dtype_of(x)}; ZipMap takes float32, cast them")
    columns = x.type.shape[-1] if isinstance(x.type, TensorType) and x.type.rank else UNKNOWN
    if isinstance(columns, int) and columns != len(keys):
        raise ctx.fail(f"there are {len(keys)} class labels for {columns} columns of scores; give each column a label")
    return ctx.host("ZipMap", (x,), [SequenceType(MapType(dtype, "float32"))], keys=keys)


def convert_dict_vectorizer(ctx: Context) -> Sequence[Value]:
    type_, (keys, dtype) = _map_type(ctx), class_labels(ctx, ("int64_vocabulary", "string_vocabulary"))
    if type_.key != dtype:
        raise ctx.fail(f"the vocabulary is of {dtype} and the keys of the map are {type_.key}; give that of its keys")
    result = TensorType(type_.value, (1, len(keys)))
    return ctx.host("DictVectorizer", (ctx.input(0),), [result], keys=keys, dtype=type_.value)


def convert_cast_map(ctx: Context) -> Sequence[Value]:
    type_, dtype = _map_type(ctx), _CASTS.get(ctx.attr("cast_to", "TO_FLOAT"))
    if dtype is None:
        raise ctx.fail(f"cast_to is {ctx.attr('cast_to')!r}; it may be {', '.join(_CASTS)}")
    if type_.key != "int64" or not (type_.value == "string" or is_float(type_.value)):
        raise ctx.fail(f"the input is {type_}; CastMap takes maps of int64 to float32 or to string")
    form = ctx.attr("map_form", "DENSE")
    if form not in ("DENSE", "SPARSE"):
        raise ctx.fail(f"map_form is {form!r}; it may be DENSE or SPARSE")
    size = ctx.attr("max_map", 1) if form == "SPARSE" else UNKNOWN
    return ctx.host(
        "CastMap", (ctx.input(0),), [TensorType(dtype, (1, size))], dtype=dtype, **present(ctx, "map_form", "max_map")
    )


def _map_type(ctx: Context) -> MapType:
    type_ = ctx.input(0).type
    if not isinstance(type_, MapType):
        raise ctx.fail(f"%{ctx.input(0).name} is of type {type_}, not a map")
    return type_


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "LabelEncoder": [(1, convert_label_encoder_1), (2, convert_label_encoder)],
    "CategoryMapper": [(1, convert_category_mapper)],
    "OneHotEncoder": [(1, convert_one_hot_encoder)],
    "CastMap": [(1, convert_cast_map)],
    "DictVectorizer": [(1, convert_dict_vectorizer)],
    "ZipMap": [(1, convert_zip_map)],
}
