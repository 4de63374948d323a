"""Operators from 8-bit integers to 8-bit integers: within one step of ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import check_node, check_steps, node_model, run_ort, typed
from tilestitch.compiler.frontend import ConversionError, import_model

DTYPES = ["uint8", "int8"]


def codes(*shape: int, dtype: str, seed: int = 0) -> np.ndarray:
    low, high = (0, 256) if dtype == "uint8" else (-128, 128)
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def scale(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def zero(value: int, dtype: str) -> np.ndarray:
    return np.array(value, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("shapes", [((3, 5), (3, 5)), ((2, 3, 1), (1, 7)), ((4,), ()), ((0, 3), (3,)), ((1,), (17,))])
def test_sums_and_multiples(dtype: str, op: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = (codes(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))
    za, zb, zc = (zero(v, dtype) for v in (11, 100, 30))
    check_steps(op, [a, scale(0.02), za, b, scale(0.031), zb, scale(0.07), zc])


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_zero_points_left_out_are_zero(op: str) -> None:
    a, b, none = codes(3, 5, dtype="int8"), codes(5, dtype="int8", seed=1), zero(0, "int8")
    stated = [a, scale(0.02), none, b, scale(0.031), none, scale(0.07), none]

    def reference(*_: np.ndarray) -> list[np.ndarray]:
        return run_ort(node_model(op, stated), {f"x{i}": x for i, x in enumerate(stated)})

    check_steps(op, [None if x is none else x for x in stated], reference=reference)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_choice_of_two(dtype: str) -> None:
    chosen = np.random.default_rng(3).random((3, 5)) > 0.5
    x, y = codes(3, 5, dtype=dtype), codes(5, dtype=dtype, seed=1)
    operands = [chosen, x, scale(0.02), zero(3, dtype), y, scale(0.05), zero(10, dtype), scale(0.04), zero(7, dtype)]
    check_steps("QLinearWhere", operands)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, -1])
def test_concatenation(dtype: str, axis: int) -> None:
    shapes = ((2, 5), (1, 5), (4, 5)) if axis == 0 else ((3, 1), (3, 4), (3, 2))
    operands = [scale(0.03), zero(9, dtype)]
    for i, shape in enumerate(shapes):
        operands += [codes(*shape, dtype=dtype, seed=i), scale(0.03 + 0.01 * i), zero(9 + i, dtype)]
    check_steps(
        "QLinearConcat", operands, {"axis": axis}, constants=[i for i in range(len(operands)) if i < 2 or i % 3 != 2]
    )


def test_a_concatenation_of_less_than_tensors() -> None:
    operands = [scale(0.1), zero(0, "uint8"), codes(3, dtype="uint8"), scale(0.1)]
    model = typed(node_model("QLinearConcat", operands, {"axis": 0}), [operands[2]])
    with pytest.raises(ConversionError, match="scale and zero point"):
        import_model(model)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_curves(dtype: str, op: str) -> None:
    x = np.arange(256).astype(np.uint8).view(dtype)
    attrs = {"alpha": 0.3} if op == "QLinearLeakyRelu" else {}
    y_scale = 1 / 256 if op == "QLinearSigmoid" else 0.04
    check_steps(op, [x, scale(0.05), zero(20, dtype), scale(y_scale), zero(5, dtype)], attrs)
    check_steps(op, [x, scale(0.05), None, scale(y_scale), None], attrs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("axis", "opset"), [(-1, 13), (1, 13), (1, 12), (0, 11)])
def test_softmax(dtype: str, axis: int, opset: int) -> None:
    low = 0 if dtype == "uint8" else -128
    operands = [codes(3, 4, 5, dtype=dtype), scale(0.03), zero(7, dtype), scale(1 / 256), zero(low, dtype)]
    check_steps("QLinearSoftmax", operands, {"axis": axis, "opset": opset})


WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
    {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1},
    {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attrs", WINDOWS)
@pytest.mark.parametrize("last", [0, 1])
def test_averages_of_windows(dtype: str, attrs: dict[str, Any], last: int) -> None:
    x = codes(1, 7, 5, 3, dtype=dtype) if last else codes(1, 3, 7, 5, dtype=dtype)
    operands = [x, scale(0.03), zero(7, dtype), scale(0.02), zero(11, dtype)]
    check_steps("QLinearAveragePool", operands, attrs | {"channels_last": last})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [0, 1])
def test_averages_of_images(dtype: str, last: int) -> None:
    x = codes(2, 7, 5, 3, dtype=dtype) if last else codes(2, 3, 7, 5, dtype=dtype)
    operands = [x, scale(0.03), zero(7, dtype), scale(0.01), zero(11, dtype)]
    check_steps("QLinearGlobalAveragePool", operands, {"channels_last": last})


@pytest.mark.parametrize("keepdims", [0, 1])
def test_means(keepdims: int) -> None:
    def reference(x: np.ndarray, s: np.ndarray, z: np.ndarray, t: np.ndarray, y: np.ndarray) -> np.ndarray:
        mean = ((x.astype(np.float32) - z) * s).mean((0, 2), keepdims=bool(keepdims))
        return np.asarray(np.clip(np.round(mean / t) + y, -128, 127).astype(np.int8))

    operands = [codes(3, 4, 5, dtype="int8"), scale(0.03), zero(7, "int8"), scale(0.01), zero(2, "int8")]
    check_steps("QLinearReduceMean", operands, {"axes": [0, -1], "keepdims": keepdims}, reference=reference)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True])
def test_convolution(last: int, per_channel: bool) -> None:
    x = codes(1, 6, 5, 4, dtype="uint8") if last else codes(1, 4, 6, 5, dtype="uint8")
    w = codes(6, 2, 3, 3, dtype="int8", seed=1)
    w_scale = np.linspace(0.001, 0.005, 6, dtype=np.float32) if per_channel else scale(0.002)
    w_zero = np.zeros(6, np.int8) if per_channel else zero(0, "int8")
    bias = np.arange(-3, 3).astype(np.int32) * 100
    operands = [x, scale(0.02), zero(120, "uint8"), w, w_scale, w_zero, scale(0.05), zero(128, "uint8"), bias]
    attrs = {"group": 2, "pads": [1, 1, 1, 1], "channels_last": last}
    check_steps("QLinearConv", operands, attrs, constants=range(1, 9))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_there_and_back(dtype: str) -> None:
    x = 40 * floats(4, 3, 5)
    check_node("QuantizeLinear", [x, scale(0.37), zero(3, dtype)])
    per_axis = [np.linspace(0.1, 0.9, 3, dtype=np.float32), np.arange(3).astype(dtype)]
    check_node("QuantizeLinear", [x, *per_axis], {"axis": 1})
    q = np.abs(x).astype(dtype)
    check_node("DequantizeLinear", [q, scale(0.37), zero(3, dtype)])
    check_node("DequantizeLinear", [q, *per_axis], {"axis": 1})


def test_without_zero_points() -> None:
    check_node("QuantizeLinear", [40 * floats(7), scale(0.37)])
    check_node("DequantizeLinear", [codes(7, dtype="int8"), scale(0.37)])
