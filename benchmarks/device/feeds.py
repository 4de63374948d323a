"""Inputs of artifacts at random, outputs full of NaN bits, and weights from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tilestitch.runtime import Module
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.dtypes import numpy_dtype
from tilestitch.runtime.value_info import ValueInfo

PERIOD = 1_000_003
"""After so many elements, a prime, large arrays begin again: no rows of a matrix are equal."""


MOST_SAMPLES = 1 << 16


def random_like(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Normal floats; bytes of any value; other whole numbers that are fit to be positions or masks."""
    count = int(np.prod(shape, dtype=np.int64))
    made = _random(rng, dtype, min(count, PERIOD), scale)
    return np.resize(made, shape) if count else made.reshape(shape)


def _random(rng: np.random.Generator, dtype: str, count: int, scale: float) -> np.ndarray:
    if dtype in ("int8", "uint8"):
        return rng.integers(-128 if dtype == "int8" else 0, 128, count).astype(dtype)
    if dtype == "bool" or "int" in dtype:
        return rng.integers(0, 2, count).astype(dtype)
    return (scale * rng.standard_normal(count, np.float32)).astype(numpy_dtype(dtype))


def static_shape(info: ValueInfo) -> tuple[int, ...]:
    """Raises `ValueError` for a shape that is not known."""
    if info.shape is None or not all(isinstance(size, int) for size in info.shape):
        raise ValueError(f"the shape of {info.name!r} is not known; bundle static shapes only")
    return tuple(int(size) for size in info.shape)


def feeds_of(
    module: Module, rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, np.ndarray]:
    """`shapes`: of the inputs, where these are open."""
    return {
        info.name: random_like(rng, info.dtype, shapes[info.name] if shapes else static_shape(info))
        for info in module.inputs
    }


def poisoned(module: Module) -> dict[str, np.ndarray]:
    """Output arrays of 0xFF bytes: NaN in every float type, -1 in integers."""
    return {info.name: filled(info) for info in module.outputs}


def filled(info: ValueInfo) -> np.ndarray:
    shape, dtype = static_shape(info), numpy_dtype(info.dtype)
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return np.full(nbytes, 0xFF, np.uint8).view(dtype).reshape(shape)


def sample(array: np.ndarray) -> np.ndarray:
    """The elements of an array, or evenly spread ones where there are very many: an odd distance meets all columns."""
    step = array.size // MOST_SAMPLES | 1
    return array.reshape(-1)[::step]


def seeded_weights(artifact: Path) -> dict[str, np.ndarray]:
    """Packed weights of a stripped artifact, at random: small, so that activations stay finite."""
    rng = np.random.default_rng(1)
    infos = read_artifact(artifact).manifest.weights
    return {name: random_like(rng, info.dtype, info.shape, 0.02) for name, info in infos.items()}


def relative_error(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """The largest of results and their references in the Euclidean norm; NaN when a result has a NaN that its
    reference has not.
    """
    worst = 0.0
    for ours, reference in pairs:
        wide = np.asarray(ours, np.float64)
        same = np.isnan(wide) & np.isnan(reference)
        norm = float(np.linalg.norm(np.where(same, 0, reference)))
        error = float(np.linalg.norm(np.where(same, 0, wide - reference))) / (norm or 1.0)
        worst = error if np.isnan(error) else max(worst, error)
        if np.isnan(worst):
            return worst
    return worst
