"""Operators on strings, which are object arrays of Python `str`; and on maps, which are Python dicts: of classes to
scores, and of words or numbers to counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, compress
from operator import add
from typing import Any, TypeVar

import numpy as np

from .common import Attrs, HostError, HostFn, numpy_dtype

R = TypeVar("R")

_CASES: Mapping[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
FEW_ROWS = 8
"""Up to so many maps are each built from pairs; more are filled key by key from copies of one map, which takes half the
time.
"""


def string_array(items: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """Return an object array of `shape` holding `items` in row-major order."""
    return np.fromiter(items, object, len(items)).reshape(shape)


def texts_of(x: np.ndarray) -> list[str]:
    items: list[Any] = x.reshape(-1).tolist()
    if set(map(type, items)) <= {str}:
        return items
    return [s.decode("utf-8") if isinstance(s, bytes) else str(s) for s in items]


def each(function: Callable[[str], R], texts: Sequence[str]) -> dict[str, R]:
    """Return the results of a function for all texts; equal ones are computed once."""
    return {text: function(text) for text in dict.fromkeys(texts)}


def padded(rows: Mapping[str, list[str]], filler: str) -> int:
    """Pad lists with a text until all are equally long; returns how long that is."""
    width = max(map(len, rows.values()), default=0)
    for row in rows.values():
        row += [filler] * (width - len(row))
    return width


def stacked(rows: Mapping[str, list[str]], texts: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """Return the lists of the texts, one after the other."""
    return string_array(list(chain.from_iterable(map(rows.__getitem__, texts))), shape)


def _concat(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    a, b = inputs if inputs[0].shape == inputs[1].shape else np.broadcast_arrays(*inputs)
    return [string_array(list(map(add, texts_of(a), texts_of(b))), a.shape)]


def _split(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute StringSplit. Outputs: the parts, padded with empty strings to equal numbers, and the number of parts of
    each text.
    """
    (x,) = inputs
    delimiter, most = attrs.get("delimiter") or None, attrs.get("maxsplit")
    texts, limit = texts_of(x), -1 if most is None else most
    rows = each(lambda text: text.split(delimiter, limit), texts)
    counts = {text: len(row) for text, row in rows.items()}
    width = padded(rows, "")
    numbers = np.fromiter(map(counts.__getitem__, texts), np.int64, len(texts))
    return [stacked(rows, texts, (*x.shape, width)), numbers.reshape(x.shape)]


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
        texts = texts_of(x)
        stays = each(lambda text: fold(text) not in banned, texts)
        kept = list(compress(texts, map(stays.__getitem__, texts)))
    # All words removed leave one empty string.
    result = list(map(each(change, kept).__getitem__, kept)) or [""]
    return [string_array(result, (len(result),) if x.ndim == 1 else (1, len(result)))]


def _regex_full_match(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    try:
        pattern = re.compile(attrs.get("pattern", ""))
    except re.error as error:
        raise HostError(f"pattern {attrs['pattern']!r} is no regular expression: {error}") from error
    texts = texts_of(x)
    matches = each(lambda text: pattern.fullmatch(text) is not None, texts)
    return [np.fromiter(map(matches.__getitem__, texts), bool, len(texts)).reshape(x.shape)]


def _zip_map(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Compute ZipMap. `keys`: one for each column. Each row becomes a map; a vector counts as one row."""
    (x,) = inputs
    keys = attrs["keys"]
    if x.ndim not in (1, 2) or x.shape[-1] != len(keys):
        raise HostError(f"scores of shape {x.shape} for {len(keys)} classes; there has to be one for each")
    rows = x.reshape(-1, len(keys))
    if len(rows) < FEW_ROWS:
        return [[dict(zip(keys, row)) for row in rows.tolist()]]
    empty = dict.fromkeys(keys)
    maps = [empty.copy() for _ in range(len(rows))]
    for key, column in zip(keys, rows.T.tolist()):
        for one, score in zip(maps, column):
            one[key] = score
    return [maps]


def _dict_vectorizer(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute DictVectorizer. `keys`: in the order of the columns; `dtype`: of the result. Keys absent from the map
    give 0, or an empty text.
    """
    (found,) = inputs
    absent = "" if attrs["dtype"] == "string" else 0
    return [_row([found.get(key, absent) for key in attrs["keys"]], attrs["dtype"])]


def _cast_map(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute CastMap: the values in the order of their keys; in the form SPARSE each at the index that its key says,
    others are 0, or the text that ONNX Runtime writes.
    """
    (found,) = inputs
    dtype, cast = attrs["dtype"], _CASTS[attrs["dtype"]]
    if attrs.get("map_form", "DENSE") == "DENSE":
        return [_row([cast(found[key]) for key in sorted(found)], dtype)]
    if min(found, default=0) < 0:
        raise HostError(f"key {min(found)} is negative; in the form SPARSE keys are places in the result")
    absent = "0.f" if dtype == "string" else 0
    places = range(attrs.get("max_map", 1))
    return [_row([cast(found[place]) if place in found else absent for place in places], dtype)]


def _row(items: Sequence[Any], dtype: str) -> np.ndarray:
    if dtype == "string":
        return string_array(items, (1, len(items)))
    return np.array([items], numpy_dtype(dtype))


def _number(value: Any) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise HostError(f"{value!r} is no number") from error


def _whole(value: Any) -> int:
    number = _number(value)
    if not -(2.0**63) <= number < 2.0**63:
        raise HostError(f"{value!r} is no number that int64 holds")
    return int(number)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:f}"


_CASTS: Mapping[str, Callable[[Any], Any]] = {
    "float32": _number,
    "int64": _whole,
    "string": _text,
}

TABLE: Mapping[str, HostFn] = {
    "StringConcat": _concat, "StringSplit": _split, "StringNormalizer": _normalize, "RegexFullMatch": _regex_full_match,
    "ZipMap": _zip_map, "DictVectorizer": _dict_vectorizer, "CastMap": _cast_map,
}  # fmt: skip
