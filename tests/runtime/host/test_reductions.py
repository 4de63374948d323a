"""Reductions, positions of extremes, running sums and products."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.host.reference import onnx_outputs, run
from tilestitch.runtime.host import HostError

SHAPES_AND_AXES = [
    ((), ()),
    ((5,), (0,)),
    ((2, 3, 4), (0, 2)),
    ((2, 3, 4), ()),
    ((3, 0, 2), (1,)),
    ((1, 7, 1), (0, 1, 2)),
]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axes"), SHAPES_AND_AXES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint16, np.int64])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_reductions_fold_the_given_axes_in_their_own_dtype(
    name: str, dtype: type, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool
) -> None:
    x = np.random.default_rng(4).integers(1, 4, size=shape).astype(dtype)
    result = run(f"reduce_{name}", x, axes=axes, keepdims=keepdims)
    low, high = (-np.inf, np.inf) if x.dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    initial = {"sum": 0, "prod": 1, "max": low, "min": high}[name]
    wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    expected = np.asarray(getattr(np, name)(wide, axis=axes, keepdims=keepdims, initial=initial))
    assert result.dtype == dtype
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected.astype(dtype))


def test_half_floats_accumulate_in_float32() -> None:
    ones = np.ones(4099, np.float16)
    assert run("reduce_sum", ones, axes=(0,), keepdims=False) == np.float16(4099)
    assert run("reduce_sum", ones.astype(ml_dtypes.bfloat16), axes=(0,), keepdims=False) == ml_dtypes.bfloat16(4099)


def test_integer_sums_wrap_around() -> None:
    assert run("reduce_sum", np.full(3, 100, np.int8), axes=(0,), keepdims=False) == 44


def test_nan_goes_through_max_and_min() -> None:
    x = np.array([1, np.nan, 3], np.float32)
    assert np.isnan(run("reduce_max", x, axes=(0,), keepdims=False))
    assert np.isnan(run("reduce_min", x, axes=(0,), keepdims=False))


@pytest.mark.parametrize("select_last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("name", "op"), [("arg_max", "ArgMax"), ("arg_min", "ArgMin")])
def test_arg_extremes_settle_ties_as_asked(name: str, op: str, axis: int, keepdims: int, select_last: int) -> None:
    x = np.array([[2, 2, 1], [1, 3, 3], [2, 3, 1]], np.int32)
    (expected,) = onnx_outputs(op, [x], axis=axis, keepdims=keepdims, select_last_index=select_last)
    np.testing.assert_array_equal(run(name, x, axis=axis, keepdims=keepdims, select_last=select_last), expected)


def test_an_empty_axis_has_no_extreme() -> None:
    with pytest.raises(HostError, match="empty"):
        run("arg_max", np.zeros((2, 0)), axis=1, keepdims=False, select_last=False)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 0), (3, 1)])
@pytest.mark.parametrize("reducer", ["sum", "prod"])
def test_cumulative_leaves_out_the_element_itself_if_exclusive(
    reducer: str, shape: tuple[int, ...], exclusive: bool, reverse: bool
) -> None:
    x = np.random.default_rng(5).integers(1, 5, size=shape).astype(np.int32)
    axis = len(shape) - 1
    result = run("cumulative", x, axis=axis, reducer=reducer, exclusive=exclusive, reverse=reverse)
    expected = np.empty_like(x)
    fold = np.sum if reducer == "sum" else np.prod
    for i in range(shape[axis]):
        part = x[..., i + exclusive :] if reverse else x[..., : i + 1 - exclusive]
        expected[..., i] = fold(part, axis=-1)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == x.dtype
