"""Scores of rows by ensembles of decision trees.

Few rows walk the trees: each step gathers the next node of each row in each tree. Many rows are processed in blocks,
one row per lane: all tests of the trees' upper parts are evaluated, which clear bits of exits; from there rows walk as
well.
"""

from dataclasses import replace

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import to_numpy_dtype

from ..builder import dtype_of
from ..context import Context
from ..symbols import is_few
from .tree_tables import DEEPEST, LEAF, Tops, Trees, Walk, tops_of, uniform, walk_of

BLOCK = 16
FEW = 3
"""Most rows that walk from the roots."""


def scores_of(ctx: Context, x: Value, trees: Trees, aggregate: str) -> Value:
    """Return the sums of the leaves that rows of x [rows, features] reach: float64 [rows, targets]."""
    check_trees(ctx, x, trees)
    if trees.depth > DEEPEST:
        raise ctx.fail(f"a tree asks more than {DEEPEST} tests, or goes in circles; make it less deep")
    if aggregate not in ("SUM", "AVERAGE", "MIN", "MAX"):
        raise ctx.fail(f"aggregate_function is {aggregate!r}, none of SUM, AVERAGE, MIN, MAX")
    if aggregate in ("MIN", "MAX") and trees.weights.shape[1] > 1:
        raise ctx.fail(f"{aggregate} of several targets is not supported, as leaves may say nothing of one")
    trees = uniform(trees, ctx.dim(x, 1), to_numpy_dtype(dtype_of(x)))
    rows = ctx.dim(x, 0)
    weights = _of_few(ctx, x, trees) if is_few(rows, FEW) else _of_blocks(ctx, x, trees)
    # In float64 equal votes add up to equal scores, whatever their order.
    reducer = "sum" if aggregate == "AVERAGE" else aggregate.lower()
    scores = ctx.reduce(reducer, ctx.cast(weights, "float64"), (2,), False)
    lanes = ctx.reshape(ctx.transpose(scores, (1, 2, 0)), (-1, trees.weights.shape[1]))
    scores = ctx.slice_axis(lanes, 0, 0, rows)
    return ctx.div(scores, float(len(trees.roots))) if aggregate == "AVERAGE" else scores


def _of_few(ctx: Context, x: Value, trees: Trees) -> Value:
    """Return the weights of the leaves that rows reach [targets, rows, trees, 1]; trees are contiguous."""
    walk = walk_of(trees)
    x = x if walk.last < ctx.dim(x, 1) else _both_signs(ctx, x)
    at = ctx.constant(np.arange(len(trees.roots), dtype=np.int32)[None])
    for _ in range(trees.depth):
        at = _step(ctx, x, walk, at)
    at = ctx.expand_dims(ctx.broadcast_to(at, (ctx.dim(x, 0), len(trees.roots))), (2,))
    return ctx.gather(ctx.constant(walk.weights), at, 1)


def _both_signs(ctx: Context, x: Value) -> Value:
    """Return x and -x side by side."""
    return ctx.concat([x, ctx.emit("neg", x)], 1)


# -- blocks of rows -------------------------------------------------------------------------------------------------


def _of_blocks(ctx: Context, x: Value, trees: Trees) -> Value:
    """Return the weights of the leaves that rows reach [targets, blocks, trees, rows of a block]."""
    tops = tops_of(trees, ctx.dim(x, 1))
    walk = walk_of(replace(trees, roots=tops.exits.reshape(-1)))
    x = _both_signs(ctx, _in_blocks(ctx, x))
    count = tops.exits.shape[1]
    first = ctx.constant(np.arange(len(tops.exits), dtype=np.int32)[:, None] * count)
    taken = ctx.minimum(_first_bit(ctx, _exits_left(ctx, x, tops)), count - 1)  # a bound for index checks
    at = ctx.add(first, taken)
    for _ in range(tops.below):
        at = _step(ctx, x, walk, at)
    return ctx.gather(ctx.constant(walk.weights), at, 1)


def _in_blocks(ctx: Context, x: Value) -> Value:
    """Return x [rows, features] as [blocks, features, rows of a block], the last block padded with zeros."""
    rows, features = ctx.shape(x)
    blocks = ceil_div(rows, BLOCK)
    filled = ctx.pad(x, (0, 0), (blocks * BLOCK - rows, 0))
    return ctx.swap_axes(ctx.reshape(filled, (blocks, BLOCK, features)), 1, 2)


def _exits_left(ctx: Context, x: Value, tops: Tops) -> Value:
    """Return the exit bits that no test clears [blocks, trees, rows of a block]."""
    value = ctx.gather(x, ctx.constant(tops.features), 1)
    passed = ctx.less_equal(value, ctx.constant(tops.splits[:, :, None]))
    return ctx.reduce("and", ctx.select(passed, -1, ctx.constant(tops.masks[:, :, None])), (2,), False)


def _first_bit(ctx: Context, word: Value) -> Value:
    """Return the index of the lowest set bit of a nonzero int32, from the exponent of that bit as a float, less the
    bias of 127.
    """
    lowest = ctx.emit("bitwise_and", word, ctx.emit("neg", word))
    bits = ctx.emit("bit_cast", ctx.cast(lowest, "float32"), to="int32")
    return _bits(ctx, ctx.add(ctx.emit("shift_right", bits, ctx.like(23, word)), 1), 5)


# -- tests ------------------------------------------------------------------------------------------------------------


def check_trees(ctx: Context, x: Value, trees: Trees) -> None:
    """Refuse inconsistent tables and numbers out of range: negative ones would address other entries."""
    count, features = len(trees.modes), ctx.dim(x, 1)
    for what, table in (("features", trees.features), ("values", trees.splits), ("answers for NaN", trees.missing)):
        if len(table) != count:
            raise ctx.fail(f"{len(table)} {what} are given for {count} nodes of trees; give each node one")
    for what, numbers, most in (
        ("feature", trees.features[trees.modes != LEAF], features),
        ("node", np.concatenate([trees.children.reshape(-1), trees.roots]), count),
    ):
        odd = numbers[(numbers < 0) | (numbers >= most)] if isinstance(most, int) else numbers[numbers < 0]
        if odd.size:
            raise ctx.fail(f"a tree asks for {what} {odd[0]}, and there are {most}; the model is wrong there")


def _step(ctx: Context, x: Value, walk: Walk, at: Value) -> Value:
    """Return where rows are after the tests of their nodes."""
    word = ctx.gather(ctx.constant(walk.words), at, 0)
    value = _asked(ctx, x, walk, word)
    split = ctx.gather(ctx.constant(walk.splits), at, 0)
    truth = ctx.less_equal(value, split)
    if walk.is_equal.any():
        truth = ctx.select(ctx.gather(ctx.constant(walk.is_equal), at, 0), ctx.equal(value, split), truth)
    if walk.may_miss:
        passes = ctx.cast(_bits(ctx, word, 1), "bool")
        truth = ctx.emit("logical_or", truth, ctx.emit("logical_and", ctx.emit("is_nan", value), passes))
    following = ctx.emit("shift_right", word, ctx.like(walk.shift, word))
    return ctx.add(ctx.cast(following, "int32"), ctx.cast(truth, "int32"))


def _asked(ctx: Context, x: Value, walk: Walk, word: Value) -> Value:
    """Return the values of the features in the words, from x [rows, features] or [blocks, features, rows of a
    block].
    """
    bits = walk.last.bit_length()
    number = ctx.emit("shift_right", word, ctx.like(int(walk.may_miss), word))
    feature = ctx.cast(ctx.minimum(_bits(ctx, number, bits), walk.last), "int32")  # a bound for index checks
    if feature.data is not None:  # all rows are at the roots
        return ctx.gather(x, ctx.constant(feature.data[0]), 1)
    return ctx.emit("gather_elements", x, feature, axis=1)


def _bits(ctx: Context, word: Value, count: int) -> Value:
    """Return the lowest `count` bits."""
    return ctx.emit("bitwise_and", word, ctx.like((1 << count) - 1, word))
