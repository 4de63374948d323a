"""Quantised convolutions whose scales, zero points, biases or inputs are unusual: ONNX Runtime's bytes up to one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.quantised_models import BYTES, Sketch, unoptimised
from tilestitch.compiler import compile_model
from tilestitch.runtime import load

CHANNELS = 9


def convolved(
    scales: np.ndarray, step: float, zero: int, bias: int, result: float, dtype: str = "uint8", groups: int = 1
) -> bytes:
    """Floats as bytes, a 3x3 convolution with a bias of integers up to `bias`, a ReLU, and a residual; bytes."""
    s = Sketch(seed=3)
    x = s.there_and_back("x", step, zero, dtype)
    weights = s.constant(s.bytes((CHANNELS, 6 // groups, 3, 3), "int8"))
    w = s.dequantise(weights, scales, np.zeros(CHANNELS, np.int8), axis=0)
    whole = s.random.integers(-bias, bias + 1, CHANNELS).astype(np.int32)
    product = (scales * np.float32(step)).astype(np.float32)
    b = s.dequantise(s.constant(whole), product, np.zeros(CHANNELS, np.int32), axis=0)
    y = s.node("Conv", x, w, b, group=groups, pads=[1, 1, 1, 1])
    y = s.there_and_back(y, result, zero, dtype)
    y = s.node("Relu", s.node("Add", y, s.node("Relu", y)))
    y = s.quantise(y, 2 * result, zero, dtype)
    return s.model({"x": ("float32", (2, 6, 5, 5))}, y, dtype)


def usual(**others: float) -> np.ndarray:
    scales = np.linspace(0.005, 0.02, CHANNELS).astype(np.float32)
    for place, scale in others.items():
        scales[int(place[1:])] = scale
    return scales


CASES: dict[str, tuple[Any, ...]] = {
    "a scale of zero": (usual(c0=0), 0.02, 130, 4000, 0.5),
    "a denormal scale": (usual(c8=1e-41), 0.02, 0, 4000, 0.5),
    "scales below zero": (-usual(), 0.02, 255, 4000, 0.5, "uint8", 3),
    "a large scale": (usual(c4=1e30), 0.02, -128, 4000, 0.5, "int8"),
    "sums beyond 32 bits": (usual(), 0.02, 127, (1 << 31) - 1, 1e4, "int8"),
    "products beyond 2^22": (usual(), 0.02, 131, 1 << 20, 1e-6),
}


@pytest.mark.parametrize("case", CASES)
def test_odd_scales(case: str) -> None:
    model, dtype = convolved(*CASES[case]), (*CASES[case], "uint8")[5]
    x = np.random.default_rng(5).normal(0, 1.5, (2, 6, 5, 5)).astype(np.float32)
    x[0, 0, 0, 0], x[1, 5, 4, 4] = np.inf, -np.inf
    with load(compile_model(model, num_threads=1).to_bytes()) as loaded:
        (y,) = loaded.run({"x": x}).values()
    expected = unoptimised(model, {"x": x})
    assert y.dtype == BYTES[dtype] and y.shape == expected.shape
    assert np.abs(y.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_zeros_stay_zeros_where_the_product_of_scales_is_infinite(op: str) -> None:
    s = Sketch()
    x = s.dequantise("x", np.float32(1e20), np.uint8(7))
    shape, weights = ((1, 8, 4, 5), (16, 8, 1, 1)) if op == "Conv" else ((4, 8), (8, 16))
    y = s.node(op, x, s.dequantise(s.constant(s.bytes(weights, "int8")), np.float32(1e20), np.int8(0)))
    model = s.model({"x": ("uint8", shape)}, s.quantise(y, 0.05, 100, "uint8"), "uint8")
    (result,) = load(compile_model(model, num_threads=1).to_bytes()).run({"x": np.full(shape, 7, np.uint8)}).values()
    assert (result == 100).all()
