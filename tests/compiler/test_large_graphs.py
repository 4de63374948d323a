"""Models with one node of very many operands, and very long ones, compile and compute what they say."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from benchmarks.large_graphs import KINDS
from tilestitch.compiler import compile_model
from tilestitch.runtime import load


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "kind, size",
    [("concat_inputs", 1500), ("sum_inputs", 600), ("fan_out_reductions", 200), ("gemms", 40), ("loop", 200),
     ("attention", 30), ("dense", 80), ("views", 80)],
)  # fmt: skip
def test_large_graphs_compute_what_they_say(kind: str, size: int) -> None:
    model = KINDS[kind](size)
    inputs = feeds(model)
    expected = ReferenceEvaluator(model).run(None, inputs)
    with load(compile_model(model, num_threads=2, cache=False).to_bytes(), num_threads=2) as module:
        actual = module.run(inputs)
    for value, one in zip(expected, actual.values(), strict=True):
        np.testing.assert_allclose(one, value, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(value).max())))
