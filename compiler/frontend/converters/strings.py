"""Operators on strings, which only host steps handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, Node, TensorType, Type, Value
from tilestitch.compiler.ir.types import broadcast_shapes

from .host_types import present, tensor_step


def _same_shape(value: Value, dtype: str) -> Type:
    return value.type.with_dtype(dtype) if isinstance(value.type, TensorType) else AnyRankTensor(dtype)


def string_concat(ctx: Context) -> Sequence[Value]:
    a, b = ctx.input(0), ctx.input(1)
    type_: Type = AnyRankTensor("string")
    if isinstance(a.type, TensorType) and isinstance(b.type, TensorType):
        type_ = TensorType("string", broadcast_shapes(a.type.shape, b.type.shape))
    return tensor_step(ctx, "StringConcat", (a, b), [type_])


def string_split(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    parts: Type = AnyRankTensor("string")
    if isinstance(x.type, TensorType):
        parts = x.type.with_shape((*x.type.shape, UNKNOWN))
    return tensor_step(
        ctx, "StringSplit", (x,), [parts, _same_shape(x, "int64")], **present(ctx, "delimiter", "maxsplit")
    )


def string_normalizer(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    type_: Type = AnyRankTensor("string")
    if isinstance(x.type, TensorType):
        type_ = x.type.with_shape((*x.type.shape[:-1], UNKNOWN))
    attrs = present(ctx, "case_change_action", "is_case_sensitive", "stopwords")
    return tensor_step(ctx, "StringNormalizer", (x,), [type_], **attrs)


def regex_full_match(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    return tensor_step(ctx, "RegexFullMatch", (x,), [_same_shape(x, "bool")], pattern=ctx.attr("pattern", ""))


def tf_idf_vectorizer(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    required = ("max_gram_length", "max_skip_count", "min_gram_length", "mode", "ngram_counts", "ngram_indexes")
    attrs = {name: ctx.attr(name) for name in required} | present(ctx, "pool_int64s", "pool_strings", "weights")
    columns = max(ctx.attr("ngram_indexes")) + 1
    type_: Type = AnyRankTensor("float32")
    if isinstance(x.type, TensorType):
        type_ = TensorType("float32", (*x.type.shape[:-1], columns))
    cut = _cut_texts(x)
    if cut is not None and cut.attrs["pad_value"] not in attrs.get("pool_strings", ()):
        return tensor_step(ctx, "TokenizedTfIdf", cut.inputs, [type_], **cut.attrs, **attrs)
    return tensor_step(ctx, "TfIdfVectorizer", (x,), [type_], **attrs)


def _cut_texts(x: Value) -> Node | None:
    """Return the Tokenizer whose tokens of each text are a row of `x`, padded; None if there is none. Few tokens are
    then counted for each text, and no size but the number of texts depends on them.
    """
    node = x.producer
    while node is not None and node.op == "reshape":
        node = node.inputs[0].producer
    if node is None or node.op != "host.Tokenizer" or not isinstance(x.type, TensorType) or x.type.rank != 2:
        return None
    texts = node.inputs[0].type
    if not isinstance(texts, TensorType) or UNKNOWN in texts.shape:
        return None
    return node if x.type.shape[0] == prod(texts.shape) else None


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "StringConcat": [(20, string_concat)],
    "StringSplit": [(20, string_split)],
    "StringNormalizer": [(10, string_normalizer)],
    "RegexFullMatch": [(20, regex_full_match)],
    "TfIdfVectorizer": [(9, tf_idf_vectorizer)],
}
