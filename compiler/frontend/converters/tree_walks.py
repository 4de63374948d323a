"""Walks of rows through ensembles of decision trees: a step gathers each row's next node in each tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import to_numpy_dtype

from ..builder import dtype_of
from ..context import Context

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
LEAF = -1
MEMBER = MODES.index("BRANCH_MEMBER")
_EQ, _NEQ = MODES.index("BRANCH_EQ"), MODES.index("BRANCH_NEQ")
_MOST = 2**31 - 1
DEEPEST = 64
"""Steps that are unrolled."""


@dataclass(frozen=True)
class Trees:
    """All nodes of all trees. Leaves lead to themselves.

    modes: an index of MODES, or -1 for a leaf. children: [nodes, 2] of numbers of nodes, if the test is false and true.
    weights: [nodes, targets], 0 but for leaves. missing: whether NaN passes the test.
    """

    features: np.ndarray
    splits: np.ndarray
    modes: np.ndarray
    children: np.ndarray
    missing: np.ndarray
    weights: np.ndarray
    roots: np.ndarray

    @property
    def depth(self) -> int:
        """The most tests on the way from a root, as far as one more than `DEEPEST`: trees may be circles."""
        at, steps = np.unique(self.roots), 0
        while (self.modes[at] != LEAF).any() and steps <= DEEPEST:
            at, steps = np.unique(self.children[at]), steps + 1
        return steps


# -- tables of a walk -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """Tables of places, the roots first. The children of a node lie side by side, that of a false test first, so that
    one number leads to both; a leaf leads to itself.

    words: of a place the next one, shifted by `shift`, then its feature, then whether NaN passes its test (a bit that
    is there if `may_miss`). last: the largest number of a feature. splits: NaN at leaves, whose tests are never true.
    weights: [targets, places].
    """

    words: np.ndarray
    shift: int
    may_miss: bool
    last: int
    splits: np.ndarray
    modes: np.ndarray
    weights: np.ndarray


def walk_of(trees: Trees, dtype: np.dtype[Any]) -> Walk:
    """One place more than can be reached keeps the place after the last one in the tables."""
    differs = trees.modes == _NEQ  # is no test of NaN's to fail, so that leaves need another one
    forks = np.flatnonzero(trees.modes != LEAF)
    children = np.where(differs[:, None], trees.children[:, ::-1], trees.children)[forks]
    node = np.concatenate([trees.roots, children.reshape(-1), trees.roots[:1]])
    first = np.zeros(len(trees.modes), np.int64)
    first[forks] = len(trees.roots) + 2 * np.arange(len(forks))
    is_leaf = trees.modes[node] == LEAF
    following = np.where(is_leaf, np.arange(len(node)), first[node])
    features = np.where(is_leaf, 0, trees.features[node])
    missing = ~is_leaf & ~differs[node] & trees.missing[node]
    may_miss, last = bool(missing.any()), int(features.max(initial=0))
    shift = last.bit_length() + may_miss
    words = (following << shift) | (features << may_miss) | missing
    return Walk(
        words.astype(np.int32 if words.max() <= _MOST else np.int64), shift, may_miss, last,
        np.where(is_leaf, np.nan, trees.splits[node]).astype(dtype),
        np.where(differs[node], _EQ, trees.modes[node]),
        np.ascontiguousarray(trees.weights[node].T.astype(dtype)),
    )  # fmt: skip


# -- scores -------------------------------------------------------------------------------------------------------

_TESTS: Mapping[int, Callable[[Context, Value, Value], Value]] = {
    0: lambda ctx, x, split: ctx.less_equal(x, split),
    1: lambda ctx, x, split: ctx.less(x, split),
    2: lambda ctx, x, split: ctx.less_equal(split, x),
    3: lambda ctx, x, split: ctx.less(split, x),
    4: lambda ctx, x, split: ctx.equal(x, split),
}


def scores_of(ctx: Context, x: Value, trees: Trees, aggregate: str) -> Value:
    """What the leaves that rows of x [rows, features] reach add up to: float64 [rows, targets]."""
    check_trees(ctx, x, trees)
    if trees.depth > DEEPEST:
        raise ctx.fail(f"a tree asks more than {DEEPEST} tests, or goes in circles; make it less deep")
    if aggregate not in ("SUM", "AVERAGE", "MIN", "MAX"):
        raise ctx.fail(f"aggregate_function is {aggregate!r}, none of SUM, AVERAGE, MIN, MAX")
    if aggregate in ("MIN", "MAX") and trees.weights.shape[1] > 1:
        raise ctx.fail(f"{aggregate} of several targets is not supported, as leaves may say nothing of one")
    walk = walk_of(trees, to_numpy_dtype(dtype_of(x)))
    at = ctx.constant(np.arange(len(trees.roots), dtype=np.int32)[None])
    for _ in range(trees.depth):
        at = _step(ctx, x, walk, at)
    at = ctx.broadcast_to(at, (ctx.dim(x, 0), len(trees.roots)))
    # Trees lie last, next to each other. In float64 equal votes add up to equal scores, whatever their order.
    weights = ctx.gather(ctx.constant(walk.weights), at, 1)
    reducer = "sum" if aggregate == "AVERAGE" else aggregate.lower()
    scores = ctx.transpose(ctx.reduce(reducer, ctx.cast(weights, "float64"), (2,), False), (1, 0))
    return ctx.div(scores, float(len(trees.roots))) if aggregate == "AVERAGE" else scores


def check_trees(ctx: Context, x: Value, trees: Trees) -> None:
    """Refuses tables that do not belong together, and numbers of what is not there: below 0 they would be others."""
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
    """Where rows are after the tests of the nodes where they are [rows, trees]."""
    word = ctx.gather(ctx.constant(walk.words), at, 0)
    value = _asked(ctx, x, walk, word)
    split = ctx.gather(ctx.constant(walk.splits), at, 0)
    modes = sorted({int(mode) for mode in walk.modes if mode != LEAF})
    truth = _TESTS[modes[0]](ctx, value, split)
    for mode in modes[1:]:
        is_mode = ctx.gather(ctx.constant(walk.modes == mode), at, 0)
        truth = ctx.select(is_mode, _TESTS[mode](ctx, value, split), truth)
    if walk.may_miss:
        passes = ctx.cast(_bits(ctx, word, 1), "bool")
        truth = ctx.emit("logical_or", truth, ctx.emit("logical_and", ctx.emit("is_nan", value), passes))
    following = ctx.emit("shift_right", word, ctx.like(walk.shift, word))
    return ctx.add(ctx.cast(following, "int32"), ctx.cast(truth, "int32"))


def _asked(ctx: Context, x: Value, walk: Walk, word: Value) -> Value:
    """The values of the features that words ask for [rows, trees]."""
    bits = walk.last.bit_length()
    number = ctx.emit("shift_right", word, ctx.like(int(walk.may_miss), word))
    feature = ctx.cast(ctx.minimum(_bits(ctx, number, bits), walk.last), "int32")  # said for those who check indices
    if feature.data is not None:  # all rows are at the roots
        return ctx.gather(x, ctx.constant(feature.data[0]), 1)
    return ctx.emit("gather_elements", x, feature, axis=1)


def _bits(ctx: Context, word: Value, count: int) -> Value:
    """The last `count` bits."""
    return ctx.emit("bitwise_and", word, ctx.like((1 << count) - 1, word))
