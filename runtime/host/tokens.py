"""Tokenizer, compatible with ONNX Runtime's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostFn
from .strings import each, padded, stacked, texts_of

_START, _END = "\x02", "\x03"


def _tokenize(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Return the tokens of each text along a new last axis, padded with `pad_value` to equal numbers.

    `token` is a regular expression for tokens; without it the text is split at each of `separators` in turn, and
    without these every character is a token. Tokens of fewer than `mincharnum` characters are left out. `mark` adds
    start and end markers around the tokens of a text.
    """
    (x,) = inputs
    texts, pieces, least = texts_of(x), _pieces(attrs), attrs["mincharnum"]
    rows = each(lambda text: [token for token in pieces(text) if len(token) >= least], texts)
    if attrs["mark"] and any(rows.values()):
        rows = {text: [_START, *row, _END] for text, row in rows.items()}
    width = padded(rows, attrs["pad_value"])
    return [stacked(rows, texts, (*x.shape, width))]


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


TABLE: Mapping[str, HostFn] = {"Tokenizer": _tokenize}
