"""Tokenizer, compatible with ONNX Runtime's, and TfIdfVectorizer: counts of n-grams, also of the tokens of texts.

The n-grams that are counted are the paths of a tree from its root, node 0: an edge leads from the node of an n-gram to
that of a longer one by the number of the item that is added. All places of all rows go down the tree together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn
from .strings import padded, stacked, texts_of

_START, _END = "\x02", "\x03"


def _tokenize(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Return the tokens of each text along a new last axis, padded with `pad_value` to equal numbers.

    `token` is a regular expression for tokens; without it the text is split at each of `separators` in turn, and
    without these every character is a token. Tokens of fewer than `mincharnum` characters are left out. `mark` adds
    start and end markers around the tokens of a text.
    """
    (x,) = inputs
    texts = texts_of(x)
    rows = tokens_of(texts, attrs)
    width = padded(rows, attrs["pad_value"])
    return [stacked(rows, texts, (*x.shape, width))]


def tokens_of(texts: Sequence[str], attrs: Attrs) -> dict[str, list[str]]:
    """Return the tokens of each text, in the order of the texts; equal ones are cut once."""
    apart, least = dict.fromkeys(texts), attrs["mincharnum"]
    pieces = map(_pieces(attrs), apart)
    if least == 1:
        rows = dict(zip(apart, [list(filter(None, some)) for some in pieces], strict=True))
    else:
        rows = dict(zip(apart, [[token for token in some if len(token) >= least] for some in pieces], strict=True))
    if attrs["mark"] and any(rows.values()):
        return {text: [_START, *row, _END] for text, row in rows.items()}
    return rows


def _pieces(attrs: Attrs) -> Callable[[str], Iterable[str]]:
    """Return the function that cuts a text."""
    if attrs.get("token"):
        return re.compile(attrs["token"], re.ASCII).findall
    separators = [re.compile(separator, re.ASCII) for separator in attrs.get("separators") or ()]

    def cut(text: str) -> Iterable[str]:
        pieces: Iterable[str] = [text] if separators else text
        for separator in separators:
            pieces = [part for piece in pieces for part in separator.split(piece)]
        return pieces

    return cut


_NONE = -1
"""No node."""
_ONE = np.float32(1)


@dataclass(frozen=True)
class _Tree:
    """`numbers`: of the items, all others have the next number. `first`: the nodes that lead from the root, by the
    number of an item. `edges`: node times `width` plus the number of an item, ascending; `ends`: the nodes that they
    lead to. `columns`: where the n-gram of a node is counted, of `count`; `_NONE` for one that is not. `scale`: what
    counts are multiplied by, if they are.
    """

    numbers: Mapping[Any, int]
    width: int
    first: np.ndarray
    edges: np.ndarray
    ends: np.ndarray
    columns: np.ndarray
    count: int
    scale: np.ndarray | None

    def numbers_of(self, items: list[Any]) -> np.ndarray:
        """Return the numbers of some items."""
        return np.fromiter(map(self.numbers.get, items, repeat(len(self.numbers))), np.int64, len(items))

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
    first = [edges.get(number, _NONE) for number in range(width)]
    count = max(attrs["ngram_indexes"]) + 1
    tree = _Tree(
        numbers, width, _array(first), _array(order), _array(ends), _array([*counted, _NONE]), count,
        _scale_of(attrs, count),
    )  # fmt: skip
    return {**attrs, "tree": tree}


def _array(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


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
    tree = _tree_of(attrs)
    items = tree.numbers_of(x.reshape(-1).tolist()).reshape(x.shape if x.ndim == 2 else (1, x.size))
    result = _weighted(_counted(items, tree, attrs), tree, attrs)
    return [result if x.ndim == 2 else result.reshape(-1)]


def _tokenized_tf_idf(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute TfIdfVectorizer of the tokens of each text. Outputs: [texts, columns]."""
    texts, tree = texts_of(inputs[0]), _tree_of(attrs)
    rows = tokens_of(texts, attrs)
    lengths = list(map(len, rows.values()))
    numbers = tree.numbers_of(list(chain.from_iterable(rows.values())))
    items = np.full((len(rows), max(lengths, default=0)), len(tree.numbers), np.int64)
    items[np.arange(items.shape[1]) < np.array(lengths, np.int64)[:, np.newaxis]] = numbers
    result = _weighted(_counted(items, tree, attrs), tree, attrs)
    if len(rows) == len(texts):
        return [result]
    places = dict(zip(rows, range(len(rows)), strict=True))
    return [result[np.fromiter(map(places.__getitem__, texts), np.int64, len(texts))]]


def _tree_of(attrs: Attrs) -> _Tree:
    tree: _Tree = (attrs if "tree" in attrs else _with_tree(attrs))["tree"]
    return tree


def _counted(items: np.ndarray, tree: _Tree, attrs: Attrs) -> np.ndarray:
    """Return how often each row has the n-gram of each column."""
    counts = np.zeros(len(items) * tree.count, np.float32)
    starts = np.arange(0, len(counts), tree.count)[:, np.newaxis]
    for nodes in _ends(items, tree, attrs) if len(tree.edges) else ():
        columns = tree.columns[nodes]
        np.add.at(counts, (starts + columns)[columns >= 0], _ONE)
    return counts.reshape(len(items), tree.count)


def _ends(items: np.ndarray, tree: _Tree, attrs: Attrs) -> Iterator[np.ndarray]:
    """Yield the nodes of all n-grams of the rows, their items up to `skip` apart; single items count once, whatever the
    skip.
    """
    for length in range(attrs["min_gram_length"], attrs["max_gram_length"] + 1):
        for distance in range(1, attrs["max_skip_count"] + 2) if length > 1 else (1,):
            places = items.shape[1] - distance * (length - 1)
            if places <= 0:
                continue
            nodes = tree.first[items[:, :places]]
            for start in range(distance, distance * length, distance):
                nodes = tree.step(nodes, items[:, start : start + places])
            yield nodes


def _scale_of(attrs: Attrs, count: int) -> np.ndarray | None:
    if attrs["mode"] == "TF":
        return None
    if attrs["mode"] not in ("IDF", "TFIDF"):
        raise HostError(f"unknown mode {attrs['mode']!r} of TfIdfVectorizer; known: TF, IDF, TFIDF")
    scale = np.ones(count, np.float32)
    if attrs.get("weights"):
        scale[list(attrs["ngram_indexes"])] = np.asarray(attrs["weights"], np.float32)
    return scale


def _weighted(counts: np.ndarray, tree: _Tree, attrs: Attrs) -> np.ndarray:
    if tree.scale is None:
        return counts
    return (counts > 0) * tree.scale if attrs["mode"] == "IDF" else counts * tree.scale


TABLE: Mapping[str, HostFn] = {
    "Tokenizer": _tokenize, "TfIdfVectorizer": _tf_idf, "TokenizedTfIdf": _tokenized_tf_idf,
}  # fmt: skip

PREPARE = {"TfIdfVectorizer": _with_tree, "TokenizedTfIdf": _with_tree}
