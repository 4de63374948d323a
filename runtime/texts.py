"""Strings from a caller: arrays of `str`, of bytes in UTF-8, or of numpy's kinds of both."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import InputError


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
