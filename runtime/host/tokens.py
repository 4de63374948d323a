"""Tokenizer, compatible with ONNX Runtime's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostFn
from .strings import string_array, texts_of

_START, _END = "\x02", "\x03"


def _tokenize(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Return the tokens of each text along a new last axis, padded with `pad_value` to equal numbers.

    `token` is a regular expression for tokens; without it the text is split at each of `separators` in turn, and
    without these every character is a token. Tokens of fewer than `mincharnum` characters are left out. `mark` adds
    start and end markers around the tokens of a text.
    """
    (x,) = inputs
    least = attrs["mincharnum"]
    rows = [[token for token in _pieces(text, attrs) if len(token) >= least] for text in texts_of(x)]
    most = max(map(len, rows), default=0)
    if most and attrs["mark"]:
        rows, most = [[_START, *row, _END] for row in rows], most + 2
    filled = [token for row in rows for token in (*row, *[attrs["pad_value"]] * (most - len(row)))]
    return [string_array(filled, (*x.shape, most))]


def _pieces(text: str, attrs: Attrs) -> Iterable[str]:
    if attrs.get("token"):
        return re.findall(attrs["token"], text, re.ASCII)
    pieces: Iterable[str] = text if not attrs.get("separators") else [text]
    for separator in attrs.get("separators") or ():
        pieces = [part for piece in pieces for part in re.split(separator, piece, flags=re.ASCII)]
    return pieces


TABLE: Mapping[str, HostFn] = {"Tokenizer": _tokenize}
