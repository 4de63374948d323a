"""Matmuls and convolutions against plain sums of products."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.host.reference import run
from tilestitch.runtime.host import HostError

RANDOM = np.random.default_rng(6)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize(("a", "b"), [((3, 5), (5, 7)), ((2, 1, 3, 5), (4, 5, 1)), ((0, 5), (5, 2)), ((3, 0), (0, 2))])
def test_matmul_swaps_and_broadcasts(a: tuple[int, ...], b: tuple[int, ...], trans_a: bool, trans_b: bool) -> None:
    x, y = RANDOM.normal(size=a).astype(np.float32), RANDOM.normal(size=b).astype(np.float32)
    left = np.ascontiguousarray(np.swapaxes(x, -1, -2)) if trans_a else x
    right = np.ascontiguousarray(np.swapaxes(y, -1, -2)) if trans_b else y
    np.testing.assert_allclose(run("matmul", left, right, trans_a=trans_a, trans_b=trans_b), np.matmul(x, y), rtol=1e-5)


def test_int8_gemms_widen_exactly() -> None:
    a = np.full((2, 300), -128, np.int8)
    b = np.full((300, 3), -128, np.int8)
    result = run("matmul", a, b, out_dtype="int32")
    assert result.dtype == np.int32
    assert (result == 300 * 128 * 128).all()
    mixed = run("matmul", np.full((1, 2), 255, np.uint8), np.full((2, 1), -128, np.int8), out_dtype="int32")
    assert mixed == -2 * 255 * 128


def test_integer_gemms_wrap_around_in_their_own_width() -> None:
    big = np.full((1, 1), 2**40, np.int64)
    assert run("matmul", big, big)[0, 0] == 0
    assert (
        run("matmul", np.full((1, 2), 2**20, np.int32), np.full((2, 1), 2**10 + 1, np.int32))[0, 0] == -(2**31) + 2**21
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_gemms_accumulate_in_float32(dtype: type) -> None:
    a, b = np.ones((1, 4096), dtype), np.full((4096, 1), 0.25, dtype)
    assert run("matmul", a, b).astype(np.float32) == 1024
    assert run("matmul", a, b, out_dtype="float32").dtype == np.float32


def test_matrices_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(HostError, match="cannot be multiplied"):
        run("matmul", np.zeros((2, 3)), np.zeros((2, 3)))


CONVOLUTIONS = [
    # spatial, channels, outputs, kernel, strides, before, after, dilations, groups
    ((7,), 3, 4, (3,), (1,), (0,), (0,), (1,), 1),
    ((8,), 2, 2, (2,), (3,), (1,), (2,), (2,), 2),
    ((5, 6), 4, 6, (3, 2), (2, 1), (1, 0), (0, 1), (1, 2), 2),
    ((4, 4), 3, 3, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 3),
    ((3, 4, 5), 2, 3, (2, 2, 3), (1, 2, 1), (1, 0, 1), (0, 1, 1), (1, 1, 2), 1),
]


def _conv(x: np.ndarray, w: np.ndarray, strides, before, after, dilations, groups: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    x = np.pad(x, [(0, 0), (0, 0), *zip(before, after)])
    kernel = w.shape[2:]
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, strides, dilations)]
    result = np.zeros((x.shape[0], w.shape[0], *sizes), np.float64)
    per_in, per_out = w.shape[1], w.shape[0] // groups
    for o, place, k in product(range(w.shape[0]), np.ndindex(*sizes), np.ndindex(*kernel)):
        group = o // per_out
        at = tuple(p * s + i * d for p, s, i, d in zip(place, strides, k, dilations))
        patch = x[(slice(None), slice(group * per_in, (group + 1) * per_in), *at)]
        result[(slice(None), o, *place)] += patch @ w[(o, slice(None), *k)]
    return result


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv_sums_products_over_the_window(case, batch: int, layout: str) -> None:  # type: ignore[no-untyped-def]
    spatial, channels, outputs, kernel, strides, before, after, dilations, groups = case
    x = RANDOM.integers(-4, 5, size=(batch, channels, *spatial)).astype(np.float32)
    w = RANDOM.integers(-4, 5, size=(outputs, channels // groups, *kernel)).astype(np.float32)
    expected = _conv(x, w, strides, before, after, dilations, groups)
    attrs = {
        "strides": strides,
        "before": before,
        "after": after,
        "dilations": dilations,
        "groups": groups,
        "layout": layout,
    }
    if layout == "NXC":
        x, w = np.moveaxis(x, 1, -1), np.moveaxis(w, (1, 0), (-2, -1))
        expected = np.moveaxis(expected, 1, -1)
    np.testing.assert_array_equal(run("conv", x, w, **attrs), expected)


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv_transpose_is_the_gradient_of_conv(case, layout: str) -> None:  # type: ignore[no-untyped-def]
    """<conv(x), y> = <x, conv_transpose(y)> for every x and y."""
    spatial, channels, outputs, kernel, strides, before, after, dilations, groups = case
    x = RANDOM.integers(-4, 5, size=(2, channels, *spatial)).astype(np.float64)
    w = RANDOM.integers(-4, 5, size=(outputs, channels // groups, *kernel)).astype(np.float64)
    forward = _conv(x, w, strides, before, after, dilations, groups)
    y = RANDOM.integers(-4, 5, size=forward.shape).astype(np.float64)
    reached = [
        (n - 1) * s + (k - 1) * d + 1 - b - a
        for n, s, k, d, b, a in zip(forward.shape[2:], strides, kernel, dilations, before, after)
    ]
    padding = [n - r for n, r in zip(spatial, reached)]
    attrs = {
        "strides": strides,
        "before": before,
        "after": after,
        "dilations": dilations,
        "groups": groups,
        "output_padding": padding,
        "layout": layout,
    }
    if layout == "NXC":
        back = np.moveaxis(
            run("conv_transpose", np.moveaxis(y, 1, -1), np.moveaxis(w, (0, 1), (-2, -1)), **attrs), -1, 1
        )
    else:
        back = run("conv_transpose", y, w, **attrs)
    assert back.shape == x.shape
    assert np.sum(forward * y) == np.sum(x * back)


def test_a_window_larger_than_its_input_is_an_error() -> None:
    attrs = {"strides": (1,), "before": (0,), "after": (0,), "dilations": (1,), "groups": 1, "layout": "NCX"}
    with pytest.raises(HostError, match="window"):
        run("conv", np.zeros((1, 1, 2)), np.zeros((1, 1, 3)), **attrs)
    with pytest.raises(HostError, match="groups"):
        run("conv", np.zeros((1, 3, 4)), np.zeros((1, 1, 3)), **attrs)


def test_integer_convolution_widens() -> None:
    x, w = np.full((1, 1, 3), 255, np.uint8), np.full((1, 1, 3), -128, np.int8)
    attrs = {
        "strides": (1,),
        "before": (0,),
        "after": (0,),
        "dilations": (1,),
        "groups": 1,
        "layout": "NCX",
        "out_dtype": "int32",
    }
    result = run("conv", x, w, **attrs)
    assert result.dtype == np.int32
    assert result[0, 0, 0] == -3 * 255 * 128


# --- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_window_reduce_counts_padding_as_the_identity(reducer: str, dtype: type, layout: str) -> None:
    x = -RANDOM.integers(1, 5, size=(2, 3, 6, 5)).astype(dtype)
    attrs = {
        "kernel": (3, 2),
        "strides": (2, 1),
        "before": (1, 0),
        "after": (1, 1),
        "dilations": (1, 2),
        "layout": layout,
    }
    lowest = -np.inf if np.dtype(dtype).kind == "f" else np.iinfo(dtype).min
    padded = np.pad(
        x.astype(np.float64), [(0, 0), (0, 0), (1, 1), (0, 1)], constant_values=0 if reducer == "sum" else lowest
    )
    expected = np.empty((2, 3, 3, 4))
    for i, j in np.ndindex(3, 4):
        expected[:, :, i, j] = getattr(padded[:, :, 2 * i : 2 * i + 3, j : j + 3 : 2], reducer)((2, 3))
    result = run("window_reduce", np.moveaxis(x, 1, -1) if layout == "NXC" else x, reducer=reducer, **attrs)
    assert result.dtype == dtype
    np.testing.assert_array_equal(np.moveaxis(result, -1, 1) if layout == "NXC" else result, expected)
