"""Open sizes at which little is left: slices of one element or of none, columns of which the data keeps none."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load

HEADER = '<ir_version: 8, opset_import: ["" : 18]> g '
CONSTANTS = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}, int64 first = {0}, int64 next = {1}"
ROWS = "s = Shape(x) rows = Gather(s, zero) "


def assert_equal(text: str, *given: np.ndarray) -> None:
    model = parser.parse_model(HEADER + text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with load(compile_model(model, cache=False).to_bytes()) as ours:
        for x in given:
            wanted = session.run(None, {"x": x})
            for found, exact in zip(ours.run({"x": x}).values(), wanted, strict=True):
                assert found.shape == exact.shape
                np.testing.assert_allclose(found, exact, rtol=1e-6)


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("end", ["e = Identity(rows)", "e = Sub(rows, one)"])
def test_a_dimension_of_one_is_no_table_that_a_slice_must_end_within(end: str) -> None:
    text = f"(float[a, 1] x) => (float[a, k] y) <{CONSTANTS}> {{ {ROWS} {end} c = Slice(x, zero, e, one) y = Relu(c) }}"
    assert_equal(text, *(some(rows, 1) for rows in (1, 2, 3, 7)))


def test_sizes_that_are_compiled_on_their_own_may_leave_a_single_other_one() -> None:
    text = (
        f"(float[a, 1] x) => (float[a] y, float[k] z) <{CONSTANTS}, float[2] table = {{3, 5}}> "
        f"{{ {ROWS} y = Slice(table, zero, rows) r = Relu(x) z = Squeeze(r) }}"
    )
    assert_equal(text, some(1, 1), some(2, 1))


def test_the_last_number_of_an_open_range_is_a_size() -> None:
    text = (
        f"(float[n, 2] x) => (float[1, 2] y) <{CONSTANTS}, int64[1] end = {{4611686018427387904}}, "
        f"int64[2] column = {{-1, 1}}> {{ {ROWS} n = Squeeze(rows, zero) r = Range(first, n, next) t = Cast<to=1>(r) "
        "u = Reshape(t, column) v = Add(u, x) y = Slice(v, last, end, zero) }"
    )
    assert_equal(text, *(some(rows, 2) for rows in (1, 2, 3, 7)))


def test_images_at_a_time_are_counted_where_the_data_keeps_none_of_their_columns() -> None:
    text = (
        f"(float[c, a] x) => (float[m, c] y, float[c, m] z, float[c, m] w) <{CONSTANTS}, float limit = {{0.3}}> "
        "{ s = ReduceSum<keepdims=0>(x, zero) chosen = Greater(s, limit) kept = Compress<axis=1>(x, chosen) "
        "r = Relu(kept) both = Concat<axis=1>(r, r) left, right = Split<axis=1, num_outputs=2>(both) "
        "y = Transpose<perm=[1, 0]>(left) z = Softmax<axis=1>(right) w = CumSum(right, first) }"
    )
    assert_equal(text, some(2, 2), -abs(some(2, 2)), some(3, 7), abs(some(1, 1)))
