"""Activations with biases, residuals and scales."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import check_node, node_model, typed
from tilestitch.compiler.frontend import ConversionError, import_model


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    from math import erf

    return (0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x / np.sqrt(2)))).astype(x.dtype)


@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 1), (5, 0)])
@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_gelu_of_a_sum(op: str, shape: tuple[int, ...]) -> None:
    check_node(op, [3 * floats(*shape), floats(shape[-1], seed=1)])


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_gelu(op: str) -> None:
    check_node(op, [4 * floats(3, 5)])


def test_the_slope_of_quick_gelu() -> None:
    check_node("QuickGelu", [4 * floats(3, 5)], {"alpha": 0.7})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_diffusion_models_fuse(dtype: str) -> None:
    x, bias = floats(2, 5, 6, dtype=dtype), floats(6, seed=1, dtype=dtype)
    check_node("BiasAdd", [x, bias, floats(2, 5, 6, seed=2, dtype=dtype)], reference=lambda a, b, c: a + b + c)

    def split(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        left, right = np.split(a + b, 2, -1)
        return left * gelu(right)

    check_node("BiasSplitGelu", [x, bias], reference=split)


@pytest.mark.parametrize(("axis", "bias"), [(3, (2, 1, 1, 5)), (3, (1, 1, 4, 5)), (2, (2, 1, 4, 5)), (-1, (4, 5))])
def test_softmax_of_a_sum(axis: int, bias: tuple[int, ...]) -> None:
    def reference(x: np.ndarray, b: np.ndarray) -> np.ndarray:
        axes = tuple(range(axis % 4, 4))
        e = np.exp((x + b) - (x + b).max(axes, keepdims=True))
        return np.asarray(e / e.sum(axes, keepdims=True))

    attrs = {"axis": axis, "is_inner_broadcast": int(bias[0] != 1)}
    check_node("BiasSoftmax", [floats(2, 3, 4, 5), floats(*bias, seed=1)], attrs, reference=reference)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("attrs", [{}, {"limit": 0.5, "activation_alpha": 1.7, "activation_beta": 1.0}])
def test_swiglu(apart: bool, attrs: dict[str, float]) -> None:
    gate, up = 2 * floats(3, 5), 2 * floats(3, 5, seed=1)

    def reference(*_: np.ndarray) -> np.ndarray:
        limit = attrs.get("limit", np.inf)
        g, linear = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return (
            g * sigmoid(attrs.get("activation_alpha", 1.0) * g) * (linear + np.float32(attrs.get("activation_beta", 0)))
        )

    check_node("SwiGLU", [gate, up] if apart else [np.concatenate([gate, up], -1)], attrs, reference=reference)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scale", [None, np.array(0.3, np.float32)])
def test_scaled_silu(dtype: str, scale: np.ndarray | None) -> None:
    check_node("ScaledSiLU", [floats(3, 5, dtype=dtype), scale], {"alpha": 1.5})


def test_an_odd_width_has_no_halves() -> None:
    model = typed(node_model("SwiGLU", [floats(2, 3)]), [floats(2, 1)])
    with pytest.raises(ConversionError, match="halved"):
        import_model(model)
