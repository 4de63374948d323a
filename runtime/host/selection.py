"""Operators whose result's size depends on the data: NonZero, Unique, Compress, NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, computing, normalized_axis, optional_operand, scalar_int, widen


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


def _non_zero(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x = widen(inputs[0])
    if x.ndim == 0:
        # A scalar has no axis to index: [0, 1] if it is not zero, else [0, 0].
        return [np.zeros((0, int(bool(x))), np.int64)]
    return [np.stack(np.nonzero(x)).astype(np.int64)]


def _compress(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, condition = inputs
    axis = attrs.get("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = normalized_axis(axis, x.ndim)
    if condition.size > x.shape[axis]:
        raise HostError(f"a condition of {condition.size} entries for {x.shape[axis]} elements along axis {axis}")
    return [np.take(x, np.flatnonzero(condition), axis)]


def _unique(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute Unique. Outputs: the values, then for each its first index, for each element its value's index, and the
    counts.
    """
    x = inputs[0]
    axis = attrs.get("axis")
    slices = x.reshape(-1) if axis is None else np.moveaxis(x, normalized_axis(axis, x.ndim), 0)
    firsts, inverse, counts = _distinct(slices)
    if not attrs.get("sorted", 1):
        order = np.argsort(firsts, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        firsts, counts, inverse = firsts[order], counts[order], rank[inverse]
    values = slices[firsts]
    if axis is not None:
        values = np.ascontiguousarray(np.moveaxis(values, 0, normalized_axis(axis, x.ndim)))
    return [values, *(part.astype(np.int64) for part in (firsts, inverse, counts))]


def _distinct(slices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return first index, inverse and counts of the distinct entries along axis 0, in ascending order."""
    if slices.dtype.kind == "O":
        keys = [tuple(np.asarray(s, object).reshape(-1)) for s in slices]
        ordered = sorted(set(keys))
        number = {key: i for i, key in enumerate(ordered)}
        inverse = np.array([number[key] for key in keys], np.int64)
        firsts = np.array([keys.index(key) for key in ordered], np.int64)
        return firsts, inverse, np.bincount(inverse, minlength=len(ordered))
    rows = widen(slices).reshape(len(slices), prod(slices.shape[1:]))
    order = _row_order(rows)
    ordered = rows[order]
    same = (ordered[1:] == ordered[:-1]) | ((ordered[1:] != ordered[1:]) & (ordered[:-1] != ordered[:-1]))
    is_first = np.concatenate([np.ones(min(1, len(rows)), bool), ~same.all(1)])
    inverse = np.empty(len(rows), np.int64)
    inverse[order] = np.cumsum(is_first) - 1
    return order[is_first], inverse, np.bincount(inverse, minlength=int(is_first.sum()))


def _row_order(rows: np.ndarray) -> np.ndarray:
    """Return the row numbers in lexicographic order; NaN sorts above all numbers, and equal rows keep their order."""
    return np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(len(rows))


def _order_rows(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [_row_order(widen(inputs[0])).astype(np.int64)]


def _non_max_suppression(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    boxes, scores = widen(inputs[0]), widen(inputs[1])
    limit = optional_operand(inputs, 2)
    overlap = optional_operand(inputs, 3)
    threshold = optional_operand(inputs, 4)
    most = 0 if limit is None or np.asarray(limit).size == 0 else max(scalar_int(limit), 0)
    iou = 0.0 if overlap is None or np.asarray(overlap).size == 0 else float(np.asarray(overlap).reshape(-1)[0])
    least = None if threshold is None or np.asarray(threshold).size == 0 else np.asarray(threshold).reshape(-1)[0]
    corners = _corners(boxes, attrs.get("center_point_box", 0))
    selected: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        for label in range(scores.shape[1]):
            kept = _kept_boxes(corners[batch], scores[batch, label], most, iou, least)
            selected.extend((batch, label, box) for box in kept)
    return [np.array(selected, np.int64).reshape(-1, 3)]


def _suppress(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Return, for each class of each image, the numbers of the boxes that are kept, and their count."""
    boxes, scores, most, overlap, least = inputs
    corners = _corners(boxes, attrs["centers"])
    places, counts = np.zeros(scores.shape, np.int64), np.zeros(scores.shape[:2], np.int64)
    for batch, label in np.ndindex(*counts.shape):
        kept = _kept_boxes(corners[batch], scores[batch, label], max(int(most), 0), float(overlap), least)
        places[batch, label, : len(kept)], counts[batch, label] = kept, len(kept)
    return [places, counts]


def _kept(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Return the kept boxes as NonMaxSuppression does: [selected, 3], image, class and box."""
    places, counts = inputs
    found = np.arange(places.shape[-1]) < counts[..., None]
    return [np.concatenate([np.argwhere(found)[:, :2], places[found][:, None]], 1).astype(np.int64)]


def _tally(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Return the number of true elements in each `block` elements of a mask."""
    mask, block = np.asarray(inputs[0]).reshape(-1), attrs["block"]
    padded = np.zeros(-(-mask.size // block) * block, bool)
    padded[: mask.size] = mask
    return [padded.reshape(-1, block).sum(1, dtype=np.int64)]


def _compact(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Return the positions where a mask is true, [rank, count]."""
    return [np.stack(np.nonzero(inputs[0])).astype(np.int64)]


_NO_BYTES = b"\0"


def _extent(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Return a tensor of these sizes that takes no memory."""
    sizes = [int(size) for size in inputs[0].tolist()]
    if min(sizes, default=0) < 0:
        raise HostError(f"a size that the model computes is {min(sizes)}")
    return [np.ndarray(sizes, np.bool_, _NO_BYTES, strides=[0] * len(sizes))]


def _required(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Return the counts, checked: the last ones must equal the given sizes where these are not negative. No counts mean
    zeros.
    """
    counts, sizes = np.asarray(inputs[0]), np.asarray(inputs[1])
    last = np.concatenate([np.zeros(sizes.size, counts.dtype), counts.reshape(-1)])[-sizes.size :]
    wrong = np.flatnonzero((sizes >= 0) & (last != sizes))
    if wrong.size:
        raise HostError(
            f"the data gives a size of {last[wrong[0]]}, but it meets one of {sizes[wrong[0]]} in an operator, and is "
            "taken to be as large; give inputs for which it is"
        )
    return [counts]


def _corners(boxes: np.ndarray, center_point_box: int) -> np.ndarray:
    """Return boxes as [.., y_min, x_min, y_max, x_max]."""
    if center_point_box:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    low, high = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(low, high), np.maximum(low, high)], -1)


def _kept_boxes(corners: np.ndarray, scores: np.ndarray, most: int, iou: float, least: Any) -> list[int]:
    """Return the boxes that greedy suppression keeps, best score first (of equal ones the lower index)."""
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    kept: list[int] = []
    for box in order.tolist():
        if len(kept) >= most:
            break
        if not kept or not (_intersection_over_union(corners[box], corners[kept]) > iou).any():
            kept.append(box)
    return kept


def _intersection_over_union(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union; zero wherever two boxes do not intersect or one has no area."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), -1)
    area, areas = np.prod(box[2:] - box[:2]), np.prod(others[:, 2:] - others[:, :2], -1)
    union = area + areas - shared
    valid = (shared > 0) & (area > 0) & (areas > 0) & (union > 0)
    with computing():
        return np.where(valid, shared / union, 0)


TABLE: Mapping[str, HostFn] = {
    "NonZero": _non_zero, "Compress": _compress, "Unique": _unique, "NonMaxSuppression": _non_max_suppression,
    "suppress": _suppress, "Kept": _kept, "Extent": _extent, "Required": _required, "tally": _tally,
    "compact": _compact, "order_rows": _order_rows, "top_k": _top_k,
}  # fmt: skip
