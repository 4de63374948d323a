"""Packed constants that are large are packed when they are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.models import Builder
from tilestitch.codegen.launch import PackedArg
from tilestitch.codegen.tensors import MOST_BYTES_KEPT, TensorTable
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir import Graph
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.safetensors import TensorOnDemand


def turned(shape: tuple[int, ...]) -> PackedArg:
    return PackedArg("w", "turned", lambda data: data.T, shape=shape[::-1])


@pytest.mark.parametrize(("shape", "later"), [((3, 5), False), ((1021, 513), True)])
def test_only_large_constants_are_packed_later(shape: tuple[int, ...], later: bool) -> None:
    data = np.random.default_rng(0).standard_normal(shape, np.float32)
    assert (data.nbytes > MOST_BYTES_KEPT) == later
    value, table = Graph("g").constant(data, name="w"), TensorTable()
    name = table.packed(value, turned(shape))
    assert table.packed(value, turned(shape)) == name
    tensor = table.arrays[name]
    assert isinstance(tensor, TensorOnDemand) == later
    assert (tensor.shape, tensor.nbytes, tensor.dtype) == (shape[::-1], data.nbytes, data.dtype)
    np.testing.assert_array_equal(np.asarray(tensor), data.T)


def test_a_layout_whose_shape_is_not_told_is_packed_at_once() -> None:
    data, table = np.zeros((1021, 513), np.float32), TensorTable()
    name = table.packed(Graph("g").constant(data, name="w"), replace(turned(data.shape), shape=None))
    assert isinstance(table.arrays[name], np.ndarray)


def test_another_shape_than_was_announced_is_an_error() -> None:
    tensor = TensorOnDemand(np.dtype(np.float32), (2, 3), lambda: np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match=r"\(2, 3\) was announced, and float32 \(3, 2\) made"):
        np.asarray(tensor)


def test_what_is_packed_when_it_is_written_gives_the_same_artifact() -> None:
    b = Builder(0)
    y = b.op("MatMul", b.op("Relu", b.op("MatMul", "x", b.weight(257, 1031))), b.weight(1031, 129))
    model = b.model(
        "mlp", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 257])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", 129])], 20,
    )  # fmt: skip
    contents = compile_model(model, num_threads=1).contents
    later = {name for name, tensor in contents.weights.items() if isinstance(tensor, TensorOnDemand)}
    assert later
    at_once: dict[str, Any] = {name: np.asarray(tensor) for name, tensor in contents.weights.items()}
    assert artifact_bytes(contents) == artifact_bytes(replace(contents, weights=at_once))
