"""NonZero, Compress, Unique and NonMaxSuppression."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.host.reference import check_against_onnx, onnx_outputs, run
from tilestitch.runtime.host import TABLE, HostError


@pytest.mark.parametrize(
    "x", [np.array([[1, 0], [0, 2]]), np.zeros((0, 3)), np.array([0.0, np.nan]), np.array([True, False])]
)
def test_non_zero_lists_coordinates_in_row_major_order(x: np.ndarray) -> None:
    np.testing.assert_array_equal(run("NonZero", x), np.array(np.nonzero(x)))
    assert run("NonZero", x).dtype == np.int64


def test_non_zero_of_a_scalar_has_no_coordinates() -> None:
    assert run("NonZero", np.array(3.0)).shape == (0, 1)
    assert run("NonZero", np.array(0.0)).shape == (0, 0)


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress_keeps_where_the_condition_holds(axis: int | None) -> None:
    x = np.arange(6).reshape(2, 3)
    attrs = {} if axis is None else {"axis": axis}
    check_against_onnx("Compress", x, np.array([False, True]), **attrs)


def test_a_condition_longer_than_the_axis_is_an_error() -> None:
    with pytest.raises(HostError, match="condition"):
        run("Compress", np.zeros(2), np.array([True] * 3))


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique_gives_first_indices_inverse_and_counts(axis: int | None, is_sorted: int) -> None:
    x = np.array([[2, 1, 1], [2, 1, 1], [0, 3, 3]], np.float32)
    attrs = {"sorted": is_sorted} | ({} if axis is None else {"axis": axis})
    values, firsts, inverse, counts = TABLE["Unique"]([x], attrs)
    slices = x.ravel() if axis is None else np.moveaxis(x, axis, 0)
    distinct = np.moveaxis(values, axis or 0, 0)
    np.testing.assert_array_equal(distinct[inverse], slices)
    np.testing.assert_array_equal(slices[firsts], distinct)
    np.testing.assert_array_equal(np.bincount(inverse), counts)
    if not is_sorted:
        assert firsts.tolist() == sorted(firsts.tolist())
    else:
        expected = onnx_outputs("Unique", [x], 4, **attrs)
        np.testing.assert_array_equal(values, expected[0])


@pytest.mark.parametrize("axis", [None, 0])
def test_one_nan_is_like_another_and_above_all_numbers(axis: int | None) -> None:
    x = np.array([[np.nan, 1], [2, np.nan], [np.nan, 1], [2, 3]], np.float32)
    values, _, _, counts = TABLE["Unique"]([x], {} if axis is None else {"axis": axis})
    wanted = [1, 2, 3, np.nan] if axis is None else [[2, 3], [2, np.nan], [np.nan, 1]]
    np.testing.assert_array_equal(values, np.array(wanted, np.float32))
    assert counts.tolist() == ([2, 2, 1, 3] if axis is None else [1, 1, 2])


def test_unique_strings() -> None:
    values, firsts, inverse, counts = TABLE["Unique"]([np.array(["b", "a", "b"], object)], {})
    assert values.tolist() == ["a", "b"]
    assert (firsts.tolist(), inverse.tolist(), counts.tolist()) == ([1, 0], [1, 0, 1], [1, 2])


def test_unique_of_nothing() -> None:
    assert [len(part) for part in TABLE["Unique"]([np.zeros(0)], {})] == [0, 0, 0, 0]


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("threshold", [None, 0.3])
def test_non_max_suppression_agrees_with_onnx(center: int, threshold: float | None) -> None:
    random = np.random.default_rng(7)
    boxes = random.uniform(0, 1, size=(2, 30, 4)).astype(np.float32)
    scores = random.uniform(0, 1, size=(2, 3, 30)).astype(np.float32)
    operands = [boxes, scores, np.array([4]), np.array([0.2], np.float32)]
    operands += [] if threshold is None else [np.array([threshold], np.float32)]
    (expected,) = onnx_outputs("NonMaxSuppression", operands, center_point_box=center)
    np.testing.assert_array_equal(run("NonMaxSuppression", *operands, center_point_box=center), expected)


def test_no_limit_means_no_boxes() -> None:
    boxes, scores = np.zeros((1, 2, 4), np.float32), np.zeros((1, 1, 2), np.float32)
    assert run("NonMaxSuppression", boxes, scores).shape == (0, 3)
    assert run("NonMaxSuppression", boxes[:, :0], scores[..., :0], np.array([3])).shape == (0, 3)
