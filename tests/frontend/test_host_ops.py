"""Operators whose result's size depends on data, and those of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.host_models import check, model, ops, tensor
from tilestitch.compiler.ir import TensorType, Type

node = helper.make_node
X = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 2.0]], np.float32)


@pytest.mark.parametrize("x", [X, np.zeros((0,), np.float32), np.array([True, False])])
def test_non_zero(x: np.ndarray) -> None:
    result = check(model([node("NonZero", ["x"], ["y"])], {"x": tensor(x)}, ["y"]), {"x": x})
    assert result.outputs[0].type == TensorType("int64", (x.ndim, "?"))


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_unique_states_the_length_of_the_inverse(axis: int | None) -> None:
    attrs = {} if axis is None else {"axis": axis}
    names = ["y", "first", "inverse", "count"]
    result = check(model([node("Unique", ["x"], names, **attrs)], {"x": tensor(X)}, names), {"x": X})
    assert result.outputs[2].type == TensorType("int64", (6 if axis is None else X.shape[axis],))


def test_non_max_suppression_with_omitted_operands() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [5, 5, 6, 6]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7]]], np.float32)
    proto = model(
        [node("NonMaxSuppression", ["b", "s", "n", "t"], ["y"])],
        {"b": tensor(boxes), "s": tensor(scores)}, ["y"], {"n": np.array([3]), "t": np.array([0.5], np.float32)},
    )  # fmt: skip
    result = check(proto, {"b": boxes, "s": scores})
    assert result.outputs[0].type == TensorType("int64", ("?", 3))


def ml(op: str, x: np.ndarray, extra: dict[str, Any] | None = None, **attrs: Any) -> tuple[list[str], Type]:
    names = list(extra or {})
    proto = model([node(op, ["x", *names], ["y"], domain="ai.onnx.ml", **attrs)], {"x": tensor(x)}, ["y"], extra)
    result = check(proto, {"x": x})
    return ops(result), result.outputs[0].type


def test_what_compiled_kernels_can_do_is_no_host_step() -> None:
    names, type_ = ml("Binarizer", X, threshold=1.0)
    assert names == ["less", "cast"]
    names, type_ = ml("ArrayFeatureExtractor", X, {"i": np.array([[2, 0]])})
    assert names == ["gather"]
    assert type_ == TensorType("float32", (2, 2))


def test_label_encoder_by_lists_and_by_tensors() -> None:
    x = np.array([[1, 5]])
    _, type_ = ml("LabelEncoder", x, keys_int64s=[1, 2], values_floats=[0.5, 1.5], default_float=9.0)
    assert type_ == TensorType("float32", (1, 2))
    tensors = {
        "keys_tensor": numpy_helper.from_array(np.array([1, 5])),
        "values_tensor": numpy_helper.from_array(np.array([7, 8], np.int16)),
        "default_tensor": numpy_helper.from_array(np.array([-3], np.int16)),
    }
    _, type_ = ml("LabelEncoder", x, **tensors)
    assert type_ == TensorType("int16", (1, 2))


def test_tree_ensemble() -> None:
    def floats(*values: float) -> TensorProto:
        return numpy_helper.from_array(np.array(values, np.float32))

    attrs = {
        "n_targets": 2, "aggregate_function": 1, "tree_roots": [0], "nodes_featureids": [0],
        "nodes_splits": floats(0.5),
        "nodes_modes": numpy_helper.from_array(np.array([0], np.uint8)), "nodes_truenodeids": [0],
        "nodes_falsenodeids": [1], "nodes_trueleafs": [1], "nodes_falseleafs": [1], "leaf_targetids": [0, 1],
        "leaf_weights": floats(3.0, 4.0),
    }  # fmt: skip
    names, type_ = ml("TreeEnsemble", X, **attrs)
    assert names == ["host.TreeEnsemble"]
    assert type_ == TensorType("float32", (2, 2))
