"""Loops whose states have another shape in each iteration, in one native call, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import Module, load
from tilestitch.runtime.errors import ExecutionError
from tilestitch.runtime.execution import SizedExecutions

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
TOKENS = """(int64[b, s] start, int64 count, float[30, 4] table) => (int64[b, t] tokens) <bool on = {1}> {
    tokens = Loop(count, on, start) <body = b (int64 i, bool go, int64[b2, s2] before)
        => (bool again, int64[b2, s3] after) <int64[1] all = {-1}, int64 stop = {7}, int64[1] last = {-1},
        int64[1] end = {9223372036854775807}, int64[1] axis = {1}, int64[1] both = {0, 1}> {
        rows = Gather(table, before)  mean = ReduceMean<axes = [1], keepdims = 0>(rows)
        best = ArgMax<axis = 1, keepdims = 1>(mean)  number = Shape(before)  long = Gather(number, one)
        shifted = Add(best, long)  next = Mod(shifted, thirty)
        after = Concat<axis = 1>(before, next)
        seen = Equal(next, stop)  num = Cast<to = 7>(seen)  least = ReduceMin<keepdims = 0>(num)
        ended = Cast<to = 9>(least)  again = Not(ended) }> }"""
TOKENS = TOKENS.replace("int64[1] both = {0, 1}", "int64[1] one = {1}, int64 thirty = {30}")


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of iterations that were not native."""
    count, run_nested = [0], SizedExecutions.run_nested

    def counted(execution: SizedExecutions, *arguments: Any) -> Any:
        count[0] += 1
        return run_nested(execution, *arguments)

    monkeypatch.setattr(SizedExecutions, "run_nested", counted)
    return count


class Both:
    """A compiled model, and ONNX Runtime's session."""

    def __init__(self, text: str) -> None:
        model = parser.parse_model(HEAD + text)
        self.module: Module = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
        self.session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def expect_equal(self, **feeds: Any) -> None:
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        wanted = self.session.run(None, arrays)
        for _ in range(2):
            for actual, other in zip(self.module.run(arrays).values(), wanted, strict=True):
                np.testing.assert_allclose(actual, other, rtol=1e-5, atol=1e-6, strict=True)


def test_tokens_are_appended_until_a_condition_ends_the_loop(one_by_one: list[int]) -> None:
    both, rng = Both(TOKENS), np.random.default_rng(0)
    for batch, length, count in ((1, 1, 12), (3, 4, 30), (1, 2, 0), (2, 1, 2), (1, 1, 200), (1, 9, 2000), (7, 1, 25)):
        table = rng.standard_normal((30, 4)).astype(np.float32)
        start = rng.integers(0, 30, (batch, length))
        both.expect_equal(start=start, count=count, table=table)
    assert one_by_one[0] == 0
    both.expect_equal(start=start, count=1, table=table)
    both.expect_equal(start=start, count=1025, table=table)


def test_an_index_out_of_range_in_a_later_iteration_is_reported() -> None:
    with Both(TOKENS.replace("{30}", "{40}")).module as module:
        table = np.zeros((30, 4), np.float32)
        feeds = {"start": np.zeros((1, 1), np.int64), "count": np.array(5), "table": table}
        assert module.run(feeds)["tokens"].tolist() == [[0, 1, 2, 3, 4, 5]]
        with pytest.raises(ExecutionError, match="Gather"):
            module.run({**feeds, "start": np.zeros((1, 29), np.int64)})
        assert module.run(feeds)["tokens"].shape == (1, 6)


STATES = """(float[2, m] x, float[k] y, int64 count) => (float[2, c] p, float[d] q, float[e, 3] r, float[t, 2] s)
    <bool on = {1}, float[1, 3] first = {1, 2, 3}> {
    p, q, r, s = Loop(count, on, x, y, first) <body = b (
        int64 i, bool go, float[2, m2] p0, float[k2] q0, float[1, 3] r0)
        => (bool again, float[2, m3] p1, float[k3] q1, float[1, 3] r1, float[2] s1)
        <int64[1] nought = {0}, int64[1] one = {1}, float half = {0.5}> {
        again = Identity(go)
        column = ReduceSum<keepdims = 1>(p0, one)  p1 = Concat<axis = 1>(column, p0)
        q1 = Concat<axis = 0>(q0, q0)
        grown = Mul(r0, half)  number = Cast<to = 1>(i)  r1 = Add(grown, number)
        total = ReduceSum<keepdims = 0>(p1)  rest = ReduceSum<keepdims = 0>(q0)
        t1 = Unsqueeze(total, nought)  t2 = Unsqueeze(rest, nought)  s1 = Concat<axis = 0>(t1, t2) }> }"""


def test_states_grow_differently_beside_results_of_each_iteration(one_by_one: list[int]) -> None:
    both, rng = Both(STATES), np.random.default_rng(0)
    for m, k, count in ((3, 9, 4), (1, 20, 7), (2, 3, 13), (1, 2, 5), (2, 4, 2)):
        x, y = rng.uniform(-0.1, 0.1, (2, m)), rng.standard_normal(k)
        both.expect_equal(x=x.astype(np.float32), y=y.astype(np.float32), count=count)
    x = np.array([[1, np.nan], [np.inf, -1]], np.float32)
    both.expect_equal(x=x, y=np.ones(5, np.float32), count=3)
    assert one_by_one[0] == 0
    assert [part.shape for part in both.module.run({"x": x, "y": y.astype(np.float32), "count": np.array(0)}).values()][
        :3
    ] == [(2, 2), (4,), (1, 3)]


def test_inner_loops_grow_what_outer_ones_reset() -> None:
    both = Both(
        """(float[n] x, int64 outer, int64 inner) => (float[m] y) <bool on = {1}> {
        y = Loop(outer, on, x) <body = b (int64 i, bool go, float[n2] before) => (bool again, float[n3] after)
            <bool on2 = {1}, int64[1] nought = {0}> {
            again = Identity(go)
            grown = Loop(inner, on2, before) <body = c (int64 j, bool go2, float[n4] p) => (bool again2, float[n5] q)
                <int64[1] zero = {0}> {
                again2 = Identity(go2)  s = ReduceMax<keepdims = 1>(p)  f = Cast<to = 1>(j)  t = Add(s, f)
                q = Concat<axis = 0>(p, t) }>
            start = Unsqueeze(i, nought)  huge = Mul(start, start)  big = Add(huge, thousand)
            after = Slice(grown, start, big) }> }""".replace(
            "int64[1] nought = {0}>", "int64[1] nought = {0}, int64 thousand = {1000}>"
        )
    )
    for outer, inner in ((1, 5), (4, 3), (3, 0), (0, 2), (2, 40)):
        both.expect_equal(x=np.arange(3, dtype=np.float32), outer=outer, inner=inner)


def test_a_state_shrinks_to_nothing() -> None:
    both = Both("""(float[n] x, int64 count) => (float[m] y) <bool on = {1}> {
        y = Loop(count, on, x) <body = b (int64 i, bool go, float[n2] before) => (bool again, float[n3] after)
            <int64[1] one = {1}, int64[1] huge = {1000000}> {
            again = Identity(go)  rest = Slice(before, one, huge)  after = Neg(rest) }> }""")
    for count in (0, 1, 4, 5, 7):
        both.expect_equal(x=np.arange(5, dtype=np.float32), count=count)


def test_kernels_are_chosen_anew_for_other_sizes(one_by_one: list[int]) -> None:
    """A matmul of few rows has another kernel than one of many."""
    text = """(float[b, s] x, int64 count, float[16, 50] w) => (float[b, t] y) <bool on = {1}> {
        y = Loop(count, on, x) <body = c (int64 i, bool go, float[b2, s2] before) => (bool again, float[b2, s3] after)
            <int64[2] wide = {1, 16}> {
            again = Identity(go)  mean = ReduceMean<keepdims = 1, axes = [1]>(before)  h = Expand(mean, wide)
            z = MatMul(h, w)  top = ReduceMax<keepdims = 1, axes = [1]>(z)  next = Tanh(top)
            after = Concat<axis = 1>(before, next) }> }"""
    both, rng = Both(text), np.random.default_rng(0)
    w = rng.standard_normal((16, 50)).astype(np.float32)
    for batch, count in ((1, 3), (9, 4), (2, 30), (40, 2), (5, 3), (4, 2)):
        both.expect_equal(x=rng.standard_normal((batch, 2)).astype(np.float32), count=count, w=w)
    assert one_by_one[0] == 0
    grown = Both("""(float[s, 16] x, int64 count, float[16, 16] w) => (float[t, 16] y) <bool on = {1}> {
        y = Loop(count, on, x) <body = c (int64 i, bool go, float[s2, 16] before) => (bool again, float[s3, 16] after) {
            again = Identity(go)  z = MatMul(before, w)  h = Tanh(z)  most = ReduceMax<keepdims = 1, axes = [0]>(h)
            after = Concat<axis = 0>(h, most) }> }""")
    for rows, count in ((1, 2), (1, 12), (7, 9), (3, 0), (30, 40)):
        grown.expect_equal(x=rng.standard_normal((rows, 16)).astype(np.float32), count=count, w=w[:, :16] / 4)


def test_the_condition_that_a_body_is_given_is_true() -> None:
    """It lies in memory that stays as long as the table that points to it."""
    both = Both("""(float[n] x, int64 count) => (float[m] y) <bool on = {1}> {
        y = Loop(count, on, x) <body = b (int64 i, bool go, float[n2] p) => (bool again, float[n3] q)
            <int64[1] nought = {0}, float most = {100}> {
            number = Cast<to = 1>(go)  next = Unsqueeze(number, nought)  q = Concat<axis = 0>(p, next)
            s = ReduceSum<keepdims = 0>(q)  low = Less(s, most)  again = And(low, go) }> }""")
    for count in (3, 7, 12, 200):
        both.expect_equal(x=np.arange(3, dtype=np.float32), count=count)
        assert not any(part.any() for part in [np.zeros(1, np.bool_) for _ in range(1000)])  # take memory that is free


def test_states_that_follow_sizes_that_are_found() -> None:
    both = Both("""(float[n] x, int64 count) => (float[m] y) <bool on = {1}> {
        y = Loop(count, on, x) <body = b (int64 i, bool go, float[n2] p) => (bool again, float[n3] q)
            <float half = {0.5}> {
            again = Identity(go)  large = Greater(p, half)  taken = Compress<axis = 0>(p, large)
            s = ReduceSum<keepdims = 1>(taken)  next = Tanh(s)  q = Concat<axis = 0>(p, next) }> }""")
    rng = np.random.default_rng(0)
    for count in (3, 7, 40):
        both.expect_equal(x=rng.random(5).astype(np.float32), count=count)


def test_one_row_of_an_input_is_beside_all_rows_that_a_loop_has() -> None:
    """Where an input may have one row, or as many as a state that grows: it was taken to have as many in all turns."""
    both = Both("""(int64 count, float[1, 2] start, float[rows, 2] w) => (float[n, 2] y) <bool on = {1}> {
        y = Loop(count, on, start) <body = b (int64 i, bool go, float[p, 2] before) => (bool again, float[q, 2] after) {
            again = Identity(go)  sum = Add(before, w)  after = Concat<axis = 0>(sum, w) }> }""")
    for count in (0, 1, 4):
        both.expect_equal(count=count, start=np.ones((1, 2), np.float32), w=np.full((1, 2), 3, np.float32))


def test_a_state_that_begins_with_one_row_is_beside_one_that_grows() -> None:
    both = Both("""(int64 count, float[8, 2] x, float[0, 2] empty, float[rows, 2] start)
        => (float[n, 2] y, float[1, 2] z)
        <bool on = {1}, int64[1] zero = {0}> {
        y, z = Loop(count, on, empty, start) <body = b (int64 i, bool go, float[p, 2] before, float[r, 2] total)
            => (bool again, float[q, 2] after, float[s, 2] sum) {
            again = Identity(go)  row = Gather(x, i)  one = Unsqueeze(row, zero)
            after = Concat<axis = 0>(before, one)  both = Add(after, total)  sum = ReduceSum(both, zero) }> }""")
    x, empty = np.arange(16, dtype=np.float32).reshape(8, 2), np.zeros((0, 2), np.float32)
    for count in (1, 2, 5):
        both.expect_equal(count=count, x=x, empty=empty, start=np.ones((1, 2), np.float32))
