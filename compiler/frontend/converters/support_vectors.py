"""Support vector machines of ai.onnx.ml: regression, and classification by pairwise votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tilestitch.compiler.ir import Value

from ..context import Context, Versioned
from .labels import class_labels, labelled
from .learning import largest, transformed
from .paired_chances import joined_chances

_LEAST_CHANCE = 1e-7
"""Least probability of either class in a pair, as in libsvm."""


def convert_svm_regressor(ctx: Context) -> Value:
    x = ctx.cast(ctx.input(0), "float32")
    weights, rho = np.array(ctx.attr("coefficients"), np.float32), float(ctx.attr("rho")[0])
    count = ctx.attr("n_supports", 0)
    # Without vectors, the coefficients are those of the features.
    vectors = np.array(ctx.attr("support_vectors"), np.float32).reshape(count, -1) if count else None
    near = x if vectors is None else _kernel(ctx, x, vectors)
    scores = ctx.add(ctx.matmul(near, ctx.constant(weights[:, None])), rho)
    if ctx.attr("one_class", 0):
        return ctx.select(ctx.less(0.0, scores), ctx.like(1.0, scores), -1.0)
    return transformed(ctx, scores, ctx.attr("post_transform", "NONE"))


def _kernel(ctx: Context, x: Value, vectors: np.ndarray) -> Value:
    """Return the kernel function of each row of x [rows, features] and each vector: [rows, vectors]."""
    kind = ctx.attr("kernel_type", "LINEAR")
    gamma, shift, degree = ctx.attr("kernel_params", (0.0, 0.0, 3.0))
    if kind == "RBF":
        away = ctx.sub(ctx.expand_dims(x, (1,)), ctx.constant(vectors))
        return ctx.emit("exp", ctx.mul(ctx.reduce("sum", ctx.mul(away, away), (2,), False), -gamma))
    product = ctx.matmul(x, ctx.constant(vectors), trans_b=True)
    if kind == "LINEAR":
        return product
    if kind == "POLY":
        return ctx.pow(ctx.add(ctx.mul(product, gamma), shift), degree)
    if kind == "SIGMOID":
        return ctx.emit("tanh", ctx.add(ctx.mul(product, gamma), shift))
    raise ctx.fail(f"kernel_type is {kind!r}, none of LINEAR, POLY, RBF, SIGMOID")


# -- classes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """All pairs of classes, in the order of their scores.

    `vectors`: the support vectors [vectors, features], grouped by class; `starts`: where each class begins, and their
    number. `weights`: of each vector in the score of each pair.
    """

    vectors: np.ndarray
    starts: tuple[int, ...]
    weights: np.ndarray

    @property
    def classes(self) -> int:
        return len(self.starts) - 1

    @property
    def members(self) -> np.ndarray:
        """The classes of each pair."""
        return np.array(list(combinations(range(self.classes), 2)), np.int64).reshape(-1, 2)


def convert_svm_classifier(ctx: Context) -> Sequence[Value]:
    labels, dtype = class_labels(ctx, ("classlabels_ints", "classlabels_strings"))
    x = ctx.cast(ctx.input(0), "float32")
    x = ctx.expand_dims(x, (0,)) if ctx.rank(x) == 1 else x
    how = ctx.attr("post_transform", "NONE")
    if not sum(ctx.attr("vectors_per_class", ())):
        scores = _of_features(ctx, x, len(labels))
        return [labelled(ctx, largest(ctx, scores), labels, dtype), transformed(ctx, scores, how)]
    pairs = _pairs(ctx, len(labels), ctx.dim(x, 1))
    scores = ctx.add(ctx.matmul(_kernel(ctx, x, pairs.vectors), ctx.constant(pairs.weights)), _rho(ctx, pairs))
    label = labelled(ctx, largest(ctx, _votes(ctx, scores, pairs)), labels, dtype)
    if ctx.attr("prob_a", ()):
        return [label, transformed(ctx, _chances(ctx, scores, pairs), how)]
    if pairs.classes == 2:
        # The single score is the first class's, and the second's where ONNX Runtime returns both.
        scores = ctx.concat([ctx.emit("neg", scores), scores], 1)
    return [label, transformed(ctx, scores, how)]


def _of_features(ctx: Context, x: Value, classes: int) -> Value:
    """Return scores [rows, classes] without support vectors: the coefficients are those of the features."""
    weights, features = np.array(ctx.attr("coefficients"), np.float32), ctx.dim(x, 1)
    if weights.size != classes * features:
        raise ctx.fail(f"{weights.size} coefficients are given for {classes} classes and {features} features")
    scores = ctx.matmul(x, ctx.constant(weights.reshape(classes, features)), trans_b=True)
    return ctx.add(scores, float(ctx.attr("rho")[0]))


def _pairs(ctx: Context, classes: int, features: int) -> Pairs:
    counts = ctx.attr("vectors_per_class")
    if len(counts) != classes or classes < 2 or min(counts) < 0:
        raise ctx.fail(
            f"vectors_per_class is {list(counts)} for {classes} classes; it takes two or more, with one each"
        )
    starts = tuple(int(at) for at in np.cumsum([0, *counts]))
    vectors, weights = (np.array(ctx.attr(name), np.float32) for name in ("support_vectors", "coefficients"))
    if vectors.size != starts[-1] * features:
        raise ctx.fail(f"{vectors.size} numbers are given for {starts[-1]} support vectors of {features} features")
    if weights.size != starts[-1] * (classes - 1):
        raise ctx.fail(
            f"{weights.size} coefficients are given for {starts[-1]} support vectors, which have {classes - 1} each"
        )
    vectors, weights = vectors.reshape(starts[-1], features), weights.reshape(classes - 1, starts[-1])
    return Pairs(vectors, starts, _of_pairs(weights, starts))


def _of_pairs(weights: np.ndarray, starts: Sequence[int]) -> np.ndarray:
    """Return weights [vectors, pairs] from [classes - 1, vectors], where each row has those against one other class, in
    class order.
    """
    pairs = list(combinations(range(len(starts) - 1), 2))
    found = np.zeros((weights.shape[1], len(pairs)), np.float32)
    for pair, (one, two) in enumerate(pairs):
        for of, against in ((one, two - 1), (two, one)):
            mine = slice(starts[of], starts[of + 1])
            found[mine, pair] = weights[against, mine]
    return found


def _of_each_pair(ctx: Context, name: str, pairs: Pairs) -> Value:
    numbers = np.array(ctx.attr(name), np.float32)
    if len(numbers) != len(pairs.members):
        raise ctx.fail(f"{name} has {len(numbers)} entries for {len(pairs.members)} pairs of classes")
    return ctx.constant(numbers)


def _rho(ctx: Context, pairs: Pairs) -> Value:
    return _of_each_pair(ctx, "rho", pairs)


def _votes(ctx: Context, scores: Value, pairs: Pairs) -> Value:
    """Return the pairs that each class wins [rows, classes]: the first of a pair where the score is positive."""
    won = np.eye(pairs.classes, dtype=np.float32)[pairs.members]
    first = ctx.expand_dims(ctx.less(0.0, scores), (2,))
    return ctx.reduce("sum", ctx.select(first, ctx.constant(won[:, 0]), ctx.constant(won[:, 1])), (1,), False)


def _chances(ctx: Context, scores: Value, pairs: Pairs) -> Value:
    """Return the probability of each class [rows, classes]."""
    slope, shift = (_of_each_pair(ctx, name, pairs) for name in ("prob_a", "prob_b"))
    first = ctx.sigmoid(ctx.emit("neg", ctx.add(ctx.mul(scores, slope), shift)))
    return joined_chances(ctx, ctx.clamp(first, _LEAST_CHANCE, 1 - _LEAST_CHANCE), pairs.members, pairs.classes)


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "SVMClassifier": [(1, convert_svm_classifier)],
    "SVMRegressor": [(1, convert_svm_regressor)],
}
