"""Boosted trees as arrays, evaluated by NumPy: every tree is padded to a perfect binary tree of one depth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilestitch.cost_model.errors import MeasurementError

BLOCK = 128
"""Rows that are processed at a time, so that their data stay in a cache."""


@dataclass(frozen=True)
class Forest:
    """Sums of trees for each of `outputs` scores; tree t adds to score t % outputs.

    feature, threshold: of the inner nodes of each tree in breadth-first order, shape (trees, 2**depth - 1); a row goes
    left where its feature is less than the threshold. leaf: shape (trees, 2**depth).
    """

    feature: np.ndarray
    threshold: np.ndarray
    leaf: np.ndarray
    outputs: int = 1

    @property
    def features(self) -> int:
        """Least number of features that a row must have."""
        return int(self.feature.max(initial=-1)) + 1

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the scores, shape (rows,) or (rows, outputs)."""
        single = features.astype(np.float32)  # thresholds are feature values, and were compared in this precision
        parts = [self._leaves(single[at : at + BLOCK]) for at in range(0, len(single), BLOCK)]
        scores = np.concatenate([np.zeros((0, len(self.leaf))), *parts])
        if self.outputs == 1:
            return scores.sum(axis=1)
        return scores.reshape(len(features), -1, self.outputs).sum(axis=1)

    def _leaves(self, rows: np.ndarray) -> np.ndarray:
        """Return the contribution of each tree to each row, shape (rows, trees)."""
        inner, width = self.feature.shape[1], rows.shape[1]
        first = inner * np.arange(len(self.leaf))[:, None]  # where a tree's inner nodes begin
        begin = width * np.arange(len(rows))
        flat, feature, threshold = rows.ravel(), self.feature.ravel(), self.threshold.ravel()
        node = np.zeros((len(self.leaf), len(rows)), np.intp)
        for _ in range(inner.bit_length()):
            at = first + node
            node += node + 1
            node += flat.take(feature.take(at) + begin) >= threshold.take(at)
        leaves = self.leaf.ravel().take(node + (first + np.arange(len(self.leaf))[:, None] - inner))
        return leaves.T

    def to_json(self) -> dict[str, Any]:
        return {
            "outputs": self.outputs,
            "feature": self.feature.tolist(),
            "threshold": [[float(f"{x:.9g}") for x in row] for row in self.threshold],
            "leaf": [[float(f"{x:.5g}") for x in row] for row in self.leaf],
        }


def forest_from_json(found: Mapping[str, Any]) -> Forest:
    """Return the forest in JSON data. Raises MeasurementError for inconsistent arrays or invalid numbers."""
    feature, threshold = np.array(found["feature"], np.intp), np.array(found["threshold"], np.float32)
    leaf, outputs = np.array(found["leaf"], float), int(found["outputs"])
    fits = feature.ndim == 2 and feature.shape == threshold.shape and leaf.shape == (len(feature), feature.shape[1] + 1)
    is_perfect = fits and leaf.shape[1] & feature.shape[1] == 0
    if not is_perfect or outputs < 1 or len(leaf) % outputs:
        raise MeasurementError("the trees of a model file do not fit together; train the model again")
    if not (np.isfinite(threshold).all() and np.isfinite(leaf).all() and (feature >= 0).all()):
        raise MeasurementError("the trees of a model file have entries that are no numbers; train the model again")
    return Forest(feature, threshold, leaf, outputs)
