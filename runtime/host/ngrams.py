"""TfIdfVectorizer: counts of n-grams.

The n-grams that are counted are the paths of a tree from its root, node 0: an edge leads from the node of an n-gram to
that of a longer one by the number of the item that is added. All places of all rows go down the tree together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn

_NONE = -1
"""No node."""


@dataclass(frozen=True)
class _Tree:
    """`numbers`: of the items, all others have the next number. `edges`: node times `width` plus the number of an item,
    ascending; `ends`: the nodes that they lead to. `columns`: where the n-gram of a node is counted; `_NONE` for one
    that is not.
    """

    numbers: Mapping[Any, int]
    width: int
    edges: np.ndarray
    ends: np.ndarray
    columns: np.ndarray

    def step(self, nodes: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Return the nodes that edges lead to."""
        wanted = nodes * self.width + items
        places = np.minimum(np.searchsorted(self.edges, wanted), len(self.edges) - 1)
        found: np.ndarray = np.where(self.edges[places] == wanted, self.ends[places], _NONE)
        return found


def _with_tree(attrs: Attrs) -> Attrs:
    """Return the attributes with the tree of the n-grams."""
    ngrams = _ngram_columns(attrs)
    numbers: dict[Any, int] = {}
    for ngram in ngrams:
        for item in ngram:
            numbers.setdefault(item, len(numbers))
    width, nodes = len(numbers) + 1, {(): 0}
    edges: dict[int, int] = {}
    columns: dict[int, int] = {}
    for ngram, column in ngrams.items():
        for length in range(1, len(ngram) + 1):
            node = nodes.setdefault(ngram[:length], len(nodes))
            edges[nodes[ngram[: length - 1]] * width + numbers[ngram[length - 1]]] = node
        columns[nodes[ngram]] = column
    order = sorted(edges)
    counted = [columns.get(node, _NONE) for node in range(len(nodes))]
    ends = [edges[edge] for edge in order]
    tree = _Tree(
        numbers, width, np.array(order, np.int64), np.array(ends, np.int64), np.array([*counted, _NONE], np.int64)
    )
    return {**attrs, "tree": tree}


def _ngram_columns(attrs: Attrs) -> dict[tuple[Any, ...], int]:
    """Return the output column of every n-gram of the pool that has a requested length."""
    pool, columns = list(attrs.get("pool_int64s") or attrs.get("pool_strings") or ()), attrs["ngram_indexes"]
    starts = [*attrs["ngram_counts"], len(pool)]
    result: dict[tuple[Any, ...], int] = {}
    number = 0
    for length, (start, end) in enumerate(pairwise(starts), 1):
        for first in range(start, end - length + 1, length):
            if attrs["min_gram_length"] <= length <= attrs["max_gram_length"]:
                result[tuple(pool[first : first + length])] = columns[number]
            number += 1
    return result


def _tf_idf(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    if x.ndim > 2:
        raise HostError(f"TfIdfVectorizer takes tensors of shape [C] or [N, C], not {x.shape}")
    tree: _Tree = (attrs if "tree" in attrs else _with_tree(attrs))["tree"]
    flat = x.reshape(-1)
    numbers = map(tree.numbers.get, flat.tolist(), repeat(len(tree.numbers)))
    items = np.fromiter(numbers, np.int64, len(flat))
    items = items.reshape(x.shape if x.ndim == 2 else (1, len(flat)))
    rows, width = len(items), max(attrs["ngram_indexes"]) + 1
    counts = np.zeros(rows * width, np.int64)
    for nodes in _ends(items, tree, attrs) if len(tree.edges) else ():
        columns = tree.columns[nodes]
        found = columns >= 0
        counts += np.bincount((columns + width * np.arange(rows)[:, np.newaxis])[found], minlength=len(counts))
    result = _weighted(counts.astype(np.float32).reshape(rows, width), attrs)
    return [result if x.ndim == 2 else result.reshape(-1)]


def _ends(items: np.ndarray, tree: _Tree, attrs: Attrs) -> Iterator[np.ndarray]:
    """Yield the nodes of all n-grams of the rows, their items up to `skip` apart; single items count once, whatever the
    skip.
    """
    for length in range(attrs["min_gram_length"], attrs["max_gram_length"] + 1):
        for distance in range(1, attrs["max_skip_count"] + 2) if length > 1 else (1,):
            places = items.shape[1] - distance * (length - 1)
            if places <= 0:
                continue
            nodes = np.zeros((len(items), places), np.int64)
            for start in range(0, distance * length, distance):
                nodes = tree.step(nodes, items[:, start : start + places])
            yield nodes


def _weighted(counts: np.ndarray, attrs: Attrs) -> np.ndarray:
    weights = attrs.get("weights")
    if attrs["mode"] == "TF":
        return counts
    scale = np.ones(counts.shape[1], np.float32)
    if weights:
        scale[list(attrs["ngram_indexes"])] = np.asarray(weights, np.float32)
    if attrs["mode"] == "IDF":
        return (counts > 0) * scale
    if attrs["mode"] == "TFIDF":
        return counts * scale
    raise HostError(f"unknown mode {attrs['mode']!r} of TfIdfVectorizer; known: TF, IDF, TFIDF")


TABLE: Mapping[str, HostFn] = {"TfIdfVectorizer": _tf_idf}

PREPARE = {"TfIdfVectorizer": _with_tree}
