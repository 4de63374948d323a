"""The k extreme elements along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, widen


def top_k_arrays(x: np.ndarray, k: int, axis: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and int64 indices of the `k` extreme elements along `axis`, most extreme first; of equal ones
    the lower index first.

    NaN counts as larger than every number. Raises `HostError` if there are fewer than `k` elements.
    """
    size = x.shape[axis]
    if not 0 <= k <= size:
        raise HostError(f"k = {k} of the {size} elements along axis {axis}")
    keys = widen(x)
    if largest:
        # A stable ascending sort of the reversed keys, read backwards, is descending with ties in their first order.
        order = size - 1 - np.flip(np.argsort(np.flip(keys, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(keys, axis=axis, kind="stable")
    indices = np.ascontiguousarray(np.take(order, np.arange(k), axis=axis)).astype(np.int64, copy=False)
    return np.take_along_axis(x, indices, axis), indices


def _top_k(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return list(top_k_arrays(inputs[0], attrs["k"], attrs["axis"], bool(attrs["largest"])))


TABLE: Mapping[str, HostFn] = {"top_k": _top_k}
