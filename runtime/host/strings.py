"""Operators on strings, which are object arrays of Python `str`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn

_CASES: Mapping[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def string_array(items: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """Return an object array of `shape` holding `items` in row-major order."""
    result = np.empty(len(items), object)
    result[:] = items
    return result.reshape(tuple(shape))


def texts_of(x: np.ndarray) -> list[str]:
    return [s.decode("utf-8") if isinstance(s, bytes) else str(s) for s in x.reshape(-1).tolist()]


def _concat(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    a, b = np.broadcast_arrays(*inputs)
    return [string_array([x + y for x, y in zip(texts_of(a), texts_of(b), strict=True)], a.shape)]


def _split(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute StringSplit. Outputs: the parts, padded with empty strings to equal numbers, and the number of parts of
    each text.
    """
    (x,) = inputs
    most = attrs.get("maxsplit")
    rows = [text.split(attrs.get("delimiter") or None, -1 if most is None else most) for text in texts_of(x)]
    width = max(map(len, rows), default=0)
    filled = [part for row in rows for part in (*row, *[""] * (width - len(row)))]
    return [string_array(filled, (*x.shape, width)), np.array([len(r) for r in rows], np.int64).reshape(x.shape)]


def _normalize(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise HostError(f"StringNormalizer takes tensors of shape [C] or [1, C], not {x.shape}")
    change = _CASES[attrs.get("case_change_action", "NONE")]
    stopwords = attrs.get("stopwords") or ()
    if attrs.get("is_case_sensitive", 0):
        banned = set(stopwords)
        kept = [text for text in texts_of(x) if text not in banned]
    else:
        # Compared in the case that the output gets, lower case by default.
        fold = str.upper if change is str.upper else str.lower
        banned = {fold(word) for word in stopwords}
        kept = [text for text in texts_of(x) if fold(text) not in banned]
    # All words removed leave one empty string.
    result = [change(text) for text in kept] or [""]
    return [string_array(result, (len(result),) if x.ndim == 1 else (1, len(result)))]


def _regex_full_match(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    try:
        pattern = re.compile(attrs.get("pattern", ""))
    except re.error as error:
        raise HostError(f"pattern {attrs['pattern']!r} is no regular expression: {error}") from error
    return [np.array([pattern.fullmatch(text) is not None for text in texts_of(x)], bool).reshape(x.shape)]


def _tf_idf(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    if x.ndim > 2:
        raise HostError(f"TfIdfVectorizer takes tensors of shape [C] or [N, C], not {x.shape}")
    columns = tuple(attrs["ngram_indexes"])
    ngrams = _ngram_columns(attrs, columns)
    rows = x.reshape(-1, x.shape[-1] if x.ndim else 1)
    counts = np.zeros((len(rows), max(columns) + 1), np.float32)
    for row, items in enumerate(rows.tolist()):
        for ngram, count in Counter(_ngrams_of(items, attrs)).items():
            if ngram in ngrams:
                counts[row, ngrams[ngram]] += count
    result = _weighted(counts, attrs, columns)
    return [result if x.ndim == 2 else result.reshape(-1)]


def _ngram_columns(attrs: Attrs, columns: Sequence[int]) -> dict[tuple[Any, ...], int]:
    """Return the output column of every n-gram of the pool that has a requested length."""
    pool = list(attrs.get("pool_int64s") or attrs.get("pool_strings") or ())
    starts = [*attrs["ngram_counts"], len(pool)]
    result: dict[tuple[Any, ...], int] = {}
    number = 0
    for length, (start, end) in enumerate(pairwise(starts), 1):
        for first in range(start, end - length + 1, length):
            if attrs["min_gram_length"] <= length <= attrs["max_gram_length"]:
                result[tuple(pool[first : first + length])] = columns[number]
            number += 1
    return result


def _ngrams_of(items: Sequence[Any], attrs: Attrs) -> Iterator[tuple[Any, ...]]:
    """Yield every n-gram of a row, its items up to `skip` apart; single items count once, whatever the skip."""
    for length in range(attrs["min_gram_length"], attrs["max_gram_length"] + 1):
        for distance in range(1, attrs["max_skip_count"] + 2) if length > 1 else (1,):
            span = distance * (length - 1) + 1
            for start in range(len(items) - span + 1):
                yield tuple(items[start : start + span : distance])


def _weighted(counts: np.ndarray, attrs: Attrs, columns: Sequence[int]) -> np.ndarray:
    weights = attrs.get("weights")
    if attrs["mode"] == "TF":
        return counts
    scale = np.ones(counts.shape[1], np.float32)
    if weights:
        scale[list(columns)] = np.asarray(weights, np.float32)
    if attrs["mode"] == "IDF":
        return (counts > 0) * scale
    if attrs["mode"] == "TFIDF":
        return counts * scale
    raise HostError(f"unknown mode {attrs['mode']!r} of TfIdfVectorizer; known: TF, IDF, TFIDF")


TABLE: Mapping[str, HostFn] = {
    "StringConcat": _concat, "StringSplit": _split, "StringNormalizer": _normalize, "RegexFullMatch": _regex_full_match,
    "TfIdfVectorizer": _tf_idf,
}  # fmt: skip
