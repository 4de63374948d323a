"""Means of more elements than the dtype counts."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("sizes", ["260,256", "h,w"])
@pytest.mark.parametrize("node", ["GlobalAveragePool(x)", "ReduceMean(x, axes)"])
def test_a_mean_of_more_elements_than_a_float16_counts(node: str, sizes: str, target: str) -> None:
    """66,560 is infinite as a float16: so was the divisor, and the mean 0."""
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g (float16[1,2,{sizes}] x) => (float16[1,2,1,1] y)'
        f"<int64[2] axes = {{2, 3}}> {{ y = {node} }}"
    )
    x = (np.random.default_rng(1).random((1, 2, 260, 256)) + np.arange(2).reshape(1, 2, 1, 1)).astype(np.float16)
    with load(compile_model(model, target).to_bytes(), device=target) as module:
        y = module.run({"x": x})["y"]
    np.testing.assert_allclose(y.astype(np.float64), x.astype(np.float64).mean((2, 3), keepdims=True), rtol=1e-3)
