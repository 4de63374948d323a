"""ONNX operators whose work depends on the values of their operands: RoiAlign; and Det."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, narrow, widen


def _roi_align(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute RoiAlign. Operands: x[N,C,H,W], or [N,H,W,C] where the layout is NXC, rois[R,4] (x1, y1, x2, y2),
    batch_indices[R]. Every bin takes `ratio` samples per axis, or ceil(its size) if that is 0.

    attrs: mode (avg, max), size (bins), ratio, scale, offset (subtracted from scaled coordinates), layout (NCX).
    """
    x, rois, batches = inputs
    x = np.moveaxis(x, -1, 1) if attrs.get("layout") == "NXC" else x
    image, out, ratio = widen(x), attrs["size"], attrs["ratio"]
    if len(batches) and not (batches.min() >= 0 and batches.max() < len(x)):
        raise HostError(f"RoiAlign: there is no image {batches.min() if batches.min() < 0 else batches.max()}")
    result = np.zeros((len(rois), x.shape[1], *out), image.dtype)
    for r, (roi, batch) in enumerate(zip(widen(rois), batches, strict=True)):
        x1, y1, x2, y2 = (float(v) * attrs["scale"] - attrs["offset"] for v in roi)
        rows = _region_taps(y1, y2, out[0], x.shape[2], attrs["offset"] == 0.0, ratio)
        columns = _region_taps(x1, x2, out[1], x.shape[3], attrs["offset"] == 0.0, ratio)
        result[r] = _pooled(image[int(batch)], rows, columns, attrs["mode"])
    return [narrow(result, x.dtype)]


def _region_taps(
    start: float, end: float, bins: int, size: int, at_least_one: bool, ratio: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions and weights [2, bins, samples] of the two neighbours of every sample along one axis."""
    extent = max(end - start, 1.0) if at_least_one else end - start
    count = (ratio or max(int(np.ceil(extent / bins)), 0)) if size else 0
    width = extent / bins
    places = start + np.arange(bins)[:, None] * width + (np.arange(count) + 0.5) * width / max(count, 1)
    inside = (places >= -1.0) & (places <= size)
    places = np.clip(places, 0.0, size - 1)
    low = np.floor(places).astype(np.int64)
    fraction = places - low
    neighbours = np.stack([low, np.minimum(low + 1, size - 1)])
    return neighbours, np.stack([(1 - fraction) * inside, fraction * inside])


def _pooled(
    image: np.ndarray, rows: tuple[np.ndarray, np.ndarray], columns: tuple[np.ndarray, np.ndarray], mode: str
) -> np.ndarray:
    """Return [C, bins, bins]: the samples of each bin averaged, or (max) the largest weighted neighbour."""
    (row_places, row_weights), (column_places, column_weights) = rows, columns
    shape = (image.shape[0], row_places.shape[1], column_places.shape[1])
    if row_places.shape[2] == 0 or column_places.shape[2] == 0:
        return np.zeros(shape, image.dtype)
    terms = [
        image[:, row_places[i][:, None, :, None], column_places[j][None, :, None, :]]
        * (row_weights[i][:, None, :, None] * column_weights[j][None, :, None, :])
        for i in (0, 1)
        for j in (0, 1)
    ]
    if mode == "avg":
        return np.asarray(sum(terms)).mean((3, 4))
    return np.asarray(np.maximum.reduce(terms)).max((3, 4))


def _det(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    return [narrow(np.asarray(np.linalg.det(widen(x))), x.dtype)]


TABLE: Mapping[str, HostFn] = {"RoiAlign": _roi_align, "roi_align": _roi_align, "Det": _det}
