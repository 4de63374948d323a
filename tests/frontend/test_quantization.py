"""Quantisation: every granularity and small dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.frontend.checks import check_node, floats, ints

SMALL = {
    "int8": np.int8, "uint8": np.uint8, "int16": np.int16, "uint16": np.uint16,
    "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int2": ml_dtypes.int2, "uint2": ml_dtypes.uint2,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


@pytest.mark.parametrize("dtype", SMALL)
def test_per_tensor_there_and_back(dtype: str) -> None:
    x = 40 * floats(5, 7)
    scale = np.float32(0.37).reshape(())
    zero = np.array(0 if dtype.startswith("float") else 1).astype(SMALL[dtype])
    check_node("QuantizeLinear", [x, scale, zero])
    q = (x / 10).astype(SMALL[dtype])
    check_node("DequantizeLinear", [q, scale, zero])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_axis(axis: int) -> None:
    x = 40 * floats(3, 4, 5)
    count = x.shape[axis]
    scale, zero = np.linspace(0.1, 0.9, count, dtype=np.float32), np.arange(count).astype(np.int8)
    check_node("QuantizeLinear", [x, scale, zero], {"axis": axis})
    check_node("DequantizeLinear", [x.astype(np.int8), scale, zero], {"axis": axis})


def test_blocked_with_a_partial_last_block() -> None:
    x = 40 * floats(3, 7)
    scale = np.abs(floats(3, 3, seed=1)) + 0.1
    zero = np.arange(9).reshape(3, 3).astype(np.uint8)
    check_node("QuantizeLinear", [x, scale, zero], {"axis": 1, "block_size": 3}, against="onnxruntime", opset=21)
    check_node("DequantizeLinear", [np.abs(x).astype(np.uint8), scale, zero], {"axis": 1, "block_size": 3},
               against="onnxruntime", opset=21)  # fmt: skip


def test_saturation_and_half_to_even() -> None:
    x = np.array([-1e20, -129, -2.5, -1.5, 0.5, 1.5, 2.5, 300, 1e20], np.float32)
    operands = [x, np.array(1, np.float32), np.array(0, np.int8)]
    check_node("QuantizeLinear", operands, opset=21, against="onnxruntime")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_float_scales(dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    scale = np.array(0.5).astype(kind)
    check_node("DequantizeLinear", [ints(-100, 3, 127, dtype="int8"), scale, np.int8(2).reshape(())])


@pytest.mark.parametrize("x", [floats(3, 4), np.zeros((2, 2), np.float32), np.abs(floats(5)) + 1])
def test_dynamic_quantization(x: np.ndarray) -> None:
    check_node("DynamicQuantizeLinear", [x], outputs=3, against="onnxruntime", opset=11)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_qlinear_matmul(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 100, s).astype(dtype) for s in ((2, 4, 5), (2, 5, 3)))
    scale = [np.float32(s).reshape(()) for s in (0.02, 0.03, 0.1)]
    zero = [np.array(z, dtype) for z in (7, 3, 11)]
    check_node("QLinearMatMul", [a, scale[0], zero[0], b, scale[1], zero[1], scale[2], zero[2]])


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_qlinear_conv(per_channel: bool, bias: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (1, 4, 6, 6)).astype(np.uint8)
    w = rng.integers(-60, 60, (6, 2, 3, 3)).astype(np.int8)
    w_scale = np.linspace(0.01, 0.05, 6, dtype=np.float32) if per_channel else np.float32(0.02).reshape(())
    w_zero = np.zeros(6, np.int8) if per_channel else np.int8(0).reshape(())
    operands = [
        x, np.float32(0.03).reshape(()), np.uint8(120).reshape(()), w, w_scale, w_zero,
        np.float32(0.2).reshape(()), np.uint8(100).reshape(()),
    ]  # fmt: skip
    if bias:
        operands.append(rng.integers(-1000, 1000, 6).astype(np.int32))
    attrs = {"group": 2, "pads": [1, 1, 1, 1]}
    check_node("QLinearConv", operands, attrs, opset=10, against="onnxruntime", constants=range(1, 9))


@pytest.mark.parametrize(("w_zero", "wide"), [(128, False), (100, True)])
@pytest.mark.parametrize("op", ["conv", "matmul"])
def test_zero_points_of_constant_weights_go_into_the_weights(op: str, w_zero: int, wide: bool) -> None:
    """Where weights minus their zero point are int8, the contraction is one of bytes and no row sums are needed."""
    rng = np.random.default_rng(0)
    w = rng.integers(0, 256, (6, 4, 3, 3) if op == "conv" else (5, 7)).astype(np.uint8)
    w.flat[:2] = 0, 255
    x = rng.integers(0, 256, (1, 4, 6, 6) if op == "conv" else (3, 5)).astype(np.uint8)
    operands = [x, w, np.uint8(7).reshape(()), np.uint8(w_zero).reshape(())]
    name, attrs = ("ConvInteger", {"pads": [1, 2, 0, 1]}) if op == "conv" else ("MatMulInteger", {})
    graph = check_node(name, operands, attrs, opset=10, against="onnxruntime", constants=(1, 2, 3)).graph
    (contraction,) = (n for n in graph.nodes if n.op == op)
    dtypes = [v.dtype for v in contraction.inputs]
    if not wide:
        assert dtypes == ["uint8", "int8"]
        assert not any(n.op.startswith("reduce") for n in graph.nodes)
    elif op == "matmul":
        assert dtypes == ["uint8", "uint8"]
