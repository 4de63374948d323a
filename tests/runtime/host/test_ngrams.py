"""TfIdfVectorizer against a count of every n-gram one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tilestitch.runtime.host import PREPARE, TABLE


def counted(rows: Sequence[Sequence[Any]], attrs: dict[str, Any]) -> np.ndarray:
    """The counts of the n-grams of the pool, all of which are of 1 to 3 items."""
    pool, starts = attrs["pool_int64s"], [*attrs["ngram_counts"], len(attrs["pool_int64s"])]
    grams = [
        tuple(pool[at : at + length])
        for length in range(1, len(starts))
        for at in range(starts[length - 1], starts[length], length)
    ]
    result = np.zeros((len(rows), max(attrs["ngram_indexes"]) + 1), np.float32)
    for number, row in enumerate(rows):
        for length in range(attrs["min_gram_length"], attrs["max_gram_length"] + 1):
            for distance in range(1, 2 + (attrs["max_skip_count"] if length > 1 else 0)):
                for start in range(len(row) - distance * (length - 1)):
                    gram = tuple(row[start : start + distance * (length - 1) + 1 : distance])
                    if gram in grams:
                        result[number, attrs["ngram_indexes"][grams.index(gram)]] += 1
    return result


@pytest.mark.parametrize(("least", "most", "skip"), [(1, 1, 0), (1, 2, 1), (2, 3, 2), (1, 3, 3), (3, 3, 0)])
@pytest.mark.parametrize("shape", [(1, 1), (1, 0), (0, 4), (5, 2), (7, 13), (11,)])
def test_ngrams_are_counted(shape: tuple[int, ...], least: int, most: int, skip: int) -> None:
    attrs = {
        "pool_int64s": [1, 2, 7, 2**62, 1, 2, 2, 1, 3, 3, 1, 2, 3, 7, 7, 7], "ngram_counts": [0, 4, 10],
        "ngram_indexes": [3, 0, 1, 9, 2, 4, 5, 7, 8], "min_gram_length": least, "max_gram_length": most,
        "max_skip_count": skip, "mode": "TF",
    }  # fmt: skip
    x = np.random.default_rng(0).choice([1, 2, 3, 7, 9, 2**62, -1], shape)
    wanted = counted(np.atleast_2d(x).tolist(), attrs)
    for given in (attrs, PREPARE["TfIdfVectorizer"](attrs)):
        (found,) = TABLE["TfIdfVectorizer"]([x], given)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, wanted if x.ndim == 2 else wanted[0])


def test_a_pool_without_ngrams_of_the_lengths_counts_nothing() -> None:
    attrs = {
        "pool_strings": ["a", "b"], "ngram_counts": [0], "ngram_indexes": [0, 1], "min_gram_length": 2,
        "max_gram_length": 3, "max_skip_count": 0, "mode": "TF",
    }  # fmt: skip
    (found,) = TABLE["TfIdfVectorizer"]([np.array([["a", "b", "a"]], object)], attrs)
    np.testing.assert_array_equal(found, [[0, 0]])
