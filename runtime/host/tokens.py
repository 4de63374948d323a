"""Tokenizer, compatible with ONNX Runtime's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostFn
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


TABLE: Mapping[str, HostFn] = {"Tokenizer": _tokenize}
