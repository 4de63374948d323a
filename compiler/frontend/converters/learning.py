"""Feature operators of ai.onnx.ml, and linear models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import is_float

from ..builder import dtype_of
from ..context import Context, Versioned
from .labels import class_labels, labelled
from .reductions import softmax

# -- features ---------------------------------------------------------------------------------------------------------


def convert_array_feature_extractor(ctx: Context) -> Value:
    x, indices = ctx.input(0), ctx.input(1)
    rank, count = ctx.rank(x), prod(ctx.shape(indices))
    picked = ctx.gather(x, ctx.reshape(indices, (count,)), rank - 1)
    return ctx.reshape(picked, (1, count)) if rank == 1 else picked


def convert_binarizer(ctx: Context) -> Value:
    x = ctx.input(0)
    return ctx.cast(ctx.less(ctx.like(ctx.attr("threshold", 0.0), x), x), dtype_of(x))


def convert_scaler(ctx: Context) -> Value:
    x = floats(ctx, ctx.input(0))
    offset, scale = (_a_feature(ctx, name, x) for name in ("offset", "scale"))
    return ctx.cast(ctx.mul(ctx.sub(x, offset), scale), "float32")


def _a_feature(ctx: Context, name: str, x: Value) -> Value:
    """Return an attribute with one number per feature, or one for all, in the dtype of x."""
    values = ctx.attr(name)
    features = ctx.shape(x)[-1]
    if len(values) not in (1, features):
        raise ctx.fail(f"{name} has {len(values)} entries for {features} features; it has to have one for each, or one")
    return ctx.cast(ctx.constant(np.array(values)), dtype_of(x))


def convert_normalizer(ctx: Context) -> Value:
    """Convert Normalizer: rows divided by their largest element, L1 or L2 norm, unless that is 0."""
    x, norm = ctx.cast(ctx.input(0), "float32"), ctx.attr("norm", "MAX")
    axes = (ctx.rank(x) - 1,)
    if norm == "MAX":
        total = ctx.reduce("max", x, axes)
    elif norm == "L1":
        total = ctx.reduce("sum", ctx.emit("abs", x), axes)
    elif norm == "L2":
        total = ctx.emit("sqrt", ctx.reduce("sum", ctx.mul(x, x), axes))
    else:
        raise ctx.fail(f"norm is {norm!r}, none of MAX, L1, L2")
    return ctx.div(x, ctx.select(ctx.equal(total, 0.0), 1.0, total))


def convert_imputer(ctx: Context) -> Value:
    x, kind = ctx.input(0), "float" if is_float(dtype_of(ctx.input(0))) else "int64"
    new, missing = _a_feature(ctx, f"imputed_value_{kind}s", x), ctx.attr(f"replaced_value_{kind}", 0)
    is_missing = ctx.emit("is_nan", x) if missing != missing else ctx.equal(x, missing)
    return ctx.select(is_missing, new, x)


def convert_feature_vectorizer(ctx: Context) -> Value:
    parts = [ctx.cast(ctx.input(i), "float32") for i in range(len(ctx.inputs))]
    wanted = ctx.attr("inputdimensions", tuple(ctx.dim(part, 1) for part in parts))
    if [ctx.dim(part, 1) for part in parts] != list(wanted):
        raise ctx.fail(f"inputdimensions is {list(wanted)}; inputs have {[ctx.dim(part, 1) for part in parts]} columns")
    return ctx.concat(parts, 1)


def floats(ctx: Context, x: Value) -> Value:
    """Return x as float32, unless it is float64."""
    return x if dtype_of(x) == "float64" else ctx.cast(x, "float32")


# -- scores -----------------------------------------------------------------------------------------------------------


def transformed(ctx: Context, scores: Value, how: str) -> Value:
    """Return scores [rows, classes] transformed by `post_transform`."""
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return ctx.sigmoid(scores)
    if how == "SOFTMAX":
        return softmax(ctx, scores, (1,))
    if how == "SOFTMAX_ZERO":
        return _softmax_of_others(ctx, scores)
    raise ctx.fail(f"post_transform is {how!r}, none of NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO; PROBIT is not supported")


def _softmax_of_others(ctx: Context, scores: Value) -> Value:
    """Return the softmax over nonzero scores; zeros stay 0. As in ONNX Runtime, scores within 1e-7 of 0 count as 0."""
    is_zero = ctx.less_equal(ctx.emit("abs", scores), 1e-7)
    powers = ctx.emit("exp", ctx.sub(scores, ctx.reduce("max", scores, (1,))))
    powers = ctx.select(is_zero, 0.0, powers)
    total = ctx.reduce("sum", powers, (1,))
    return ctx.div(powers, ctx.select(ctx.equal(total, 0.0), 1.0, total))


def largest(ctx: Context, scores: Value) -> Value:
    """Return the index of the first largest score of each row."""
    return ctx.emit("arg_max", scores, axis=1, keepdims=False, select_last=False)


# -- linear models ----------------------------------------------------------------------------------------------------


def convert_linear_regressor(ctx: Context) -> Value:
    return transformed(ctx, _linear(ctx, ctx.attr("targets", 1)), ctx.attr("post_transform", "NONE"))


def convert_linear_classifier(ctx: Context) -> Sequence[Value]:
    labels, dtype = class_labels(ctx, ("classlabels_ints", "classlabels_strings"))
    rows = len(ctx.attr("coefficients")) // max(ctx.shape(ctx.input(0))[-1], 1)
    if (len(labels), rows) == (2, 1):
        return _of_two_by_one_row(ctx, labels, dtype)
    if len(labels) != rows:
        raise ctx.fail(
            f"there are {len(labels)} classes, and coefficients for another number of them; give each class a row"
        )
    scores = _linear(ctx, len(labels))
    label = labelled(ctx, largest(ctx, scores), labels, dtype)
    return [label, transformed(ctx, scores, ctx.attr("post_transform", "NONE"))]


def _of_two_by_one_row(ctx: Context, labels: Sequence[Any], dtype: str) -> Sequence[Value]:
    """Convert a binary classifier with one row of coefficients, which scores the second class; it is predicted where
    the score is positive.

    Only the transformation LOGISTIC is applied, as in ONNX Runtime; otherwise the first class has one minus the score.
    """
    score, how = _linear(ctx, 1), ctx.attr("post_transform", "NONE")
    is_second = ctx.less(ctx.like(0.0, score), score)
    label = labelled(ctx, ctx.cast(ctx.reshape(is_second, (ctx.dim(score, 0),)), "int64"), labels, dtype)
    scores = transformed(ctx, ctx.concat([ctx.emit("neg", score), score], 1), how)
    return [label, scores if how == "LOGISTIC" else ctx.concat([ctx.sub(1.0, score), score], 1)]


def _linear(ctx: Context, targets: int) -> Value:
    """Return the linear scores [rows, targets]."""
    x = ctx.cast(ctx.input(0), "float32")
    x = ctx.expand_dims(x, (0,)) if ctx.rank(x) == 1 else x
    weights, features = np.array(ctx.attr("coefficients"), np.float32), ctx.dim(x, 1)
    if weights.size != targets * features:
        raise ctx.fail(f"{weights.size} coefficients are given for {targets} targets and {features} features")
    scores = ctx.matmul(x, ctx.constant(weights.reshape(targets, features)), trans_b=True)
    bias = np.array(ctx.attr("intercepts", ()), np.float32)
    if bias.size not in (0, targets):
        raise ctx.fail(f"{bias.size} intercepts are given for {targets} targets")
    return ctx.add(scores, ctx.constant(bias)) if bias.size else scores


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "ArrayFeatureExtractor": [(1, convert_array_feature_extractor)],
    "Binarizer": [(1, convert_binarizer)],
    "FeatureVectorizer": [(1, convert_feature_vectorizer)],
    "Imputer": [(1, convert_imputer)],
    "LinearClassifier": [(1, convert_linear_classifier)],
    "LinearRegressor": [(1, convert_linear_regressor)],
    "Normalizer": [(1, convert_normalizer)],
    "Scaler": [(1, convert_scaler)],
}
