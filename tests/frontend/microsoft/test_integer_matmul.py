"""Matmuls of integers whose results are floats, or integers again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import check_node, check_steps
from tests.frontend.microsoft.test_quantization import codes, scale, zero

PAIRS = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_to_float(pair: tuple[str, str], columns: bool, zeros: bool, bias: bool) -> None:
    a, b = codes(2, 3, 17, dtype=pair[0]), codes(17, 5, dtype=pair[1], seed=1)
    b_scale = np.linspace(0.01, 0.05, 5, dtype=np.float32) if columns else scale(0.02)
    b_zero = np.arange(5).astype(pair[1]) if columns else zero(3, pair[1])
    operands = [a, b, scale(0.03), b_scale, zero(7, pair[0]) if zeros else None, b_zero if zeros else None]
    check_node("MatMulIntegerToFloat", [*operands, floats(5) if bias else None], constants=[1, 3, 5])


@pytest.mark.parametrize("shape", [(3, 17), (1, 17), (2, 1, 17)])
def test_parameters_of_one_element_add_no_axis(shape: tuple[int, ...]) -> None:
    a, b = codes(*shape, dtype="uint8"), codes(17, 5, dtype="int8", seed=1)
    one = [np.array([v], np.float32) for v in (0.03, 0.02)]
    zeros = [np.array([7], np.uint8), np.array([3], np.int8)]
    check_node("MatMulIntegerToFloat", [a, b, *one, *zeros])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(3, 17), (2, 3, 17), (1, 17)])
def test_dynamic_quantisation(dtype: str, columns: bool, bias: bool, shape: tuple[int, ...]) -> None:
    b = codes(17, 5, dtype=dtype)
    b_scale = np.linspace(0.01, 0.05, 5, dtype=np.float32) if columns else scale(0.02)
    b_zero = np.arange(5).astype(dtype) if columns else zero(3, dtype)
    operands = [floats(*shape), b, b_scale, b_zero, floats(5, seed=2) if bias else None]
    check_node("DynamicQuantizeMatMul", operands, constants=[1, 2, 3])


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("attrs", [{}, {"transA": 1, "alpha": 0.7}, {"transB": 1}])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("bias", [None, (5,), (3, 1)])
def test_gemm(pair: tuple[str, str], attrs: dict[str, Any], columns: bool, bias: tuple[int, ...] | None) -> None:
    a = codes(*((17, 3) if attrs.get("transA") else (3, 17)), dtype=pair[0])
    b = codes(*((5, 17) if attrs.get("transB") else (17, 5)), dtype=pair[1], seed=1)
    b_scale = np.linspace(0.01, 0.05, 5, dtype=np.float32) if columns else scale(0.02)
    b_zero = np.arange(5).astype(pair[1]) if columns else zero(3, pair[1])
    c = None if bias is None else np.random.default_rng(2).integers(-900, 900, bias).astype(np.int32)
    operands = [a, scale(0.03), zero(7, pair[0]), b, b_scale, b_zero, c]
    check_node("QGemm", operands, attrs)
    check_steps("QGemm", [*operands, scale(0.4), zero(30, pair[0])], attrs)


def test_16_bits() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-300, 300, shape).astype(np.int16) for shape in ((2, 3, 7), (7, 5)))
    check_node("MatMulInteger16", [a, b])


def test_multiples_and_sums() -> None:
    a, b = codes(3, 5, dtype="uint8"), codes(5, dtype="uint8", seed=1)

    def multiplied(x: np.ndarray, x_zero: np.ndarray, y: np.ndarray, _: None) -> np.ndarray:
        return (x.astype(np.int32) - x_zero) * y.astype(np.int32)

    check_node("MulInteger", [a, zero(9, "uint8"), b, None], reference=multiplied)
    wide = a.astype(np.int32)
    for dtype, total in (("int8", np.int32), ("uint8", np.uint32)):
        given = (wide // 2).astype(dtype)
        wanted = given.astype(total).sum(1, keepdims=True, dtype=total)
        check_node("ReduceSumInteger", [given], {"axes": [-1], "keepdims": 1}, reference=lambda _, y=wanted: y)
