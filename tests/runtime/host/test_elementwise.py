"""Element-wise primitives: every dtype, wrap-around, division, shifts, NaN, broadcasting, empty and rank 0."""

from __future__ import annotations

import math
import warnings

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.host.reference import onnx_outputs, run

UNARY = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "round": "Round", "sqrt": "Sqrt",
    "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos",
    "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh",
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (2, 1, 5)])
@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_agree_with_onnx(name: str, shape: tuple[int, ...], dtype: type) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(dtype)
    (expected,) = onnx_outputs(UNARY[name], [x])
    actual = run(name, x)
    assert actual.dtype == dtype
    assert actual.shape == shape
    # onnx computes small floats in their own precision; ours are rounded once.
    np.testing.assert_allclose(actual, expected, rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny)


def test_erf_is_that_of_the_c_library() -> None:
    x = np.array([[-6.0, -0.5, 0.0], [1e-10, 0.84375, np.inf]])
    np.testing.assert_array_equal(run("erf", x), [[math.erf(v) for v in row] for row in x.tolist()])
    assert run("erf", np.array(0.5, np.float16)) == np.float16(math.erf(0.5))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float16])
def test_small_floats_are_computed_in_float32_and_rounded_once(dtype: type) -> None:
    a = np.linspace(-3, 3, 13).astype(dtype)
    b = np.linspace(1, 2, 13).astype(dtype)
    wide = a.astype(np.float32) * b.astype(np.float32)
    np.testing.assert_array_equal(run("mul", a, b).astype(np.float32), wide.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_integers_wrap_around(dtype: type) -> None:
    limits = np.iinfo(dtype)
    top, one = np.array([limits.max], dtype), np.array([1], dtype)
    assert run("add", top, one)[0] == limits.min
    assert run("sub", np.array([limits.min], dtype), one)[0] == limits.max
    assert run("neg", np.array([limits.min], dtype))[0] == limits.min


def test_sub_byte_integers_wrap_around() -> None:
    a = np.array([7, -8, 3], ml_dtypes.int4)
    np.testing.assert_array_equal(run("add", a, a).astype(np.int8), [-2, 0, 6])
    u = np.array([15, 3], ml_dtypes.uint4)
    np.testing.assert_array_equal(run("mul", u, u).astype(np.uint8), [1, 9])


def test_integer_division_goes_towards_zero_and_by_zero_gives_zero() -> None:
    a = np.array([7, -7, 7, -7, 5, -128], np.int8)
    b = np.array([2, 2, -2, -2, 0, -1], np.int8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(run("div", a, b), [3, -3, -3, 3, 0, -128])
        np.testing.assert_array_equal(run("mod", a, b), [1, 1, -1, -1, 0, 0])
        np.testing.assert_array_equal(run("fmod", a, b), [1, -1, 1, -1, 0, 0])
        np.testing.assert_array_equal(run("div", np.array([9], np.uint8), np.array([0], np.uint8)), [0])


def test_floats_divide_to_infinity_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run("div", np.array([1.0, -1.0, 0.0], np.float32), np.zeros(3, np.float32))
        assert math.isnan(run("log", np.array(-1.0, np.float32)))
    np.testing.assert_array_equal(result, [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        (np.array([2, -3, 0], np.int32), np.array([10, 3, 0], np.int64)),
        (np.array([2.0, 3.0], np.float32), np.array([10, -2], np.int64)),
        (np.array([2, 9], np.int64), np.array([0.5, 0.5], np.float32)),
        (np.array([2, 3], np.uint8), np.array([9, 2], np.uint64)),
    ],
)
def test_pow_keeps_the_dtype_of_the_base(base: np.ndarray, exponent: np.ndarray) -> None:
    expected = (base.astype(np.float64) ** exponent.astype(np.float64)).astype(
        np.int64 if base.dtype.kind in "iu" else base.dtype
    )
    np.testing.assert_allclose(run("pow", base, exponent), expected.astype(base.dtype), rtol=1e-6)
    assert run("pow", base, exponent).dtype == base.dtype


def test_integer_pow_with_negative_exponent_is_the_truncated_quotient() -> None:
    base = np.array([1, -1, -1, 2, 0], np.int32)
    np.testing.assert_array_equal(run("pow", base, np.array([-3, -3, -2, -1, -1], np.int32)), [1, -1, 1, 0, 0])


def test_maximum_and_minimum_give_nan_if_either_operand_is_nan() -> None:
    a, b = np.array([np.nan, 1.0], np.float16), np.array([0.0, np.nan], np.float16)
    assert np.isnan(run("maximum", a, b)).all()
    assert np.isnan(run("minimum", a, b)).all()


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16])
def test_shifts_by_the_width_or_more_shift_everything_out(dtype: type) -> None:
    width = np.dtype(dtype).itemsize * 8
    x = np.array([4, 4, 4], dtype)
    amount = np.array([1, width, width + 1], dtype)
    np.testing.assert_array_equal(run("shift_left", x, amount), [8, 0, 0])
    np.testing.assert_array_equal(run("shift_right", x, amount), [2, 0, 0])


def test_right_shift_of_negatives_keeps_the_sign() -> None:
    x = np.array([-8, -8, -8], np.int32)
    np.testing.assert_array_equal(run("shift_right", x, np.array([1, 40, -1], np.int32)), [-4, -1, -1])
    np.testing.assert_array_equal(run("shift_left", x, np.array([1, 40, -1], np.int32)), [-16, 0, 0])


def test_is_inf_counts_only_the_signs_asked_for() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0], np.float32)
    np.testing.assert_array_equal(run("is_inf", x, positive=True, negative=False), [True, False, False, False])
    np.testing.assert_array_equal(run("is_inf", x, positive=False, negative=True), [False, True, False, False])
    np.testing.assert_array_equal(run("is_nan", x.astype(ml_dtypes.bfloat16)), [False, False, True, False])


def test_strings_compare_and_select() -> None:
    a, b = np.array(["x", "y"], object), np.array(["x", "z"], object)
    np.testing.assert_array_equal(run("equal", a, b), [True, False])
    assert run("select", np.array([False, True]), a, b).tolist() == ["x", "y"]


def test_select_and_comparison_broadcast() -> None:
    condition = np.array([[True], [False]])
    result = run("select", condition, np.float32(1), np.arange(3, dtype=np.float32))
    np.testing.assert_array_equal(result, [[1, 1, 1], [0, 1, 2]])
    assert run("less", np.zeros((0, 1)), np.zeros(4)).shape == (0, 4)


def test_bit_cast_reinterprets_any_layout() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(run("bit_cast", x, to="int32"), np.ascontiguousarray(x).view(np.int32))


def test_results_never_share_memory_with_operands() -> None:
    x = np.ones(3, np.float32)
    for name in ("neg", "abs", "round", "erf"):
        assert not np.shares_memory(run(name, x), x)
