"""Operators on maps, which are Python dicts: of classes to scores, and of words or numbers to counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, numpy_dtype
from .strings import string_array

FEW_ROWS = 8
"""Up to so many maps are each built from pairs; more are filled key by key from copies of one map, which takes half the
time.
"""


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

TABLE: Mapping[str, HostFn] = {"ZipMap": _zip_map, "DictVectorizer": _dict_vectorizer, "CastMap": _cast_map}
