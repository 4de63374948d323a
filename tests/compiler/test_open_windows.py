"""Windows of images of open size: masks that are computed from sizes, and reshapes between sizes equal by a claim."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError

pytest.importorskip("onnxruntime")

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '


def test_attention_in_windows_with_a_mask_of_as_many_elements_whatever_the_sizes() -> None:
    """What a few elements are depends on open sizes: nothing is proved of which keys a query sees."""
    model = parser.parse_model(
        HEAD + "(float[b, s, 4, 8] x) => (float[b, s, 4, 8] y)\n"
        "<int64 one = {1}, int64[4] places = {0, 1, 2, 3}, float low = {-1e9}> {\n"
        "h = Shape(x)  d = Gather(h, one)  seen = Less(places, d)  t = Transpose<perm=[0, 1, 3, 2]>(x)\n"
        "m = MatMul(x, t)  f = Where(seen, m, low)  p = Softmax<axis=-1>(f)  y = MatMul(p, x) }"
    )
    compiled = compile_model(model)
    assert compiled.explain()["host"]["steps"] == 0
    module, reference = load(compiled.to_bytes(), num_threads=1), rivals.onnxruntime(model, 1)
    for b, s in ((1, 1), (2, 3), (1, 7)):
        feeds = {"x": np.random.default_rng(0).standard_normal((b, s, 4, 8)).astype(np.float32)}
        assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])


def test_a_reshape_to_a_size_that_is_the_same_by_a_claim_is_a_kernel() -> None:
    """Rows are padded to whole windows of four, and taken for as many as there were."""
    model = parser.parse_model(
        HEAD + "(float[b, s, 3] x) => (float[b, r, 3] y)\n"
        "<int64[1] four = {4}, int64[1] less = {3}, int64[1] three = {3}, int64[1] window = {12},\n"
        "int64[1] zero = {0}, int64[4] zeros = {0, 0, 0, 0}> {\n"
        "b = Shape<end=1>(x)  s = Shape<start=1, end=2>(x)  u = Add(s, less)  n = Div(u, four)  p = Mul(n, four)\n"
        "q = Sub(p, s)  pads = Concat<axis=0>(zeros, q, zero)  padded = Pad(x, pads)\n"
        "windows = Concat<axis=0>(b, n, window)  w = Reshape(padded, windows)  e = Softmax<axis=-1>(w)\n"
        "rows = Concat<axis=0>(b, s, three)  r = Reshape(e, rows)  y = Add(r, x) }"
    )
    compiled = compile_model(model)
    assert compiled.explain()["host"]["steps"] == 0
    module, reference = load(compiled.to_bytes(), num_threads=1), rivals.onnxruntime(model, 1)
    for b, s in ((1, 4), (3, 8), (2, 28)):
        feeds = {"x": np.random.default_rng(0).standard_normal((b, s, 3)).astype(np.float32)}
        assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])
    with pytest.raises(InputError, match="Reshape"):
        module.run({"x": np.zeros((1, 5, 3), np.float32)})


def test_a_reshape_to_several_such_sizes_is_a_kernel() -> None:
    """Both sides of an image are padded to whole windows of two by two, and taken for what they were."""
    model = parser.parse_model(
        HEAD + "(float[b, h, w] x) => (float[b, h, w] y)\n"
        "<int64[1] two = {2}, int64[1] one = {1}, int64[1] window = {4}, int64[4] zeros = {0, 0, 0, 0}> {\n"
        "b = Shape<end=1>(x)  s = Shape<start=1>(x)  u = Add(s, one)  n = Div(u, two)  p = Mul(n, two)  q = Sub(p, s)\n"
        "pads = Concat<axis=0>(zeros, q)  padded = Pad(x, pads)  windows = Concat<axis=0>(b, n, window)\n"
        "v = Reshape(padded, windows)  e = Softmax<axis=-1>(v)  rows = Concat<axis=0>(b, s)  r = Reshape(e, rows)\n"
        "y = Add(r, x) }"
    )
    compiled = compile_model(model)
    assert compiled.explain()["host"]["steps"] == 0
    module, reference = load(compiled.to_bytes(), num_threads=1), rivals.onnxruntime(model, 1)
    for b, h, w in ((1, 2, 2), (3, 4, 10), (2, 14, 6)):
        feeds = {"x": np.random.default_rng(0).standard_normal((b, h, w)).astype(np.float32)}
        assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_images_have_the_channels_of_filters_by_a_claim(op: str) -> None:
    """Costs of matches in an optical flow: as many channels as remain of the elements."""
    filters = np.random.default_rng(0).standard_normal((96, 96, 1, 1), np.float32)
    model = parser.parse_model(
        HEAD
        + f"""(float[a, b, 24] x) => (float[1, 96, c, d] y)
        <int64[2] one = {{1, 1}}, int64[2] two = {{2, 2}}, int64[1] first = {{1}}, int64[1] last = {{-1}}> {{
          s = Shape<end=2>(x)  more = Add(s, one)  half = Div(more, two)  shape = Concat<axis=0>(first, half, last)
          rows = Reshape(x, shape)  image = Transpose<perm=[0, 3, 1, 2]>(rows)  y = {op}(image, w)
        }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(filters, "w"))
    compiled = compile_model(model)
    assert compiled.explain()["host"]["steps"] == 0
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes()) as session:
        for sides in ((2, 2), (4, 6)):
            x = np.random.default_rng(1).standard_normal((*sides, 24), np.float32)
            assert_close(session.run({"x": x})["y"], reference({"x": x})[0], MODELS["float32"])
        with pytest.raises(InputError, match="must be 0"):
            session.run({"x": np.zeros((3, 4, 24), np.float32)})
