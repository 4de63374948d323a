"""Slices, ranges and expanded values whose sizes the data decides: kernels, of any size, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import Module, load
from tilestitch.runtime.errors import ExecutionError
from tilestitch.runtime.execution import Execution

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
INT64 = np.iinfo(np.int64)
ENDS = (0, 1, 3, 6, 7, 8, -1, -6, -7, -8, INT64.max, INT64.min, INT64.min + 1)


class Both:
    """A model compiled, whose only host steps are those that make sizes, and ONNX Runtime's session."""

    def __init__(self, text: str) -> None:
        model = parser.parse_model(HEAD + text)
        compiled = compile_model(model, num_threads=1)
        assert {step["op"] for step in compiled.explain()["host_steps"]} <= {"host.Extent", "loop"}
        self.module: Module = load(compiled.to_bytes(), num_threads=1)
        self.session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def expect_equal(self, **feeds: Any) -> None:
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        for actual, wanted in zip(self.module.run(arrays).values(), self.session.run(None, arrays), strict=True):
            np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("rows", [1, 5])
def test_slices_begin_and_end_where_the_data_says(rows: int) -> None:
    both = Both(
        "(float[n, 7] x, int64[1] a, int64[1] b) => (float[n, k] y) <int64[1] axis = {1}> { y = Slice(x, a, b, axis) }"
    )
    x = np.arange(rows * 7, dtype=np.float32).reshape(rows, 7)
    for first in ENDS:
        for last in ENDS:
            both.expect_equal(x=x, a=[first], b=[last])


def test_heads_of_rows_are_computed_with() -> None:
    both = Both("""(float[n, m] x, int64[1] b) => (float[n] y) <int64[1] a = {0}, int64[1] axis = {1}> {
        h = Slice(x, a, b, axis)  y = ReduceSum<keepdims = 0>(h, axis) }""")
    for rows, columns in ((1, 1), (3, 7), (31, 64), (64, 31)):
        x = np.random.default_rng(0).integers(-9, 9, (rows, columns)).astype(np.float32)
        for last in (0, 1, 5, columns, -1, 1000):
            both.expect_equal(x=x, b=[last])


def test_two_axes_are_sliced() -> None:
    both = Both("(float[n, m] x, int64[2] a, int64[2] b) => (float[j, k] y) { y = Slice(x, a, b) }")
    x = np.arange(30, dtype=np.float32).reshape(5, 6)
    for bounds in (([0, 0], [5, 6]), ([1, 2], [3, 4]), ([4, 5], [2, 9]), ([-3, -2], [-1, 99]), ([5, 6], [9, 9])):
        both.expect_equal(x=x, a=bounds[0], b=bounds[1])


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_ranges_end_where_the_data_says(kind: str) -> None:
    text = """(KIND a, KIND b) => (KIND[k] y, KIND[j] z) <KIND one = {1}, KIND less = {-1}> {
        y = Range(a, b, one)  z = Range(b, a, less) }"""
    both = Both(text.replace("KIND", kind))
    for first, last in ((0, 0), (0, 1), (0, 97), (5, 3), (-7, 7), (2**31 - 9, 2**31 - 1)):
        both.expect_equal(a=np.array(first, kind), b=np.array(last, kind))


def test_values_are_expanded_to_computed_sizes() -> None:
    both = Both("""(float[1, 1, 3] x, int64[2] s) => (float[a, b, 3] y) <int64[1] o = {1}> {
        t = Concat<axis = 0>(s, o)  y = Expand(x, t) }""")
    for sizes in ([1, 1], [2, 5], [0, 2], [3, 0]):
        both.expect_equal(x=np.arange(3, dtype=np.float32).reshape(1, 1, 3), s=sizes)


def test_a_negative_size_is_refused_each_time() -> None:
    model = parser.parse_model(HEAD + "(float x, int64[1] s) => (float[a] y) { y = Expand(x, s) }")
    with load(compile_model(model, num_threads=1).to_bytes(), num_threads=1) as module:
        for _ in range(3):
            assert module.run({"x": np.float32(3), "s": np.array([2])})["y"].tolist() == [3, 3]
            with pytest.raises(ExecutionError, match="-1"):
                module.run({"x": np.float32(3), "s": np.array([-1])})


LOOP = """(float[n, 4] x, int64[m] o, int64 count) => (float[k, 4] y) <bool on = {1}> {
    y = Loop(count, on) <body = b (int64 i, bool go) => (bool going, float[4] s)
        <int64[1] nought = {0}, int64 one = {1}> {
        going = Identity(go)  next = Add(i, one)  a0 = Gather(o, i)  b0 = Gather(o, next)
        a = Unsqueeze(a0, nought)  b = Unsqueeze(b0, nought)  part = Slice(x, a, b)
        s = ReduceSum<keepdims = 0>(part, nought) }> }"""


def test_turns_with_sizes_that_change_are_run_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(LOOP)
    one_by_one = [0]
    run_nested = Execution.run_nested

    def counted(execution: Execution, *arguments: Any) -> Any:
        one_by_one[0] += 1
        return run_nested(execution, *arguments)

    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (97, 4)).astype(np.float32)
    both.expect_equal(x=x, o=np.sort(rng.integers(0, 98, 41)), count=40)
    monkeypatch.setattr(Execution, "run_nested", counted)
    for _ in range(3):
        both.expect_equal(x=x, o=np.sort(rng.integers(0, 98, 41)), count=40)
    assert one_by_one[0] == 0
    both.expect_equal(x=x, o=rng.integers(0, 98, 41), count=40)  # some end before they begin
    both.expect_equal(x=x, o=np.zeros(41, np.int64), count=1)
    both.expect_equal(x=x, o=np.zeros(41, np.int64), count=0)


def test_an_index_out_of_range_within_a_turn_is_reported() -> None:
    with Both(LOOP).module as module:
        x, o = np.ones((9, 4), np.float32), np.arange(4)
        for _ in range(2):
            assert module.run({"x": x, "o": o, "count": np.array(3)})["y"].shape == (3, 4)
            with pytest.raises(ExecutionError, match="Gather"):
                module.run({"x": x, "o": o, "count": np.array(4)})
