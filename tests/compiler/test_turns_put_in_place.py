"""Bodies of loops and scans that are put in their place keep what they know, and take for granted, of sizes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir.symbol_uses import symbols_of_values
from tilestitch.passes import PassContext, run_pipeline
from tilestitch.runtime import Module, load
from tilestitch.runtime.errors import ExecutionError, InputError

HEAD = '<ir_version: 9, opset_import: ["" : 20]> g '
SUM = "(float[n] x, float[m] y) => (float[k] out) <int64 one = {1}, float[1] line = {1}, bool yes = {1}> "
TURNS = {
    "a loop": SUM + """{ out = Loop(one, , x) <body = b (int64 i, bool go, float[k] p) => (bool on, float[k] q) {
        on = Identity(go)
        q = Add(p, y)
    }> }""",
    "a scan": SUM + """{ out = Scan(x, line) <num_scan_inputs = 1, body = b (float[k] p, float e) => (float[k] q) {
        q = Add(p, y)
    }> }""",
    "turns at once": SUM + """{
        two = Add(one, one)
        rows = Loop(two, yes) <body = b (int64 i, bool go) => (bool on, float row) {
            on = Identity(go)
            part = Cast<to = 1>(i)
            both = Add(x, y)
            sum = ReduceSum<keepdims = 0>(both)
            row = Mul(sum, part)
        }>
        last = Gather(rows, one)
        size = Shape(x)
        out = Expand(last, size)
    }""",
}  # fmt: skip


def loaded(text: str) -> Module:
    return load(compile_model(parser.parse_model(HEAD + text), num_threads=1).to_bytes())


@pytest.mark.parametrize("name", TURNS)
def test_sizes_that_a_body_takes_for_equal_must_be(name: str) -> None:
    module, ones = loaded(TURNS[name]), np.ones(5, np.float32)
    sums = 3 * ones if name != "turns at once" else 15 * ones
    np.testing.assert_array_equal(module.run({"x": ones, "y": 2 * ones})["out"], sums)
    with pytest.raises(InputError, match=r"Add.*must be 0"):
        module.run({"x": ones, "y": ones[:3]})


def test_a_body_may_leave_one_size() -> None:
    text = """(float[n] x) => (float[k] out) <int64 one = {1}, float[5] y = {1, 2, 3, 4, 5}> {
        out = Loop(one, , x) <body = b (int64 i, bool go, float[k] p) => (bool on, float[k] q) {
            on = Identity(go)
            q = Add(p, y)
        }>
    }"""
    module = loaded(text)
    np.testing.assert_array_equal(module.run({"x": np.zeros(5, np.float32)})["out"], [1, 2, 3, 4, 5])
    with pytest.raises(ExecutionError, match=r"Add.*must be 0"):
        module.run({"x": np.zeros(3, np.float32)})


def test_a_state_that_grows_in_its_only_turn_has_the_size_that_it_was_given() -> None:
    text = """(float[n] x) => (float[k] out, float[1] size) <int64 one = {1}> {
        out, size = Loop(one, , x) <body = b (int64 i, bool go, float[k] p) => (bool on, float[l] q, float s) {
            on = Identity(go)
            q = Concat<axis = 0>(p, p)
            shape = Size(p)
            s = Cast<to = 1>(shape)
        }>
    }"""
    out, size = loaded(text).run({"x": np.arange(3, dtype=np.float32)}).values()
    np.testing.assert_array_equal(out, [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(size, [3])


def test_sizes_that_come_to_be_in_the_only_turn_are_the_graphs() -> None:
    text = """(float[4] x, int64 count, bool more) => (int64 out) <float[1] line = {1}, int64 zero = {0}> {
        out = Scan(zero, line) <num_scan_inputs = 1, body = b (int64 p, float e) => (int64 q) {
            rows = Loop(count, more) <body = c (int64 i, bool go) => (bool on, float[4] row) {
                on = Identity(more)
                part = Cast<to = 1>(i)
                row = Mul(x, part)
            }>
            q = Size(rows)
        }>
    }"""
    graph = run_pipeline(import_model(parser.parse_model(HEAD + text), ranges={}).graph, PassContext(), "dead_branches")
    made = symbols_of_values(v for node in graph.nodes for v in node.outputs)
    assert made and made <= set(graph.symbols)
    assert [node.op for node in graph.nodes].count("scan") == 0


def test_a_loop_of_one_turn_at_most_gives_one_row_whatever_its_condition_is_after_that() -> None:
    text = """(float[n] x, bool more) => (float[1, n] out) <int64 one = {1}> {
        last, rows = Loop(one, , x) <body = b (int64 i, bool go, float[n] p) => (bool on, float[n] q, float[n] row) {
            on = Identity(more)
            q = Neg(p)
            row = Exp(p)
        }>
        out = Add(rows, last)
    }"""
    out = loaded(text).run({"x": np.zeros(3, np.float32), "more": np.False_})["out"]
    np.testing.assert_array_equal(out, np.ones((1, 3), np.float32))


def test_a_loop_is_there_for_a_size_though_what_it_collects_has_no_elements() -> None:
    """For n = 0 there is a graph of its own, in which no row is read, but the loop says how many there are."""
    text = """(float[n] x, int64 count) => (float[k, n] out) {
        last, rows = Loop(count, , x) <body = b (int64 i, bool go, float[n] p) => (bool on, float[n] q, float[n] row) {
            on = Identity(go)
            q = Neg(p)
            row = Exp(p)
        }>
        out = Neg(rows)
    }"""
    module = loaded(text)
    for n, count in ((3, 2), (0, 2), (3, 0), (0, 0)):
        out = module.run({"x": np.zeros(n, np.float32), "count": np.int64(count)})["out"]
        np.testing.assert_array_equal(out, -np.ones((count, n), np.float32))
