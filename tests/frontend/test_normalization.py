"""Normalisations."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.frontend.checks import assert_close, check_node, floats, node_model, run


def _params(channels: int) -> list[np.ndarray]:
    scale, bias, mean = (floats(channels, seed=i) for i in (1, 2, 3))
    return [scale, bias, mean, np.abs(floats(channels, seed=4)) + 0.5]


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (1, 3, 4, 5)])
def test_batch_norm(opset: int, shape: tuple[int, ...]) -> None:
    operands = [floats(*shape), *_params(3)]
    check_node(
        "BatchNormalization", operands, {"epsilon": 1e-3}, opset=opset, constants={1, 2, 3, 4}, against="onnxruntime"
    )


def test_constant_batch_norm_is_one_multiply_add() -> None:
    imported = check_node("BatchNormalization", [floats(1, 3, 4), *_params(3)], constants={1, 2, 3, 4})
    assert [n.op for n in imported.graph.nodes] == ["mul", "add"]


def test_batch_norm_in_training_mode_updates_the_running_statistics() -> None:
    operands = [floats(4, 3, 5), *_params(3)]
    check_node("BatchNormalization", operands, {"training_mode": 1, "momentum": 0.8}, outputs=3)


def test_batch_norm_of_half_floats_with_float_parameters() -> None:
    x = floats(2, 3, 5).astype(np.float16)
    model = node_model("BatchNormalization", [x, *_params(3)], constants={1, 2, 3, 4})
    scale, bias, mean, variance = (p[:, None] for p in _params(3))
    expected = (x.astype(np.float32) - mean) / np.sqrt(variance + 1e-5) * scale + bias
    assert_close(run(model, {"x0": x})[0], expected.astype(np.float16))


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_layer_norm_with_all_outputs(axis: int) -> None:
    x = floats(2, 3, 5)
    inner = x.shape[axis:] if axis > 0 else x.shape[-1:]
    scale, bias = floats(*inner, seed=1), floats(*inner, seed=2)
    check_node("LayerNormalization", [x, scale, bias], {"axis": axis}, outputs=3, opset=17)
    check_node("LayerNormalization", [x, scale], {"axis": axis}, opset=17)


def test_layer_norm_of_half_floats_has_float_statistics() -> None:
    x = (100 + floats(4, 64)).astype(np.float16)
    model = node_model("LayerNormalization", [x, np.ones(64, np.float16)], outputs=3)
    y, mean, _ = run(model, {"x0": x, "x1": np.ones(64, np.float16)})
    assert mean.dtype == np.float32
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    assert_close(y, expected.astype(np.float16))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rms_norm(dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    check_node("RMSNormalization", [floats(2, 3, 8).astype(kind), floats(8, seed=1).astype(kind)])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm(groups: int) -> None:
    operands = [floats(2, 4, 3, 3), floats(4, seed=1), floats(4, seed=2)]
    x, scale, bias = operands
    model = node_model("GroupNormalization", operands, {"num_groups": groups})
    grouped = x.reshape(2, groups, -1)
    normal = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    expected = normal.reshape(x.shape) * scale[:, None, None] + bias[:, None, None]
    assert_close(run(model, {f"x{i}": v for i, v in enumerate(operands)})[0], expected)


def test_instance_norm() -> None:
    check_node("InstanceNormalization", [floats(2, 3, 4, 5), floats(3, seed=1), floats(3, seed=2)])


@pytest.mark.parametrize("p", [1, 2])
def test_lp_norm_leaves_zero_vectors(p: int) -> None:
    x = floats(3, 5)
    x[1] = 0
    check_node("LpNormalization", [x], {"p": p, "axis": 1}, opset=1, against="onnxruntime")


@pytest.mark.parametrize("beta", [0.5, 0.6, 0.75])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size: int, beta: float) -> None:
    attrs = {"size": size, "alpha": 0.3, "beta": beta, "bias": 1.5}
    check_node("LRN", [floats(2, 7, 3, 3)], attrs, opset=13, against="onnxruntime")


def test_mean_variance_normalization() -> None:
    check_node("MeanVarianceNormalization", [floats(3, 3, 3, 2)])
    check_node("MeanVarianceNormalization", [floats(3, 4)], {"axes": [1]})
