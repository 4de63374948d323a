"""Scatters: a copy of a tensor with some elements replaced or combined. Updates are applied in row-major order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, check_indices, computing, narrow, widen

_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _apply(x: np.ndarray, index: Any, updates: np.ndarray, reduction: str) -> np.ndarray:
    if reduction == "none":
        result = np.array(x)
        result[index] = updates
        return result
    if reduction not in _COMBINE:
        raise HostError(f"unknown reduction {reduction!r}; known: none, {', '.join(_COMBINE)}")
    wide = np.array(widen(x))
    with computing():
        _COMBINE[reduction].at(wide, index, widen(updates))
        return narrow(wide, x.dtype)


def scatter_elements_array(
    x: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int, reduction: str
) -> np.ndarray:
    """Compute ONNX ScatterElements; `axis` counted from the front."""
    if indices.shape != updates.shape or indices.ndim != x.ndim:
        raise HostError(
            f"indices of shape {indices.shape} and updates of shape {updates.shape} do not fit data of shape {x.shape}"
        )
    if any(n > d for i, (n, d) in enumerate(zip(indices.shape, x.shape, strict=True)) if i != axis):
        raise HostError(f"indices of shape {indices.shape} reach beyond data of shape {x.shape}")
    index: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
    index[axis] = check_indices(indices, x.shape[axis], axis)
    return _apply(x, tuple(index), updates, reduction)


def scatter_nd_array(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    """Compute ONNX ScatterND."""
    depth = indices.shape[-1]
    if depth > x.ndim or updates.shape != (*indices.shape[:-1], *x.shape[depth:]):
        raise HostError(
            f"updates of shape {updates.shape} do not fit indices of shape {indices.shape} into data of shape {x.shape}"
        )
    index: Any = tuple(check_indices(indices[..., i], x.shape[i], i) for i in range(depth))
    return _apply(x, index or (Ellipsis,), updates, reduction)


def _scatter_elements(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, indices, updates = inputs
    return [scatter_elements_array(x, indices, updates, attrs["axis"], attrs["reduction"])]


def _scatter_nd(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, indices, updates = inputs
    return [scatter_nd_array(x, indices, updates, attrs["reduction"])]


TABLE: Mapping[str, HostFn] = {"scatter_elements": _scatter_elements, "scatter_nd": _scatter_nd}
