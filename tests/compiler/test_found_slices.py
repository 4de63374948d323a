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
        assert {step["op"] for step in compiled.explain()["host_steps"]} <= {"host.Extent", "loop", "if"}
        self.module: Module = load(compiled.to_bytes(), num_threads=1)
        self.session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def expect_equal(self, **feeds: Any) -> None:
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        for actual, wanted in zip(self.module.run(arrays).values(), self.session.run(None, arrays), strict=True):
            np.testing.assert_array_equal(actual, wanted)

    def expect_close(self, **feeds: Any) -> None:
        for actual, wanted in zip(self.module.run(feeds).values(), self.session.run(None, feeds), strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("bounds", ["found, last", "zero, found", "found, next"])
def test_slices_at_sizes_that_are_found_end_with_a_known_dimension(bounds: str) -> None:
    """One that begins after it is empty; the found size was taken to lie in the dimension."""
    model = parser.parse_model(f"""{HEAD}(float[n] x, bool[n] p, float[4, 3] w) => (float[k, 3] y)
        <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] last = {{{INT64.max}}}> {{
        c = Compress<axis = 0>(x, p)  found = Shape(c)  next = Add(found, two)
        s = Slice(w, {bounds}, zero)  y = Mul(s, s) }}""")
    module = load(compile_model(model).to_bytes())
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x, w = np.arange(7, dtype=np.float32), np.arange(12, dtype=np.float32).reshape(4, 3)
    for found in range(8):
        feeds = {"x": x, "p": np.arange(7) < found, "w": w}
        np.testing.assert_array_equal(module.run(feeds)["y"], session.run(None, feeds)[0])


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


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of turns that were not native."""
    one_by_one = [0]
    run_nested = Execution.run_nested

    def counted(execution: Execution, *arguments: Any) -> Any:
        one_by_one[0] += 1
        return run_nested(execution, *arguments)

    monkeypatch.setattr(Execution, "run_nested", counted)
    return one_by_one


def test_turns_with_sizes_that_change_are_run_in_one_call(one_by_one: list[int]) -> None:
    both = Both(LOOP)
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (97, 4)).astype(np.float32)
    both.expect_equal(x=x, o=np.sort(rng.integers(0, 98, 41)), count=40)
    one_by_one[0] = 0
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


CROPS = """(float[n, 9, 8, 2] x, float[m, 4] boxes, int32[k] image) => (float[j, 3, 5, 2] y) <bool on = {1}> {
    count = Size(image)
    y = Loop(count, on) <body = b (int64[1] i, bool go) => (bool going, float[h, w, c] crop)
        <int64[1] one = {1}, int64[1] four = {4}, int64[1] first = {0}, int32[1] nought = {0}, int32[1] single = {1},
        int64[1] half = {2}, float[2] zeros = {0, 0}, float[2] ones = {1, 1}, float[0] none = {}, int64[2] hw = {3, 5}>
        { going = Identity(go)  next = Add(i, one)
        row = Slice(boxes, i, next, first)  box = Reshape(row, four)
        low = Slice(box, first, half)  high = Slice(box, half, four)  roi = Concat<axis = 0>(zeros, low, ones, high)
        from = Slice(image, i, next)  to = Add(from, single)  taken = Slice(x, from, to, nought)
        planes = Transpose<perm = [0, 3, 1, 2]>(taken)  all = Shape(planes)  head = Slice(all, first, half)
        sizes = Concat<axis = 0>(head, hw)
        resized = Resize<coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = 7.0,
            mode = "linear">(planes, roi, none, sizes)
        back = Transpose<perm = [0, 2, 3, 1]>(resized)  crop = Squeeze(back, first) }> }"""
"""As tf2onnx writes TensorFlow's crop_and_resize."""


def test_slices_of_which_another_operator_needs_one_element_are_read_in_native_turns(one_by_one: list[int]) -> None:
    both, rng = Both(CROPS), np.random.default_rng(0)
    for images, count in ((3, 4), (1, 1), (3, 40)):
        boxes = rng.uniform(-0.2, 1.2, (count, 4)).astype(np.float32)
        x = rng.standard_normal((images, 9, 8, 2)).astype(np.float32)
        both.expect_close(x=x, boxes=boxes, image=rng.integers(0, images, count).astype(np.int32))
    none = {"x": x, "boxes": np.zeros((0, 4), np.float32), "image": np.zeros(0, np.int32)}
    assert both.module.run(none)["y"].shape == (0, 3, 5, 2)
    assert one_by_one[0] == 0
    for boxes, image in ((np.ones((1, 4)), [0, 0]), (np.ones((2, 4)), [0, 3]), (np.ones((2, 4)), [-1, 0])):
        with pytest.raises(ExecutionError, match="out of range"):  # there is no such row, and no such image
            both.module.run({"x": x, "boxes": boxes.astype(np.float32), "image": np.array(image, np.int32)})


def test_a_branch_that_is_not_taken_needs_nothing_of_a_slice() -> None:
    both = Both("""(float[n] x, int64[1] i, bool c) => (float[m] y) <int64[1] one = {1}> { next = Add(i, one)
        y = If(c) <then_branch = t () => (float[k] v) { s = Slice(x, i, next)  u = Reshape(s, one)  v = Neg(u) },
            else_branch = e () => (float[k] v) { v = Slice(x, i, next) }> }""")
    for place in (0, 6, 7):
        both.expect_equal(x=np.arange(7, dtype=np.float32), i=[place], c=False)
    both.expect_equal(x=np.arange(7, dtype=np.float32), i=[6], c=True)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_slice_of_one_element_is_broadcast_along_open_sizes(rows: int) -> None:
    """As a position's embedding is, which is added to all rows."""
    both = Both("""(float[1, n, c] table, float[b, s, c] x, int64[1] i) => (float[b, s, c] y) <int64[1] one = {1}> {
        end = Add(i, one)  row = Slice(table, i, end, one)  y = Add(x, row) }""")
    rng = np.random.default_rng(0)
    table, x = rng.random((1, 7, 3)).astype(np.float32), rng.random((2, rows, 3)).astype(np.float32)
    for position in (0, 3, 6, -2, -7):
        both.expect_equal(table=table, x=x, i=[position])
    if rows > 1:
        with pytest.raises(ExecutionError, match="Slice"):
            both.module.run({"table": table, "x": x, "i": np.array([7])})
