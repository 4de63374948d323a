"""Random tensors: types known, never folded."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontend.host_models import model, ops, tensor
from tilestitch.compiler.frontend.importer import import_model
from tilestitch.compiler.ir import TensorType
from tilestitch.compiler.ir.evaluate import evaluate

node = helper.make_node
X = np.full((2, 50), 0.5, np.float16)


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_shape_and_dtype_are_attributes(op: str) -> None:
    proto = model([node(op, [], ["y"], shape=[3, 4], dtype=TensorProto.DOUBLE, seed=1.0)], {}, ["y"])
    result = import_model(proto).graph
    assert ops(result) == [f"host.{op}"]
    assert result.outputs[0].type == TensorType("float64", (3, 4))
    np.testing.assert_array_equal(evaluate(result, [])[0], evaluate(result, [])[0])


@pytest.mark.parametrize("dtype", [None, TensorProto.FLOAT])
@pytest.mark.parametrize("shape", [(2, 50), ("n", 50)])
@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_shape_and_dtype_come_from_the_operand(op: str, shape: tuple[int | str, int], dtype: int | None) -> None:
    attrs = {} if dtype is None else {"dtype": dtype}
    proto = model([node(op, ["x"], ["y"], **attrs)], {"x": tensor(X, shape=shape)}, ["y"])
    result = import_model(proto).graph
    assert result.outputs[0].type == TensorType("float16" if dtype is None else "float32", shape)
    first, second = (evaluate(result, [X])[0] for _ in range(2))
    assert first.shape == (2, 50)
    assert (first != second).any()


def test_multinomial_draws_a_number_of_samples() -> None:
    proto = model([node("Multinomial", ["x"], ["y"], sample_size=7, dtype=TensorProto.INT64)], {"x": tensor(X)}, ["y"])
    result = import_model(proto).graph
    assert result.outputs[0].type == TensorType("int64", (2, 7))


def test_a_constant_operand_does_not_fix_the_draw() -> None:
    result = import_model(model([node("Bernoulli", ["x"], ["y"])], {}, ["y"], {"x": X})).graph
    assert ops(result) == ["host.Bernoulli"]
