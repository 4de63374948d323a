"""The patterns of `test_patterns` on the emulated device: each is one launch that reads every element of its inputs
once and writes every element of its outputs once, counted access by access. Statistics of batch normalisation are
constants, as they are in models; when they are not, a kernel that is not worth repeating for every element goes first.

The rule, for shapes that give every thread elements of its own:

* an operand with as many elements as the result is read exactly once, element by element;
* a smaller operand (weights, statistics, masks) is read at most once for each element of the result;
* a result is written exactly once, and nothing else is written.

With other shapes, threads without an element of their own read one of another thread again, and write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.passes.test_patterns import PATTERNS, feeds_of, model_of, zeros
from tilestitch.compiler.driver import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions, Traffic

FILLING = {
    (6, 24): (8, 128), (24,): (128,), (2, 3, 24): (2, 4, 128), (5, 4, 6): (8, 4, 32), (4, 6): (4, 32),
    (3, 5, 17): (4, 8, 32), (7, 33): (8, 256), (4, 5, 20): (4, 8, 128), (4, 20): (32, 128),
    (2, 6, 5, 7): (2, 6, 16, 32), (2, 3, 5, 9): (2, 4, 8, 32), (2, 9): (2, 32), (2, 3, 7, 7): (2, 4, 32, 32),
    (1, 1, 7, 7): (1, 1, 32, 32),
}  # fmt: skip
"""What the patterns' odd shapes become, so that they fill blocks of 128 threads with vectors of 16 bytes."""


def with_constant_statistics(model: onnx.ModelProto) -> onnx.ModelProto:
    if any(node.op_type == "BatchNormalization" for node in model.graph.node):
        given = feeds_of(model)
        for value in [value for value in model.graph.input if value.name != "x"]:
            model.graph.initializer.append(numpy_helper.from_array(given[value.name], value.name))
            model.graph.input.remove(value)
    return model


def filling(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        old = tuple(dim.dim_value for dim in dims)
        for dim, size in zip(dims, FILLING.get(old, old), strict=True):
            dim.dim_value = size
    for number, tensor in enumerate(model.graph.initializer):
        shape = tuple(numpy_helper.to_array(tensor).reshape(-1).tolist())
        if shape in FILLING:  # what a Reshape wants
            model.graph.initializer[number].CopyFrom(numpy_helper.from_array(np.array(FILLING[shape]), tensor.name))
    return model


def traffic_of(model: onnx.ModelProto) -> list[Sequence[Traffic]]:
    """What each launch of a run moves."""
    launches: list[Sequence[Traffic]] = []
    options = EmulatorOptions(on_launch=lambda symbol, traffic: launches.append(traffic))
    with load(compile_model(model, "emulator", keep_source=True).to_bytes(), device=options) as module:
        module.run(feeds_of(model))
    return launches


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_input_is_read_once_and_every_output_written_once(pattern: str, dtype: str) -> None:
    model = with_constant_statistics(filling(model_of(pattern, dtype)))
    (traffic,) = traffic_of(model)
    moved = {t.name: t for t in traffic}
    results = {value.name: zeros(value) for value in model.graph.output}
    elements = max(result.size for result in results.values())
    for name, array in {value.name: zeros(value) for value in model.graph.input}.items():
        assert moved[name].distinct_bytes_read == array.nbytes
        assert moved[name].bytes_written == 0
        if array.size == elements:
            assert moved[name].bytes_read == array.nbytes
        assert moved[name].bytes_read <= elements * array.itemsize
    for name, array in results.items():
        assert moved[name].bytes_written == moved[name].distinct_bytes_written == array.nbytes
        assert moved[name].bytes_read == 0
    assert {t.name for t in traffic if t.bytes_written} == set(results)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_odd_shapes_are_written_once_and_read_whole(pattern: str) -> None:
    model = model_of(pattern)
    (traffic,) = traffic_of(model)
    moved = {t.name: t for t in traffic}
    for value in model.graph.input:
        assert moved[value.name].distinct_bytes_read == zeros(value).nbytes
    for value in model.graph.output:
        assert moved[value.name].bytes_written == moved[value.name].distinct_bytes_written == zeros(value).nbytes
    assert {t.name for t in traffic if t.bytes_written} == {value.name for value in model.graph.output}
