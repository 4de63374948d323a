"""Pooling by windows of many taps: text that grows with the taps, not with all their combinations."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load


@pytest.mark.parametrize("stride", [1, 3])
def test_the_largest_of_sixteen_taps_along_a_line(stride: int) -> None:
    """As it holds NaN, too, a step reads the largest so far more than once."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 20, 70] x) => (float[1, 2, h, w] y) '
        f"{{ y = MaxPool<kernel_shape=[2, 16], strides=[1, {stride}]>(x) }}"
    )
    x = np.random.default_rng(0).standard_normal((1, 2, 20, 70)).astype(np.float32)
    result = load(compile_model(model, num_threads=1).to_bytes()).run({"x": x})["y"]
    windows = sliding_window_view(x, (2, 16), axis=(2, 3))[:, :, :, ::stride]
    np.testing.assert_array_equal(result, windows.max(axis=(-1, -2)))
