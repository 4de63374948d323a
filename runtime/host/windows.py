"""Sliding-window reductions: the sums and maxima of pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, computing, narrow, widen
from .contraction import channels_first, channels_last, pad_spatial, taps
from .reductions import lowest


def _window_reduce(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x = channels_first(widen(inputs[0]), attrs["layout"])
    kernel, strides, dilations = attrs["kernel"], attrs["strides"], attrs["dilations"]
    identity, combine = (0, np.add) if attrs["reducer"] == "sum" else (lowest(x.dtype), np.maximum)
    x = pad_spatial(x, attrs["before"], attrs["after"], identity)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [(n - span) // s + 1 for n, span, s in zip(x.shape[2:], spans, strides, strict=True)]
    if any(size < 1 for size in sizes):
        raise HostError(f"a window that spans {tuple(spans)} does not fit a padded input of shape {x.shape}")
    result = np.full((*x.shape[:2], *sizes), identity, x.dtype)
    with computing():
        for offset in product(*[range(k) for k in kernel]):
            combine(result, x[taps(offset, dilations, sizes, strides)], out=result)
    return [channels_last(narrow(result, inputs[0].dtype), attrs["layout"])]


TABLE: Mapping[str, HostFn] = {"window_reduce": _window_reduce}
