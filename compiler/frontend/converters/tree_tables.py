"""Ensembles of decision trees as tables, with tests in a uniform form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
LEAF = -1
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(len(MODES))
DEEPEST = 64
"""Greatest depth of a tree."""


@dataclass(frozen=True)
class Trees:
    """All nodes of all trees. Leaves are their own children.

    `modes`: an index of MODES, or -1 for a leaf. `children`: [nodes, 2] of node numbers, for a false and a true test.
    `weights`: [nodes, targets], 0 except for leaves. `missing`: whether NaN passes the test.
    """

    features: np.ndarray
    splits: np.ndarray
    modes: np.ndarray
    children: np.ndarray
    missing: np.ndarray
    weights: np.ndarray
    roots: np.ndarray

    @cached_property
    def heights(self) -> np.ndarray:
        """Height of each node, up to `DEEPEST` + 1, since malformed trees may have cycles."""
        found = np.zeros(len(self.modes), np.int64)
        for _ in range(DEEPEST + 1):
            higher = np.where(self.modes == LEAF, 0, 1 + found[self.children].max(1))
            if (higher == found).all():
                break
            found = higher
        return found

    @property
    def depth(self) -> int:
        """The depth of the deepest tree, up to `DEEPEST` + 1."""
        return int(self.heights[self.roots].max(initial=0))

    def reached(self) -> np.ndarray:
        """Return which nodes are reachable from a root."""
        seen, new = np.zeros(len(self.modes), bool), np.unique(self.roots)
        while new.size:
            seen[new] = True
            children = np.unique(self.children[new])
            new = children[~seen[children]]
        return seen


def uniform(trees: Trees, features: int, dtype: np.dtype[Any]) -> Trees:
    """Return the same trees with tests of two modes that NaN fails, LEQ and EQ. Features from `features` on are those
    of -x.

    x > s becomes -x <= -t with the next number t. Where NaN passes, the opposite test has its children swapped. Only
    some EQ that NaN passes may remain. `splits` become numbers of x's `dtype`.
    """
    splits = trees.splits.astype(dtype)
    modes = np.where(trees.modes == NEQ, EQ, trees.modes)
    orders = (modes != LEAF) & (modes != EQ)
    turned = orders & trees.missing
    swapped = turned | (trees.modes == NEQ)
    opposite = np.array([GT, GTE, LT, LEQ])
    modes[turned] = opposite[modes[turned]]
    never = np.isnan(splits) & turned  # all but NaN is not above NaN
    above, below = modes == GT, modes == LT
    splits = np.where(above, _next(splits, np.inf), np.where(below, _next(splits, -np.inf), splits))
    negated = above | (modes == GTE)
    splits = np.where(never, np.inf, np.where(negated, -splits, splits)).astype(dtype)
    return replace(
        trees,
        features=np.where(modes == LEAF, 0, trees.features + negated * features),
        splits=splits,
        modes=np.where(orders, LEQ, modes),
        children=np.where(swapped[:, None], trees.children[:, ::-1], trees.children),
        missing=trees.missing & (trees.modes == EQ),
    )


def _next(splits: np.ndarray, way: float) -> np.ndarray:
    """Return the neighbouring floats in direction `way`, NaN for infinite ones: nothing lies beyond."""
    return np.where(splits == way, np.nan, np.nextafter(splits, np.array(way, splits.dtype)))


# -- tables of a walk -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """Tables for walking trees, the roots first. The children of a node are adjacent, that of a false test first, so
    that one number leads to both; a leaf leads to itself.

    `words`: for an entry the next one, shifted by `shift`, then its feature, then whether NaN passes its test (a bit
    that exists if `may_miss`). `last`: the largest feature number. `splits`: NaN at leaves, whose tests are never true.
    `is_equal`: whether a test is EQ. `weights`: [targets, entries].
    """

    words: np.ndarray
    shift: int
    may_miss: bool
    last: int
    splits: np.ndarray
    is_equal: np.ndarray
    weights: np.ndarray


_MOST = 2**31 - 1


def walk_of(trees: Trees) -> Walk:
    """Return the tables of uniform trees. One unreachable extra entry keeps the one after any entry within the
    tables.
    """
    forks = np.flatnonzero((trees.modes != LEAF) & trees.reached())
    node = np.concatenate([trees.roots, trees.children[forks].reshape(-1), trees.roots[:1]])
    first = np.zeros(len(trees.modes), np.int64)
    first[forks] = len(trees.roots) + 2 * np.arange(len(forks))
    is_leaf = trees.modes[node] == LEAF
    following = np.where(is_leaf, np.arange(len(node)), first[node])
    following[-1] = 0
    features = np.where(is_leaf, 0, trees.features[node])
    missing = ~is_leaf & trees.missing[node]
    may_miss, last = bool(missing.any()), int(features.max(initial=0))
    shift = last.bit_length() + may_miss
    words = (following << shift) | (features << may_miss) | missing
    return Walk(
        words.astype(np.int32 if words.max() <= _MOST else np.int64), shift, may_miss, last,
        np.where(is_leaf, trees.splits.dtype.type(np.nan), trees.splits[node]),
        trees.modes[node] == EQ,
        np.ascontiguousarray(trees.weights[node].T.astype(trees.splits.dtype)),
    )  # fmt: skip


# -- upper parts as bits ----------------------------------------------------------------------------------------------

EXITS = 32
"""Bits of a word."""


@dataclass(frozen=True)
class Tops:
    """Bitmask tables of the upper parts of uniform trees. A tree's exits are numbered from the side of true tests; a
    false test clears the bits of those on its true side, and the lowest remaining bit is the exit that a row takes.

    `features`, `splits`, `masks`: [trees, tests], for each test the bits that remain if it is false. `exits`: [trees,
    most exits] of nodes with at most `below` tests below them.
    """

    features: np.ndarray
    splits: np.ndarray
    masks: np.ndarray
    exits: np.ndarray
    below: int


def tops_of(trees: Trees, features: int) -> Tops:
    """Return the upper parts down to where the exits of every tree just fit into a word. `features`: as in
    `uniform`.
    """
    for below in range(trees.depth + 1):
        tops = [_Top.of(trees, features, below, int(root)) for root in trees.roots]
        if all(len(top.exits) <= EXITS for top in tops):
            return _tabled(tops, trees)
    raise AssertionError("a root that is an exit is one")


@dataclass(frozen=True)
class _Top:
    """The upper part of one tree. `tests`: features, splits and remaining bits. `exits`: nodes, one too many if they
    exceed a word.
    """

    tests: list[tuple[int, float, int]]
    exits: list[int]

    @staticmethod
    def of(trees: Trees, features: int, below: int, root: int) -> _Top:
        top = _Top([], [])

        def visit(node: int) -> None:
            if len(top.exits) > EXITS:
                return
            if trees.heights[node] <= below or trees.missing[node]:
                top.exits.append(node)
                return
            first = len(top.exits)
            visit(trees.children[node, 1])
            mask = ~((1 << len(top.exits)) - (1 << first))
            feature, split = int(trees.features[node]), float(trees.splits[node])
            top.tests.append((feature, split, mask))
            if trees.modes[node] == EQ:  # neither above nor below
                top.tests.append((feature + features, -split, mask))
            visit(trees.children[node, 0])

        visit(root)
        return top


def _tabled(tops: list[_Top], trees: Trees) -> Tops:
    """Return the padded tables: missing tests clear no bit, and missing exits repeat the first."""
    count = len(tops)
    tests, exits = (max(map(len, parts)) for parts in zip(*((top.tests, top.exits) for top in tops), strict=True))
    features, splits = np.zeros((count, tests), np.int32), np.zeros((count, tests), trees.splits.dtype)
    masks, nodes = np.full((count, tests), -1, np.int64), np.zeros((count, exits), np.int64)
    for at, top in enumerate(tops):
        nodes[at] = top.exits + top.exits[:1] * (exits - len(top.exits))
        for number, test in enumerate(top.tests):
            features[at, number], splits[at, number], masks[at, number] = test
    return Tops(
        features, splits, masks.astype(np.uint32).view(np.int32), nodes, int(trees.heights[nodes].max(initial=0))
    )
