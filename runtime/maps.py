"""Maps that users pass: dicts of Python numbers and strings."""

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
