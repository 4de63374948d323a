"""Class probabilities from pairwise probabilities, by the method of libsvm (Wu, Lin and Weng, 2004).

The probabilities p minimise the sum of (r[j, i] p[i] - r[i, j] p[j])^2 over all pairs, r[i, j] being the probability of
i given i or j. Each iteration of the loop passes over the classes once. A row of the input is done when all its
residuals are small; that leaves the probabilities undetermined to some thousandths, so that every implementation has to
use the same stopping rule.
"""

from __future__ import annotations

import numpy as np

from tilestitch.compiler.ir import Graph, TensorType, Value

from ..builder import Builder
from ..context import Context

_TURNS = 100
_RESIDUAL = 0.005


def joined_chances(ctx: Context, first: Value, members: np.ndarray, classes: int) -> Value:
    """Return the probability of each class [rows, classes], float32.

    `first`: for each pair of classes the probability of its first one [rows, pairs]. `members`: the classes of each
    pair.
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
