"""Operators whose result's size depends on data."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.frontend.host_models import check, model, tensor
from tilestitch.compiler.ir import TensorType

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
