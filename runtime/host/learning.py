"""Operators of the domain ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, check_indices, computing, narrow, numpy_dtype, widen


def _array_feature_extractor(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, indices = inputs
    picked = np.take(x, check_indices(indices.reshape(-1), x.shape[-1], x.ndim - 1), axis=-1)
    return [picked.reshape(1, -1) if x.ndim == 1 else picked]


def _binarizer(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    (x,) = inputs
    return [narrow(widen(x) > attrs.get("threshold", 0.0), x.dtype)]


def _with_table(attrs: Attrs) -> Attrs:
    """Return the attributes of a label encoder with its lookup table."""
    table = dict(zip(attrs["keys"], attrs["results"], strict=True))
    # NaN is unequal to itself, yet the standard lets it be a key.
    of_nan = next((result for key, result in table.items() if key != key), attrs["default"])
    return {**attrs, "table": table, "of_nan": of_nan}


def _label_encoder(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute LabelEncoder. Attributes: `keys`, `results` (equally long lists), `default`, and the output's `dtype`."""
    (x,) = inputs
    if "table" not in attrs:
        attrs = _with_table(attrs)
    items, get, default, of_nan = x.reshape(-1).tolist(), attrs["table"].get, attrs["default"], attrs["of_nan"]
    results: Iterable[Any] = map(get, items, repeat(default))
    if x.dtype.kind not in "OUSiub":
        results = (get(item, default) if item == item else of_nan for item in items)
    dtype = object if attrs["dtype"] == "string" else numpy_dtype(attrs["dtype"])
    return [np.fromiter(results, dtype, len(items)).reshape(x.shape)]


_MEMBER = 6
_COMPARISONS: Sequence[Callable[[Any, Any], Any]] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)


def _tree_ensemble(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x = inputs[0]
    rows, targets = len(x), attrs["n_targets"]
    members = _member_sets(attrs)
    weights, targets_of_leaf = np.asarray(attrs["leaf_weights"]), np.asarray(attrs["leaf_targetids"], np.int64)
    how = attrs.get("aggregate_function", 1)
    if how not in _AGGREGATES:
        raise HostError(f"unknown aggregate_function {how}; known: 0 average, 1 sum, 2 min, 3 max")
    combine, start = _AGGREGATES[how]
    result = np.full((rows, targets), start, np.float64)
    for root in attrs["tree_roots"]:
        leaves = _leaves_of(x, root, members, attrs)
        combine.at(result, (np.arange(rows), targets_of_leaf[leaves]), weights[leaves])
    if how == 0:
        result = result / len(attrs["tree_roots"])
    limits = np.finfo(widen(x).dtype)
    with computing():
        result = _transformed(np.clip(result, limits.min, limits.max), attrs.get("post_transform", 0))
        return [narrow(result, x.dtype)]


_AGGREGATES: Mapping[int, tuple[np.ufunc, float]] = {
    0: (np.add, 0.0), 1: (np.add, 0.0), 2: (np.minimum, np.inf), 3: (np.maximum, -np.inf),
}  # fmt: skip


def _member_sets(attrs: Attrs) -> dict[int, np.ndarray]:
    """Return the members for each node that tests membership: the groups between NaNs, in the order of the nodes."""
    groups: list[list[float]] = [[]]
    for value in attrs.get("membership_values") or ():
        if value == value:
            groups[-1].append(value)
        else:
            groups.append([])
    nodes = [i for i, mode in enumerate(attrs["nodes_modes"]) if mode == _MEMBER]
    if len(nodes) > len(groups):
        raise HostError(f"{len(nodes)} nodes test membership, but there are {len(groups)} sets of members")
    return {node: np.array(group) for node, group in zip(nodes, groups)}


def _leaves_of(x: np.ndarray, root: int, members: Mapping[int, np.ndarray], attrs: Attrs) -> np.ndarray:
    """Return the leaf that each row of x reaches in the tree at `root`."""
    children = (np.asarray(attrs["nodes_falsenodeids"]), np.asarray(attrs["nodes_truenodeids"]))
    ends = (np.asarray(attrs["nodes_falseleafs"]), np.asarray(attrs["nodes_trueleafs"]))
    at, done = np.full(len(x), root), np.zeros(len(x), bool)
    tests = 0
    while not done.all():
        if tests == len(children[0]):
            raise HostError(f"the tree at node {root} goes in circles")
        tests += 1
        active = np.flatnonzero(~done)
        nodes = at[active]
        truth = np.zeros(len(active), bool)
        for node in np.unique(nodes):
            here = nodes == node
            truth[here] = _decide(x[active[here], attrs["nodes_featureids"][node]], int(node), members, attrs)
        at[active] = np.where(truth, children[1][nodes], children[0][nodes])
        done[active] = np.where(truth, ends[1][nodes], ends[0][nodes]) != 0
    return at


def _decide(values: np.ndarray, node: int, members: Mapping[int, np.ndarray], attrs: Attrs) -> np.ndarray:
    mode = attrs["nodes_modes"][node]
    if mode == _MEMBER:
        truth = np.isin(values, members[node])
    else:
        truth = _COMPARISONS[mode](values, np.asarray(attrs["nodes_splits"][node], values.dtype))
    missing = attrs.get("nodes_missing_value_tracks_true")
    return truth | np.isnan(values) if missing and missing[node] else truth


def _probit(share: float) -> float:
    """Return the quantile of the standard normal distribution; NaN outside [0, 1]."""
    from statistics import NormalDist

    if 0 < share < 1:
        return NormalDist().inv_cdf(share)
    return {0.0: -np.inf, 1.0: np.inf}.get(share, np.nan)


def _transformed(scores: np.ndarray, how: int) -> np.ndarray:
    if how == 0:
        return scores
    if how == 2:
        return 1 / (1 + np.exp(-scores))
    if how == 4:
        return np.vectorize(_probit, otypes=[np.float64])(scores)
    if how not in (1, 3):
        raise HostError(f"unknown post_transform {how}; known: 0 none, 1 softmax, 2 logistic, 3 softmax_zero, 4 probit")
    # softmax_zero excludes scores of exactly zero from the sum, and sets them to zero.
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    powers = np.where(scores == 0, 0, powers) if how == 3 else powers
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


TABLE: Mapping[str, HostFn] = {
    "ArrayFeatureExtractor": _array_feature_extractor, "Binarizer": _binarizer, "LabelEncoder": _label_encoder,
    "TreeEnsemble": _tree_ensemble,
}  # fmt: skip

PREPARE: Mapping[str, Callable[[Attrs], Attrs]] = {"LabelEncoder": _with_table}
"""By operator, the function that computes once, for all runs, what depends on its attributes alone."""
