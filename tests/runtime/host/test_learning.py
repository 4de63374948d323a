"""ai.onnx.ml: label encoders, feature extraction and tree ensembles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.host.reference import run
from tilestitch.runtime.host import PREPARE, TABLE, HostError

LEADS = ("nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs", "nodes_falseleafs")


def test_label_encoder_maps_keys_and_the_rest_to_the_default() -> None:
    x = np.array([["a", "z"], ["b", "a"]], object)
    result = run("LabelEncoder", x, keys=["a", "b"], results=[1, 2], default=-1, dtype="int64")
    np.testing.assert_array_equal(result, [[1, -1], [2, 1]])
    names = run("LabelEncoder", np.array([2, 9]), keys=[2], results=["two"], default="none", dtype="string")
    assert names.tolist() == ["two", "none"]


def test_nan_may_be_a_key() -> None:
    x = np.array([np.nan, 1.0, 2.0], np.float32)
    result = run("LabelEncoder", x, keys=[1.0, float("nan")], results=[10.0, 20.0], default=0.0, dtype="float32")
    np.testing.assert_array_equal(result, [20, 10, 0])


def test_array_feature_extractor_takes_columns() -> None:
    x = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(run("ArrayFeatureExtractor", x, np.array([[2, 0]])), [[2, 0], [5, 3]])
    assert run("ArrayFeatureExtractor", x[0], np.array([1])).shape == (1, 1)
    with pytest.raises(HostError, match="index 3"):
        run("ArrayFeatureExtractor", x, np.array([3]))


def test_binarizer_is_strictly_above_the_threshold() -> None:
    np.testing.assert_array_equal(run("Binarizer", np.array([1.0, 2.0], np.float32), threshold=1.0), [0, 1])


def tree(**changes: Any) -> dict[str, Any]:
    """Two trees: x0 <= 1 ? leaf 0 : (x1 in {3, 5} ? leaf 1 : leaf 2), and one that always ends in leaf 3."""
    attrs: dict[str, Any] = {
        "nodes_splits": [1.0, 0.0, 0.0],
        "nodes_featureids": [0, 1, 0],
        "nodes_modes": [0, 6, 0],
        "nodes_truenodeids": [0, 1, 3],
        "nodes_falsenodeids": [1, 2, 3],
        "nodes_trueleafs": [1, 1, 1],
        "nodes_falseleafs": [0, 1, 1],
        "leaf_targetids": [0, 1, 1, 0],
        "leaf_weights": [1.0, 10.0, 100.0, 0.5],
        "tree_roots": [0, 2],
        "membership_values": [3.0, 5.0, float("nan")],
        "n_targets": 2,
    }
    return attrs | changes


ROWS = np.array([[0.0, 3.0], [2.0, 5.0], [2.0, 4.0], [1.0, 0.0]], np.float32)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (1, [[1.5, 0], [0.5, 10], [0.5, 100], [1.5, 0]]),
        (0, [[0.75, 0], [0.25, 5], [0.25, 50], [0.75, 0]]),
    ],
)
def test_trees_add_or_average_their_leaves(aggregate: int, expected: list[list[float]]) -> None:
    result = run("TreeEnsemble", ROWS, **tree(aggregate_function=aggregate))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)


def test_minimum_and_maximum_of_leaves() -> None:
    assert run("TreeEnsemble", ROWS[:1], **tree(aggregate_function=2, n_targets=1, leaf_targetids=[0] * 4))[0, 0] == 0.5
    assert run("TreeEnsemble", ROWS[:1], **tree(aggregate_function=3, n_targets=1, leaf_targetids=[0] * 4))[0, 0] == 1.0


def test_missing_values_follow_the_true_branch_if_so_marked() -> None:
    x = np.array([[np.nan, 4.0]], np.float32)
    assert run("TreeEnsemble", x, **tree())[0].tolist() == [0.5, 100]
    assert run("TreeEnsemble", x, **tree(nodes_missing_value_tracks_true=[1, 0, 0]))[0].tolist() == [1.5, 0]


def test_scores_may_be_transformed() -> None:
    softmax = run("TreeEnsemble", ROWS, **tree(post_transform=1))
    np.testing.assert_allclose(softmax.sum(1), 1, rtol=1e-6)
    zero = run("TreeEnsemble", ROWS, **tree(post_transform=3))
    assert zero[0].tolist() == [1, 0]
    logistic = run("TreeEnsemble", ROWS, **tree(post_transform=2))
    np.testing.assert_allclose(logistic[0], [1 / (1 + np.exp(-1.5)), 0.5], rtol=1e-6)


def test_the_probit_of_what_is_no_share_is_nan() -> None:
    leaves = {"post_transform": 4, "n_targets": 1, "leaf_targetids": [0] * 4}
    for share, expected in ((0.5, 0.0), (0.0, -np.inf), (1.0, np.inf), (1.5, np.nan), (-1.0, np.nan)):
        attrs = tree(leaf_weights=[share] * 4, aggregate_function=3, **leaves)
        np.testing.assert_array_equal(run("TreeEnsemble", ROWS[:1], **attrs), np.float32([[expected]]))


def test_a_tree_that_goes_in_circles_is_refused() -> None:
    with pytest.raises(HostError, match="circles"):
        run("TreeEnsemble", ROWS, **tree(**{name: [0, 0, 0] for name in LEADS}))


def test_no_rows() -> None:
    assert run("TreeEnsemble", ROWS[:0], **tree()).shape == (0, 2)


def test_what_is_found_once_gives_the_same() -> None:
    x = np.array([1.0, np.nan, 3.0], np.float32)
    attrs = {"keys": [1.0, float("nan")], "results": [10.0, 20.0], "default": -1.0, "dtype": "float32"}
    (once,) = TABLE["LabelEncoder"]([x], PREPARE["LabelEncoder"](attrs))
    np.testing.assert_array_equal(once, [10, 20, -1])
