"""Operators of ai.onnx.ml on maps: dicts, which only host steps handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilestitch.compiler.ir import UNKNOWN, MapType, SequenceType, TensorType, Value
from tilestitch.compiler.ir.types import is_float

from ..builder import dtype_of
from ..context import Context, Versioned
from .host_types import present
from .labels import class_labels

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
    "CastMap": [(1, convert_cast_map)],
    "DictVectorizer": [(1, convert_dict_vectorizer)],
    "ZipMap": [(1, convert_zip_map)],
}
