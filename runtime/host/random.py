"""Random tensors from numpy's Philox generator. With a seed every run gives the same result, without one a different
result.

ONNX does not specify the generator, so values differ from other runtimes; distributions, shapes and dtypes do not.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostFn, computing, narrow, numpy_dtype, widen


def _generator(attrs: Attrs) -> np.random.Generator:
    """Return a generator. ONNX's `seed` is a float, whose bits seed it; without one the operating system supplies
    entropy.
    """
    seed = attrs.get("seed")
    key = None if seed is None else int.from_bytes(struct.pack("<d", float(seed)), "little")
    return np.random.Generator(np.random.Philox(key))


def _shape(inputs: Sequence[Any], attrs: Attrs) -> tuple[int, ...]:
    return tuple(attrs["shape"]) if attrs.get("shape") is not None else inputs[0].shape


def _normal(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    values = _generator(attrs).normal(attrs.get("mean", 0.0), attrs.get("scale", 1.0), _shape(inputs, attrs))
    return [narrow(values, numpy_dtype(attrs["dtype"]))]


def _uniform(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    values = _generator(attrs).uniform(attrs.get("low", 0.0), attrs.get("high", 1.0), _shape(inputs, attrs))
    return [narrow(values, numpy_dtype(attrs["dtype"]))]


def _bernoulli(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    probability = widen(inputs[0])
    drawn = _generator(attrs).random(probability.shape) < probability
    return [narrow(drawn, numpy_dtype(attrs["dtype"]))]


def _multinomial(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Draw `sample_size` classes per row from unnormalised log-probabilities."""
    logits = widen(inputs[0]).astype(np.float64)
    generator = _generator(attrs)
    with computing():
        weights = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
        cumulative = np.cumsum(weights, -1)
        points = generator.random((len(logits), attrs.get("sample_size", 1))) * cumulative[:, -1:]
    drawn = [np.searchsorted(row, at, side="right") for row, at in zip(cumulative, points, strict=True)]
    result = np.array(drawn).reshape(points.shape)
    return [narrow(np.minimum(result, max(logits.shape[-1] - 1, 0)), numpy_dtype(attrs["dtype"]))]


def _dropout(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute Dropout. Operands: data, ratio (absent: 0.5), training_mode (absent: False). Outputs: data and the mask
    of kept elements.
    """
    x = inputs[0]
    ratio = 0.5 if len(inputs) < 2 or inputs[1] is None else float(np.asarray(inputs[1]).reshape(()))
    training = len(inputs) > 2 and inputs[2] is not None and bool(np.asarray(inputs[2]).reshape(()))
    if not training or ratio == 0:
        return [np.array(x), np.ones(x.shape, bool)]
    kept = _generator(attrs).random(x.shape) >= ratio
    return [narrow(np.where(kept, widen(x) / (1 - ratio), 0), x.dtype), kept]


NON_DETERMINISTIC = frozenset({"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial", "Dropout"})
"""Operators whose result may differ each time; never to be folded or merged."""

TABLE: Mapping[str, HostFn] = {
    "RandomNormal": _normal, "RandomUniform": _uniform, "Bernoulli": _bernoulli, "Multinomial": _multinomial,
    "Dropout": _dropout,
}  # fmt: skip
