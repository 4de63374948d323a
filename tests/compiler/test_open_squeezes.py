"""Squeeze without axes drops every dimension of size 1, also one whose size only a run tells."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError

HEADER = '<ir_version: 8, opset_import: ["" : 17]> g '
FOUND = "z = NonZero(x) places = Transpose(z) i = Squeeze(places) rows = Gather<axis=0>(w, i) "


def compiled_and_reference(text: str):
    model = parser.parse_model(HEADER + text)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return load(compile_model(model, cache=False).to_bytes()), session


def assert_equal(ours, session, **feeds: np.ndarray) -> None:
    (found,) = ours.run(feeds).values()
    (wanted,) = session.run(None, feeds)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.filterwarnings("ignore:output 'y' is declared")
@pytest.mark.parametrize("last", ["y = Identity(s)", "y = Add(s, s)", "y = Softmax<axis=-1>(s)"])
def test_a_batch_of_one_is_dropped(last: str) -> None:
    ours, session = compiled_and_reference(
        f"(float[n, 3, 1] x) => (float[k] y) {{ r = Relu(x) s = Squeeze(r) {last} }}"
    )
    for size in (0, 1, 2, 5):
        assert_equal(ours, session, x=some(size, 3, 1))


@pytest.mark.filterwarnings("ignore:output 'y' is declared")
def test_each_of_two_open_dimensions_may_be_one() -> None:
    ours, session = compiled_and_reference("(float[a, b, 1] x) => (float[c] y) { r = Relu(x) y = Squeeze(r) }")
    for shape in ((1, 1, 1), (2, 1, 1), (1, 3, 1), (2, 3, 1), (0, 1, 1), (0, 4, 1)):
        assert_equal(ours, session, x=some(*shape))


@pytest.mark.filterwarnings("ignore:output 'y' is declared")
def test_a_size_computed_from_an_open_one_may_be_one() -> None:
    ours, session = compiled_and_reference(
        "(float[a, 4, t] x) => (float[c] y) { p = MaxPool<kernel_shape=[4], strides=[4]>(x) y = Squeeze(p) }"
    )
    for shape in ((1, 4, 4), (2, 4, 4), (2, 4, 7), (2, 4, 8), (1, 4, 9), (0, 4, 5)):
        assert_equal(ours, session, x=some(*shape))


@pytest.mark.filterwarnings("ignore:output 'y' is declared")
def test_a_size_computed_from_an_open_one_may_be_none_one_or_more() -> None:
    ours, session = compiled_and_reference(
        "(float[a, 3] x) => (float[c] y) <int64[1] one = {1}, int64[1] end = {1000}, int64[1] zero = {0}, "
        "int64[1] two = {2}> { odd = Slice(x, one, end, zero, two) r = Relu(odd) y = Squeeze(r) }"
    )
    for rows in range(7):
        assert_equal(ours, session, x=some(rows, 3))


@pytest.mark.filterwarnings("ignore:output 'y' is declared")
@pytest.mark.parametrize("last", ["y = Identity(rows)", "y = Softmax<axis=-1>(rows)", "y = MatMul(rows, m)"])
def test_a_size_that_the_data_decides_may_be_one(last: str) -> None:
    ours, session = compiled_and_reference(
        f"(float[5] x, float[5, 4] w, float[4, 4] m) => (float[k] y) {{ {FOUND} {last} }}"
    )
    for x in ([0, 1, 0, 2, 3], [0, 0, 0, 0, 0], [0, 0, 7, 0, 0]):
        assert_equal(ours, session, x=np.array(x, np.float32), w=some(5, 4), m=some(4, 4))


def test_a_rank_that_the_rest_needs_is_taken_for_granted_and_required_of_the_data() -> None:
    ours, session = compiled_and_reference(
        f"(float[5] x, float[5, 4] w, float[4, 4] m) => (float[p, 4] y) {{ {FOUND} y = Gemm(rows, m) }}"
    )
    for x in ([0, 1, 0, 2, 3], [0, 0, 0, 0, 0]):
        assert_equal(ours, session, x=np.array(x, np.float32), w=some(5, 4), m=some(4, 4))
    with pytest.raises(ExecutionError, match="Squeeze_0"):
        ours.run({"x": np.array([0, 0, 7, 0, 0], np.float32), "w": some(5, 4), "m": some(4, 4)})
