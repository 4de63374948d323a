"""Convolutions with residuals and activations, and with their channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import check_node, node_model, run_ort

ACTIVATIONS: list[dict[str, Any]] = [
    {"activation": "Relu"}, {"activation": "Sigmoid"}, {"activation": "Tanh"},
    {"activation": "HardSwish"}, {"activation": "LeakyRelu", "activation_params": [0.2]},
    {"activation": "Clip", "activation_params": [-0.5, 0.7]},
    {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
]  # fmt: skip


@pytest.mark.parametrize("attrs", ACTIVATIONS, ids=lambda a: str(a["activation"]))
@pytest.mark.parametrize("residual", [False, True])
def test_convolution_with_an_activation(attrs: dict[str, Any], residual: bool) -> None:
    operands = [floats(1, 4, 7, 5), floats(6, 2, 3, 3, seed=1), floats(6, seed=2)]
    window = {"pads": [1, 0, 1, 2], "strides": [2, 1], "group": 2, **attrs}
    check_node("FusedConv", [*operands, *([floats(1, 6, 4, 5, seed=3)] if residual else [])], window)


def test_an_activation_is_optional() -> None:
    check_node("FusedConv", [floats(2, 3, 5), floats(4, 3, 2, seed=1)], {"auto_pad": "SAME_UPPER"})


def last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@pytest.mark.parametrize("op", ["NhwcConv", "NhwcFusedConv"])
def test_channels_last(op: str) -> None:
    """Filters of NhwcConv have their channels last, too."""
    x, w, bias = floats(2, 4, 7, 5), floats(4, 2, 3, 2, seed=1), floats(4, seed=2)
    attrs = {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1], "strides": [2, 2], "group": 2}
    (y,) = run_ort(node_model("Conv", [x, w, bias], attrs, domain=""), {"x0": x, "x1": w, "x2": bias})
    check_node(op, [last(x), last(w) if op == "NhwcConv" else w, bias], attrs, reference=lambda *_: last(y))
    if op == "NhwcFusedConv":
        z = floats(*y.shape, seed=4)
        relu = attrs | {"activation": "Relu"}
        check_node(op, [last(x), w, bias, last(z)], relu, reference=lambda *_: last(np.maximum(y + z, 0)))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_largest_of_windows(dtype: str) -> None:
    x = np.random.default_rng(0).integers(-100 if dtype == "int8" else 0, 100, (1, 7, 6, 3)).astype(dtype)
    attrs = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1], "ceil_mode": 1}
    check_node("NhwcMaxPool", [x], attrs)
