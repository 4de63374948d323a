"""Support vectors of ai.onnx.ml give what ONNX Runtime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.test_learning import X, agrees, ml, on_host
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.frontend.errors import ConversionError
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.runtime import load

ort = pytest.importorskip("onnxruntime")

KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]


def classifier(classes: int, kernel: str = "RBF", chances: bool = False, **attrs: Any) -> dict[str, Any]:
    """Attributes of a classifier with one vector of the first class, two of the second, and so on."""
    random, counts = np.random.default_rng(classes), list(range(1, classes + 1))
    pairs, vectors = classes * (classes - 1) // 2, sum(counts)
    made: dict[str, Any] = {
        "kernel_type": kernel, "kernel_params": [0.5, 0.25, 3.0], "vectors_per_class": counts,
        "support_vectors": random.normal(size=vectors * 3), "coefficients": random.normal(size=vectors * (classes - 1)),
        "rho": random.normal(size=pairs), "classlabels_ints": np.arange(classes) + 7,
    }  # fmt: skip
    if chances:
        made |= {"prob_a": -abs(random.normal(size=pairs)), "prob_b": random.normal(size=pairs)}
    return made | attrs


@pytest.mark.parametrize("kernel", KERNELS)
def test_regression(kernel: str) -> None:
    attrs = {
        "kernel_type": kernel, "kernel_params": [0.5, 0.25, 3.0], "n_supports": 2, "coefficients": [1.0, -2.0],
        "support_vectors": X[:2].reshape(-1).tolist(), "rho": [0.125],
    }  # fmt: skip
    agrees("SVMRegressor", X, **attrs)
    agrees("SVMRegressor", X, **attrs, one_class=1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_classes_that_vote_in_pairs(classes: int, kernel: str) -> None:
    x = np.concatenate([X, np.full((1, 3), np.nan, np.float32)])
    assert not on_host(agrees("SVMClassifier", x, 2, **classifier(classes, kernel)))


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_chances_of_classes(classes: int) -> None:
    """A row that is not a number has even chances, and others are none the worse for it."""
    attrs = classifier(classes, chances=True, classlabels_strings=[f"class {i}" for i in range(classes)])
    del attrs["classlabels_ints"]
    x = np.concatenate([X, np.full((1, 3), np.nan, np.float32), 10 * X])
    assert "loop" in agrees("SVMClassifier", x, 2, **attrs)


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_transformed_scores(transform: str) -> None:
    agrees("SVMClassifier", X, 2, **classifier(3, post_transform=transform))
    agrees("SVMClassifier", X, 2, **classifier(3, chances=True, post_transform=transform))


def test_two_scores_of_two_classes_are_transformed_as_onnx_defines_it() -> None:
    """ONNX Runtime gives the score and what it lacks of 1 instead."""
    plain, soft = (
        evaluate(import_model(ml("SVMClassifier", X, 2, **attrs), shapes={"x": X.shape}).graph, [X])[1]
        for attrs in (classifier(2), classifier(2, post_transform="SOFTMAX"))
    )
    powers = np.exp(plain)
    np.testing.assert_allclose(soft, powers / powers.sum(1, keepdims=True), rtol=1e-6)


def test_classes_without_vectors() -> None:
    attrs = {"coefficients": [1.0, 2, 3, -1, 0.5, 2, 3, 1, 0], "rho": [0.5, 0, 0], "classlabels_ints": [4, 5, 6]}
    attrs |= {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 3.0]}
    agrees("SVMClassifier", X, 2, **attrs)


def test_compiled_chances_of_any_number_of_rows() -> None:
    proto = ml("SVMClassifier", X, 2, **classifier(3, chances=True))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    module = load(compile_model(proto, num_threads=1).to_bytes(), num_threads=1)
    for rows in (X, X[:1], X[:0]):
        labels, chances = session.run(None, {"x": rows})
        found = module.run({"x": rows})
        np.testing.assert_array_equal(found["y0"], labels)
        np.testing.assert_allclose(found["y1"], chances, rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_refused_by_name() -> None:
    for match, wrong in {
        "vectors_per_class is \\[1, 2\\] for 3 classes": {"vectors_per_class": [1, 2]},
        "2 numbers are given for 6 support vectors of 3 features": {"support_vectors": [1.0, 2.0]},
        "1 coefficients are given for 6 support vectors, which have 2 each": {"coefficients": [1.0]},
        "rho has 2 entries for 3 pairs": {"rho": [1.0, 2.0]},
        "prob_b has 1 entries for 3 pairs": {"prob_b": [1.0]},
        "kernel_type is 'CUBE'": {"kernel_type": "CUBE"},
        "PROBIT is not supported": {"post_transform": "PROBIT"},
    }.items():
        with pytest.raises(ConversionError, match=f"'the_node'.*{match}"):
            import_model(ml("SVMClassifier", X, 2, **classifier(3, chances=True, **wrong)), shapes={"x": X.shape})
