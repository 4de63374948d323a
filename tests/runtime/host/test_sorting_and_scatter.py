"""top_k and the scatters."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.host.reference import onnx_outputs, run
from tilestitch.runtime.host import TABLE, HostError


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64, np.float16, ml_dtypes.bfloat16])
def test_top_k_orders_equal_elements_by_index(dtype: type, largest: bool) -> None:
    x = np.array([[3, 1, 3, 0, 1], [0, 0, 0, 0, 0]]).astype(dtype)
    values, indices = TABLE["top_k"]([x], {"k": 4, "axis": 1, "largest": largest})
    order = [[0, 2, 1, 4], [0, 1, 2, 3]] if largest else [[3, 1, 4, 0], [0, 1, 2, 3]]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values.astype(np.float32), np.take_along_axis(x.astype(np.float32), indices, 1))
    assert (values.dtype, indices.dtype) == (dtype, np.int64)


def test_top_k_of_none_and_of_too_many() -> None:
    assert TABLE["top_k"]([np.zeros((2, 3))], {"k": 0, "axis": 0, "largest": True})[0].shape == (0, 3)
    with pytest.raises(HostError, match="k = 4 of the 3"):
        TABLE["top_k"]([np.zeros(3)], {"k": 4, "axis": 0, "largest": True})


def test_extreme_integers_are_ordered_without_overflow() -> None:
    x = np.array([-128, 127, 0], np.int8)
    assert TABLE["top_k"]([x], {"k": 3, "axis": 0, "largest": True})[1].tolist() == [1, 2, 0]


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_scatter_elements_agrees_with_onnx(axis: int, reduction: str, dtype: type) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    indices = np.array([[0, 2], [-1, 1]]) if axis else np.array([[0, 2], [-2, 1]])
    updates = np.array([[5, -6], [7, 2]]).astype(dtype)
    (expected,) = onnx_outputs("ScatterElements", [x, indices, updates], axis=axis, reduction=reduction)
    before = x.copy()
    np.testing.assert_array_equal(
        run("scatter_elements", x, indices, updates, axis=axis, reduction=reduction), expected
    )
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd_combines_every_update(reduction: str) -> None:
    x = np.full((4, 2), 3, np.float32)
    indices = np.array([[1], [1], [-1]])
    updates = np.array([[5, 1], [2, 4], [0, 9]], np.float32)
    (expected,) = onnx_outputs("ScatterND", [x, indices % 4, updates], reduction=reduction)
    np.testing.assert_array_equal(run("scatter_nd", x, indices, updates, reduction=reduction), expected)


def test_half_floats_are_added_in_float32() -> None:
    x, indices, updates = np.zeros(1, np.float16), np.zeros(4099, np.int64), np.ones(4099, np.float16)
    result = run("scatter_elements", x, indices, updates, axis=0, reduction="add")
    assert result == np.float16(4099)


def test_strings_scatter() -> None:
    x = np.array(["a", "b"], object)
    result = run("scatter_elements", x, np.array([1]), np.array(["c"], object), axis=0, reduction="none")
    assert result.tolist() == ["a", "c"]


def test_bad_indices_and_shapes_are_errors() -> None:
    with pytest.raises(HostError, match="index 2 at position"):
        run("scatter_elements", np.zeros(2), np.array([2]), np.zeros(1), axis=0, reduction="none")
    with pytest.raises(HostError, match="do not fit"):
        run("scatter_nd", np.zeros((2, 3)), np.array([[0]]), np.zeros((1, 2)), reduction="none")
    with pytest.raises(HostError, match="unknown reduction"):
        run("scatter_elements", np.zeros(2), np.array([1]), np.zeros(1), axis=0, reduction="mean")


def test_empty_scatter_is_a_copy() -> None:
    x = np.ones((2, 3))
    result = run("scatter_nd", x, np.zeros((0, 1), np.int64), np.zeros((0, 3)), reduction="add")
    np.testing.assert_array_equal(result, x)
    assert not np.shares_memory(result, x)
