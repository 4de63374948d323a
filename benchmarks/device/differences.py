"""Where results differ from what they should, in words: rows and columns tell which part of a kernel is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

MOST_RANGES = 8


def differences(name: str, ours: np.ndarray, reference: np.ndarray, limit: float) -> Iterator[str]:
    """Lines about the elements that are further off than `limit` of the largest that there should be, or NaN where the
    other is not; nothing where there are none. Both arrays have one shape.
    """
    wrong = _wrong(ours, reference, limit)
    if not wrong.any():
        return
    places = np.argwhere(wrong)
    nans = int(np.isnan(np.asarray(ours, np.float64)[wrong]).sum())
    first = tuple(map(int, places[0]))
    yield f"{name} {list(ours.shape)}: {len(places)} of {ours.size} elements are wrong, {nans} of them NaN"
    yield f"  the first at {list(first)}: {ours[first]} in place of {reference[first]}"
    for axis in range(ours.ndim):
        yield f"  along axis {axis}: {_ranges(np.unique(places[:, axis]), ours.shape[axis])}"


def _wrong(ours: np.ndarray, reference: np.ndarray, limit: float) -> np.ndarray:
    wide, exact = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    largest = float(np.max(np.abs(exact), initial=0.0, where=np.isfinite(exact)))
    with np.errstate(invalid="ignore"):  # the difference of infinities
        near = (wide == exact) | (np.abs(wide - exact) <= limit * largest)
    return np.asarray(~near & ~(np.isnan(wide) & np.isnan(exact)))


def _ranges(indices: np.ndarray, size: int) -> str:
    """Neighbouring indices as ranges: `0-7, 16-23`."""
    if len(indices) == size:
        return "all"
    parts = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    said = [f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts[:MOST_RANGES]]
    return ", ".join(said) + (f", ... ({len(parts)} ranges)" if len(parts) > MOST_RANGES else "")
