"""ONNX's backend interface."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilestitch.compiler.onnx_backend as backend
from tests.models import cnn, random_inputs, transformer


@pytest.mark.parametrize("model", [cnn(), cnn(batch=3, size=15, channels=5), transformer(), transformer(causal=True)])
def test_prepare_and_run(model: onnx.ModelProto) -> None:
    inputs = random_inputs(model, seed=1)
    prepared = backend.prepare(model)
    (expected,) = ReferenceEvaluator(model).run(None, inputs)
    tolerance = 1e-4 * float(np.abs(expected).max())
    for given in (inputs, list(inputs.values()), next(iter(inputs.values()))):
        outputs = prepared.run(given)
        assert isinstance(outputs, tuple)
        np.testing.assert_allclose(outputs[0], expected, rtol=0, atol=tolerance)


def test_run_model() -> None:
    model = cnn()
    inputs = random_inputs(model)
    outputs = backend.run_model(model, list(inputs.values()))
    np.testing.assert_allclose(outputs[0].sum(), 1, rtol=1e-5)


def test_too_many_inputs() -> None:
    with pytest.raises(ValueError, match="2 inputs were given; the model takes 1: x"):
        backend.prepare(cnn()).run([np.zeros(1), np.zeros(1)])


def test_run_node() -> None:
    x, y = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    outputs = backend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [x, y])
    np.testing.assert_array_equal(outputs[0], x + y)
    assert outputs["c"] is outputs[0]  # type: ignore[call-overload]


def test_run_node_with_several_outputs_and_an_older_operator_set() -> None:
    node = helper.make_node("Split", ["x"], ["a", "b"], axis=0, split=[1, 2])
    first, second = backend.run_node(node, np.arange(3, dtype=np.float32), opset_version=11)
    np.testing.assert_array_equal(first, [0])
    np.testing.assert_array_equal(second, [1, 2])


def test_run_node_with_declared_outputs() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    (y,) = backend.run_node(node, [np.float32([-1, 1])], outputs_info=[(np.float32, (2,))])
    np.testing.assert_array_equal(y, [0, 1])


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    with pytest.raises(ValueError, match="CUDA is not supported"):
        backend.prepare(cnn(), "CUDA")


def test_compatibility() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")], "g", [value], [out])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
    assert not backend.is_compatible(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert backend.is_compatible(cnn())
