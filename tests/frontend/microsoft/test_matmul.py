"""Matmuls with transpositions, scales, biases and activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import check_node, node_model, typed
from tilestitch.compiler.frontend import ConversionError, import_model

ACTIVATIONS: list[dict[str, Any]] = [
    {"activation": "Relu"}, {"activation": "Sigmoid"}, {"activation": "Tanh"}, {"activation": "Softplus"},
    {"activation": "LeakyRelu", "activation_alpha": 0.2},
    {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4},
    {"activation": "Elu", "activation_alpha": 0.7}, {"activation": "ThresholdedRelu", "activation_alpha": 0.4},
    {"activation": "ScaledTanh", "activation_alpha": 0.7, "activation_beta": 0.6}, {"activation": "Softsign"},
]  # fmt: skip


@pytest.mark.parametrize("trans", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_transpositions(trans: tuple[int, int], batch: tuple[int, ...]) -> None:
    a = floats(*batch, *((5, 7)[:: -1 if trans[0] else 1]))
    b = floats(*batch, *((7, 2)[:: -1 if trans[1] else 1]), seed=1)
    check_node("FusedMatMul", [a, b], {"transA": trans[0], "transB": trans[1], "alpha": 0.3})
    check_node("TransposeMatMul", [a, b], {"transA": trans[0], "transB": trans[1]})


@pytest.mark.parametrize("trans", [(0, 0), (1, 1)])
def test_a_batch_axis_between_rows_and_columns(trans: tuple[int, int]) -> None:
    attrs = {"transA": trans[0], "transB": trans[1], "transBatchA": 1, "transBatchB": 1}
    a = floats(7, 3, 5) if trans[0] else floats(5, 3, 7)
    b = floats(2, 3, 7, seed=1) if trans[1] else floats(7, 3, 2, seed=1)
    check_node("FusedMatMul", [a, b], attrs)


@pytest.mark.parametrize("shapes", [((7,), (7, 2)), ((5, 7), (7,)), ((1, 5, 7), (3, 7, 1)), ((0, 7), (7, 2))])
def test_shapes_as_numpy_takes_them(shapes: tuple[tuple[int, ...], ...]) -> None:
    check_node("FusedMatMul", [floats(*shapes[0]), floats(*shapes[1], seed=1)], {"transA": 0, "alpha": 2.0})


@pytest.mark.parametrize("attrs", ACTIVATIONS, ids=lambda a: str(a["activation"]))
def test_gemm_with_an_activation(attrs: dict[str, Any]) -> None:
    operands = [floats(3, 5), floats(5, 4, seed=1), floats(4, seed=2)]
    check_node("FusedGemm", operands, {"alpha": 0.5, "beta": 0.7, **attrs})
    check_node("FusedGemm", [operands[0], operands[1].T.copy()], {"transB": 1, **attrs})


def test_a_second_parameter_without_the_first() -> None:
    attrs = {"activation": "HardSigmoid", "activation_beta": 0.4}
    check_node(
        "FusedMatMulActivation", [floats(3, 5), floats(5, 4)], attrs,
        reference=lambda a, b: np.clip(np.float32(0.2) * (a @ b) + np.float32(0.4), 0, 1),
    )  # fmt: skip


def test_a_matmul_with_an_activation() -> None:
    check_node(
        "FusedMatMulActivation", [floats(2, 3, 5), floats(5, 4)], {"activation": "Relu", "alpha": 2.0},
        reference=lambda a, b: np.maximum(2 * (a @ b), 0),
    )  # fmt: skip
    check_node(
        "GemmFastGelu", [floats(3, 5), floats(5, 4), floats(4)],
        reference=lambda a, b, c: (z := a @ b + c) * (0.5 + 0.5 * np.tanh(0.797885 * z + 0.035677 * z**3)),
    )  # fmt: skip


def test_unknown_activations_are_refused_by_name() -> None:
    model = typed(node_model("FusedGemm", [floats(3, 5), floats(5, 4)], {"activation": "Spline"}), [floats(3, 4)])
    with pytest.raises(ConversionError, match="'Spline'"):
        import_model(model)


@pytest.mark.parametrize("shapes", [((5, 3), (4, 3)), ((1, 7), (1, 7)), ((3, 1), (5, 1))])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("attrs", [{}, {"metric": "euclidean"}, {"metric": "sqeuclidean"}])
def test_distances_of_rows(shapes: tuple[tuple[int, ...], ...], dtype: type, attrs: dict[str, Any]) -> None:
    check_node("CDist", [floats(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)], attrs)


def test_unknown_metrics_are_refused() -> None:
    with pytest.raises(ConversionError, match="metric is 'cosine', neither euclidean nor sqeuclidean"):
        import_model(typed(node_model("CDist", [floats(2, 3)] * 2, {"metric": "cosine"}), [floats(2, 2)]))
