"""Cast between every pair of dtypes, as ONNX words it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.runtime.host.reference import onnx_outputs, run
from tilestitch.runtime.dtypes import numpy_dtype
from tilestitch.runtime.host import HostError

NUMBERS = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4",
]  # fmt: skip


@pytest.mark.parametrize("target", NUMBERS)
@pytest.mark.parametrize("source", NUMBERS)
def test_small_whole_numbers_survive_every_pair_of_dtypes(source: str, target: str) -> None:
    x = np.array([[0, 1], [1, 0]]).astype(numpy_dtype(source))
    result = run("cast", x, to=target)
    assert result.dtype == numpy_dtype(target)
    np.testing.assert_array_equal(result.astype(np.float32), [[0, 1], [1, 0]])


def test_floats_are_truncated_to_integers() -> None:
    x = np.array([2.9, -2.9, 0.5, -0.5], np.float32)
    np.testing.assert_array_equal(run("cast", x, to="int32"), [2, -2, 0, 0])
    np.testing.assert_array_equal(run("cast", x, to="bool"), [True, True, True, True])


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("float8_e4m3fn", TensorProto.FLOAT8E4M3FN), ("float8_e4m3fnuz", TensorProto.FLOAT8E4M3FNUZ),
        ("float8_e5m2", TensorProto.FLOAT8E5M2), ("float8_e5m2fnuz", TensorProto.FLOAT8E5M2FNUZ),
    ],
)  # fmt: skip
def test_float8_saturates_or_overflows_as_onnx_says(target: str, code: int, source: type, saturate: int) -> None:
    x = np.array([0.47, 1e4, -1e4, np.inf, -np.inf, np.nan, 1e-7, 448.0, 464.0, 57344.0, -0.0]).astype(source)
    (expected,) = onnx_outputs("Cast", [x], to=code, saturate=saturate)
    result = run("cast", x, to=target, saturate=bool(saturate))
    np.testing.assert_array_equal(result.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
def test_float8_e8m0_rounds_to_powers_of_two(round_mode: str) -> None:
    x = np.array([0.0, 0.124, 1.0, 1.4, 1.5, 1.6, 3.0e38, 1e-40, np.inf, np.nan], np.float32)
    (expected,) = onnx_outputs("Cast", [x], to=TensorProto.FLOAT8E8M0, saturate=1, round_mode=round_mode)
    result = run("cast", x, to="float8_e8m0fnu", round_mode=round_mode)
    np.testing.assert_array_equal(result.view(np.uint8), expected.view(np.uint8))


def test_numbers_and_strings() -> None:
    texts = run("cast", np.array([1.5, np.nan, np.inf, -np.inf], np.float32), to="string")
    assert texts.tolist() == ["1.5", "NaN", "INF", "-INF"]
    back = run("cast", np.array(["1e-3", "NaN", "INF", "-INF", "+INF"], object), to="float32")
    np.testing.assert_allclose(back, np.array([1e-3, np.nan, np.inf, -np.inf, np.inf], np.float32))
    np.testing.assert_array_equal(run("cast", np.array(["-7", "3"], object), to="int64"), [-7, 3])
    assert run("cast", np.array(["18446744073709551615"], object), to="uint64")[0] == 2**64 - 1


def test_a_string_that_is_no_number_is_an_error() -> None:
    with pytest.raises(HostError, match="'seven'"):
        run("cast", np.array(["seven"], object), to="float32")


def test_float32_shortest_text_reads_back() -> None:
    x = np.array([0.1, 1 / 3, 1e-38, 16777217.0], np.float32)
    np.testing.assert_array_equal(run("cast", run("cast", x, to="string"), to="float32"), x)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_rank_zero_and_empty(shape: tuple[int, ...]) -> None:
    for target in ("float8_e8m0fnu", "float8_e4m3fn", "string", "int4", "float16"):
        assert run("cast", np.ones(shape, np.float32), to=target).shape == shape


def test_int4_wraps_like_a_truncated_integer() -> None:
    x = np.arange(-9, 16).astype(np.float32)
    np.testing.assert_array_equal(run("cast", x, to="int4").astype(np.int8), x.astype(ml_dtypes.int4).astype(np.int8))
