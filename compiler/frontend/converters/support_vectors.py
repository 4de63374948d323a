"""Support vector machines of ai.onnx.ml: regression, and classification by pairwise votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tilestitch.compiler.ir import Graph, TensorType, Value

from ..builder import Builder
from ..context import Context, Versioned
from .labels import class_labels, labelled
from .learning import largest, transformed

_TURNS = 100
_RESIDUAL = 0.005


def joined_chances(ctx: Context, first: Value, members: np.ndarray, classes: int) -> Value:
    """Return the probability of each class [rows, classes], float32, from those of pairs, by the method of libsvm (Wu,
    Lin and Weng, 2004). `first`: for each pair of classes the probability of its first one [rows, pairs]. `members`:
    the classes of each pair.

    The probabilities p minimise the sum of (r[j, i] p[i] - r[i, j] p[j])^2 over all pairs, r[i, j] being the
    probability of i given i or j. Each iteration of the loop passes over the classes once. A row of the input is done
    when all its residuals are small; that leaves the probabilities undetermined to some thousandths, so that every
    implementation has to use the same stopping rule.
    """
    rows = ctx.dim(first, 0)
    curvature = _curvature(ctx, first, members, classes)
    even = ctx.broadcast_to(ctx.constant(np.full((1, classes), 1 / classes, np.float32)), (rows, classes))
    body = _turn(ctx, rows, classes)
    turns = ctx.constant(np.array(max(_TURNS, classes), np.int64))
    attrs = {"body": body, "num_carried": 1}
    return ctx.emit_many("loop", (turns, ctx.none(), even, curvature), attrs, [even.type])[0]


def _curvature(ctx: Context, first: Value, members: np.ndarray, classes: int) -> Value:
    """Return per row the symmetric matrix q [classes, classes] of the quadratic form p q p to be minimised."""
    pairs = len(members)
    place = np.full((classes, classes), 2 * pairs, np.int64)
    place[members[:, 0], members[:, 1]] = np.arange(pairs)
    place[members[:, 1], members[:, 0]] = np.arange(pairs, 2 * pairs)
    nothing = ctx.mul(ctx.slice_axis(first, 1, 0, 1), 0.0)
    against = ctx.gather(ctx.concat([first, ctx.sub(1.0, first), nothing], 1), ctx.constant(place), 1)
    squares = ctx.reduce("sum", ctx.mul(against, against), (1,))
    products = ctx.emit("neg", ctx.mul(against, ctx.transpose(against, (0, 2, 1))))
    return ctx.select(ctx.constant(np.eye(classes, dtype=bool)), squares, products)


def _turn(ctx: Context, rows: int, classes: int) -> Graph:
    """Return one pass over the classes, for rows that are not done, as a loop body that continues while there are
    any.
    """
    body = Graph(f"{ctx.name}.turn")
    inner = Builder(body, ctx.origins)
    body.add_input("turn", TensorType("int64", ()))
    body.add_input("goes_on", TensorType("bool", ()))
    chances = body.add_input("chances", TensorType("float32", (rows, classes)))
    curvature = body.add_input("curvature", TensorType("float32", (rows, classes, classes)))
    slopes = inner.reduce("sum", inner.mul(curvature, inner.expand_dims(chances, (1,))), (2,), False)
    least = inner.reduce("sum", inner.mul(chances, slopes), (1,))
    residual = inner.emit("abs", inner.sub(slopes, least))
    # NaN compares false: such a row is done, with equal probabilities.
    moves = inner.reduce("max", inner.cast(inner.less_equal(_RESIDUAL / classes, residual), "int32"), (1,))
    better = _pass(inner, chances, curvature, slopes, least, classes)
    again = inner.reduce("max", moves, (0, 1), False)
    body.outputs = [inner.less(0, again), inner.select(inner.less(0, moves), better, chances)]
    return body


def _pass(inner: Builder, chances: Value, curvature: Value, slopes: Value, least: Value, classes: int) -> Value:
    """Move the probability of each class in turn to the minimum, and rescale all to a total of 1."""
    for one in range(classes):
        row = inner.squeeze(inner.slice_axis(curvature, 1, one, one + 1), (1,))
        own, slope = (inner.slice_axis(of, 1, one, one + 1) for of in (row, slopes))
        step = inner.div(inner.sub(least, slope), own)
        total = inner.add(step, 1.0)
        grown = inner.add(inner.mul(step, own), inner.mul(slope, 2.0))
        least = inner.div(inner.add(least, inner.mul(step, grown)), inner.mul(total, total))
        slopes = inner.div(inner.add(slopes, inner.mul(step, row)), total)
        is_one = inner.constant(np.arange(classes) == one)
        chances = inner.div(inner.select(is_one, inner.add(chances, step), chances), total)
    return chances


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
