"""Pooling."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.frontend.checks import assert_close, check_node, floats, ints, node_model, run

WINDOWS = [
    ((2, 3, 11), {"kernel_shape": [3]}),
    ((1, 2, 7, 9), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ((1, 2, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 7, 8), {"kernel_shape": [3, 3], "strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((1, 2, 5, 8), {"kernel_shape": [8, 8], "strides": [8, 8], "ceil_mode": 1}),
    ((1, 2, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 8, 8), {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 8, 7), {"kernel_shape": [3, 3], "dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    ((1, 2, 4, 5, 6), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2]}),
]


@pytest.mark.parametrize(("shape", "attrs"), WINDOWS)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(shape: tuple[int, ...], attrs: dict[str, object], include: int) -> None:
    uneven = attrs.get("pads") == [1, 0, 1, 1] or attrs.get("auto_pad") == "SAME_UPPER"
    if include and uneven and sys.version_info < (3, 11):
        pytest.skip("ONNX Runtime 1.23, the last for Python 3.10, does not count the padding at the end")
    check_node("AveragePool", [floats(*shape)], attrs | {"count_include_pad": include}, opset=19, against="onnxruntime")


@pytest.mark.parametrize(("shape", "attrs"), WINDOWS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_max_pool(shape: tuple[int, ...], attrs: dict[str, object], outputs: int) -> None:
    check_node("MaxPool", [floats(*shape)], attrs, opset=12, outputs=outputs, against="onnxruntime")


def test_max_pool_indices_may_be_column_major() -> None:
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2], "storage_order": 1}
    check_node("MaxPool", [floats(1, 2, 4, 6)], attrs, opset=12, outputs=2, against="onnxruntime")


@pytest.mark.parametrize("attrs", [
    {"kernel_shape": [7, 6]}, {"kernel_shape": [6, 7], "dilations": [2, 1], "strides": [2, 3], "pads": [2, 1, 3, 2]},
    {"kernel_shape": [13, 15], "storage_order": 1},
])  # fmt: skip
def test_the_places_of_large_windows_take_few_nodes(attrs: dict[str, object]) -> None:
    imported = check_node("MaxPool", [floats(2, 3, 13, 15)], attrs, opset=12, outputs=2, against="onnxruntime")
    assert len(imported.graph.nodes) < 16


def test_max_pool_of_bytes() -> None:
    x = np.random.default_rng(0).integers(-128, 127, (1, 2, 5, 5)).astype(np.int8)
    check_node("MaxPool", [x], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, opset=12, against="onnxruntime")


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p: int) -> None:
    check_node("LpPool", [floats(1, 2, 7, 7)], {"kernel_shape": [3, 3], "strides": [2, 2], "p": p}, opset=18)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_global_pools(op: str, shape: tuple[int, ...]) -> None:
    check_node(op, [floats(*shape)], opset=21, against="onnxruntime")


def test_global_lp_pool() -> None:
    x = floats(2, 3, 4, 5)
    (y,) = run(node_model("GlobalLpPool", [x], {"p": 3}), {"x0": x})
    assert_close(y, (np.abs(x) ** 3).sum((2, 3), keepdims=True) ** (1 / 3))


def test_max_unpool_undoes_max_pool() -> None:
    x = floats(1, 2, 4, 6)
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    values, indices = run(node_model("MaxPool", [x], attrs, outputs=2), {"x0": x})
    (y,) = run(node_model("MaxUnpool", [values, indices], attrs), {"x0": values, "x1": indices})
    assert_close(y, np.where(np.isin(x, values), x, np.float32(0)))
    larger = node_model("MaxUnpool", [values, indices, ints(1, 2, 5, 7)], attrs, constants={2})
    (padded,) = run(larger, {"x0": values, "x1": indices})
    assert_close(padded, np.pad(y, ((0, 0), (0, 0), (0, 1), (0, 1))))
