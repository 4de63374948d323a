"""Maps and texts that users pass: dicts of Python numbers and strings; arrays of `str`, of bytes in UTF-8, or of
numpy's kinds of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .errors import InputError
from .types import MapType

_KINDS = {
    "int64": (int, np.integer), "string": (str,), "float32": (float, int, np.floating, np.integer),
    "float64": (float, int, np.floating, np.integer),
}  # fmt: skip
_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "int64": int, "string": str, "float32": lambda number: float(np.float32(number)), "float64": float,
}  # fmt: skip
"""By data type: conversion of the accepted Python values to what is stored."""


def as_map(value: Any, type_: MapType, name: str) -> dict[Any, Any]:
    """Return the map with its keys and values converted to the type's. Raises `InputError` for what is not a map, or
    does not fit.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"input {name!r} is a {type(value).__name__}; it needs a dict, as its type is {type_}")
    return {_plain(k, type_.key, "key", name): _plain(v, type_.value, "value", name) for k, v in value.items()}


def _plain(item: Any, dtype: str, what: str, name: str) -> Any:
    if isinstance(item, bool) or not isinstance(item, _KINDS[dtype]):
        raise InputError(f"input {name!r} has the {what} {item!r}; give {what}s that are {dtype}")
    if dtype == "int64" and not -(1 << 63) <= int(item) < 1 << 63:
        raise InputError(f"input {name!r} has the {what} {item!r}, which is beyond int64")
    return _PLAIN[dtype](item)


def are_texts(array: np.ndarray) -> bool:
    """Return whether an array of objects holds only `str`."""
    return set(map(type, array.reshape(-1).tolist())) <= {str}


def as_texts(array: np.ndarray, name: str) -> np.ndarray:
    """Return a new array of `str`, for host steps. Raises `InputError` for what is not text."""
    texts = array.astype(object)
    if not are_texts(texts):
        for place, item in np.ndenumerate(texts):
            texts[place] = _text(item, name, place)
    return texts


def _text(item: Any, name: str, place: tuple[int, ...]) -> str:
    where = f"input {name!r}, at {list(place)}"
    if isinstance(item, str):
        return str(item)
    if not isinstance(item, bytes):
        raise InputError(f"{where}: {item!r} is a {type(item).__name__}; give texts, for instance with .astype(str)")
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: {item!r} is no text in UTF-8 ({error}); give it as str") from error
