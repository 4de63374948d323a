"""Loops become batches where no turn needs another one; all others stay loops."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto, parser

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.substitute import graph_at
from tilestitch.passes import PassContext, VerifyListener, run_pipeline

pytest.importorskip("onnxruntime")

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
TURN = "(int64 i, bool go) => (bool on, float[{shape}] row)"
BAGS = """(int64[{count}, 3] items) => (float[n, 2] sums)
<float[5, 2] table = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}, int64 zero = {{0}}, int64 width = {{3}}, int64[1] flat = {{-1}},
 int64[1] front = {{0}}, int64[1] next = {{1}}, int64[1] far = {{9223372036854775807}}, bool yes = {{1}}> {{
    ids = Reshape(items, flat)
    size = Size(items)
    starts = Range(zero, size, width)
    end = Unsqueeze(size, front)
    bounds = Concat<axis=0>(starts, end)
    ends = Slice(bounds, next, far, front)
    shape = Shape(ends)
    turns = Squeeze(shape, front)
    sums = Loop(turns, yes) <body = bag (int64 i, bool go) => (bool on, float[2] row) {{
        first = Gather(bounds, i)
        last = Gather(ends, i)
        start = Unsqueeze(first, front)
        stop = Unsqueeze(last, front)
        bag = Slice(ids, start, stop, front)
        rows = Gather(table, bag)
        row = ReduceSum<keepdims=0>(rows, front)
        on = Identity(go)
    }}>
}}"""
"""As exporters write a sum of embeddings: a turn for each row, a slice between two offsets in each turn."""


BAGS_BY_SEQUENCE = """(float[{count}, 3, 2] x) => (float[n, 2] sums)
<int64[2] rows = {{-1, 2}}, int64 zero = {{0}}, int64 one = {{1}}, int64 width = {{3}}, int64[1] flat = {{-1}},
 int64[1] ones = {{1}}, int64[1] front = {{0}}, float[1, 2] none = {{0, 0}}> {{
    table = Reshape(x, rows)
    shape = Shape(table)
    size = Gather(shape, zero)
    starts = Range(zero, size, width)
    end = Unsqueeze(size, front)
    bounds = Concat<axis=0>(starts, end)
    count = Size(starts)
    goes = Less(zero, count)
    empty = SequenceEmpty()
    turns, all = Loop("", goes, zero, empty) <body = bag
        (int64 turn, bool go, int64 i, seq(float[1, 2]) bags) => (bool on, int64 j, seq(float[1, 2]) more) {{
        at = Reshape(i, flat)
        next = Add(at, ones)
        start = Slice(bounds, at, next)
        beyond = Add(next, ones)
        stop = Slice(bounds, next, beyond)
        nothing = Equal(start, stop)
        row = If(nothing) <then_branch = empty () => (float[1, 2] r) {{ r = Identity(none) }},
            else_branch = bag () => (float[1, 2] s) {{ b = Slice(table, start, stop)  s = ReduceSum(b, front) }}>
        more = SequenceInsert(bags, row)
        j = Add(i, one)
        on = Less(j, count)
    }}>
    sums = ConcatFromSequence<axis=0>(all)
}}"""
"""As the exporter that goes through torch.export writes it."""


def imported(model: ModelProto) -> Graph:
    return import_model(model, ranges={}).graph


def batched(graph: Graph) -> Graph:
    passes = "fixpoint{limit=8}(canonicalise,fold_constants,dead_branches,cse,dce),batch_loops,canonicalise,dce"
    return run_pipeline(graph, PassContext(listeners=[VerifyListener()]), passes)


def assert_same(model: ModelProto, graph: Graph, feeds: Mapping[str, np.ndarray]) -> None:
    for actual, wanted in zip(evaluate(graph, list(feeds.values())), rivals.onnxruntime(model, 1)(feeds), strict=True):
        assert_close(actual, wanted, MODELS["float32"])


@pytest.mark.parametrize("count", ["n", "4", "1"])
def test_sums_of_embeddings_are_a_gather_and_a_reduction(count: str) -> None:
    model = parser.parse_model(HEAD + BAGS.format(count=count))
    graph = batched(imported(model))
    assert [n.op for n in graph.nodes] == ["gather", "reduce_sum"]
    for rows in (1, 2, 7) if count == "n" else (int(count),):
        items = np.arange(3 * rows).reshape(rows, 3) % 5
        assert_same(model, graph_at(graph, {"n": rows}), {"items": items})


@pytest.mark.parametrize("count", ["n", "4", "1"])
def test_sums_that_a_sequence_collects_are_a_reduction(count: str) -> None:
    model = parser.parse_model(HEAD + BAGS_BY_SEQUENCE.format(count=count))
    graph = batched(imported(model))
    assert {n.op for n in graph.nodes} <= {"reduce_sum", "reshape"}
    for rows in (1, 2, 7) if count == "n" else (int(count),):
        x = np.arange(6 * rows, dtype=np.float32).reshape(rows, 3, 2)
        assert_same(model, graph_at(graph, {"n": rows}), {"x": x})


def test_a_branch_that_turns_take_differently_stays_in_a_loop() -> None:
    model = parser.parse_model(
        HEAD + "(float[5, 3] x, bool[5] marks) => (float[5, 3] y) <int64 turns = {5}, bool yes = {1}> {\n"
        "y = Loop(turns, yes) <body = turn (int64 i, bool go) => (bool on, float[3] row) {\n"
        "mark = Gather(marks, i)  x1 = Gather(x, i)\n"
        "row = If(mark) <then_branch = a () => (float[3] r) { r = Neg(x1) },\n"
        "else_branch = b () => (float[3] s) { s = Exp(x1) }>  on = Identity(go) }> }"
    )
    graph = batched(imported(model))
    assert "loop" in [node.op for node in graph.nodes]
    assert_same(model, graph, {"x": INPUTS["x"], "marks": np.array([True, False, False, True, False])})


TURNS = {
    "numbers": "x1 = Gather(x, i)  t = Cast<to=1>(i)  row = Mul(x1, t)",
    "shapes": "x1 = Gather(x, i)  u = Unsqueeze(x1, zeros)  v = Expand(u, two)  w = Transpose(v)\n"
    "row = Concat<axis=1>(w, w)",
    "constants": "c = Constant<value_floats=[1.0, 2.0, 3.0]>()  x1 = Gather(x, i)  r = Max(x1, c)  s = Neg(r)\n"
    "row = Exp(s)",
    "alike": "c = Constant<value_floats=[1.0, 2.0, 3.0]>()  f = Cast<to=1>(go)  e = Mul(c, f)  x1 = Gather(x, i)\n"
    "row = Mul(x1, e)",
    "columns": "x1 = Gather<axis=1>(x, i)  row = Relu(x1)",
    "shared": "x1 = Gather(x, i)  row = Gather(x1, picked)",
}  # fmt: skip
SHAPES = {"numbers": "3", "shapes": "3, 4", "constants": "3", "alike": "3", "columns": "n", "shared": "2"}


@pytest.mark.parametrize("name", TURNS)
def test_operators_of_a_turn_compute_all_turns(name: str) -> None:
    turns = "3" if name == "columns" else "5"
    n = "5" if name == "columns" else "n"
    model = parser.parse_model(
        HEAD + f"(float[5, 3] x) => (float[{turns}, {SHAPES[name].replace('n', n)}] y)\n"
        f"<int64 turns = {{{turns}}}, bool yes = {{1}}, int64[1] zeros = {{0}}, int64[2] two = {{2, 3}},\n"
        "int64[2] picked = {2, 0}> {\n"
        f"y = Loop(turns, yes) <body = turn {TURN.format(shape=SHAPES[name].replace('n', n))} "
        f"{{ {TURNS[name]}  on = Identity(go) }}> }}"
    )
    graph = batched(imported(model))
    assert "loop" not in [node.op for node in graph.nodes]
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    x[2, 1] = np.nan
    assert_same(model, graph, {"x": x})


def test_one_number_of_a_run_is_added_to_all_others() -> None:
    model = parser.parse_model(
        HEAD
        + "(float[n] x) => (int64[n] y) <int64 zero = {0}, int64 one = {1}, int64[1] at = {1}, int64[1] stop = {2},\n"
        "bool yes = {1}> {\n"
        "turns = Size(x)  numbers = Range(zero, turns, one)  second = Slice(numbers, at, stop)\n"
        "moved = Add(numbers, second)\n"
        "y = Loop(turns, yes) <body = turn (int64 i, bool go) => (bool on, int64 row)\n"
        "{ row = Gather(moved, i)  on = Identity(go) }> }"
    )
    graph = batched(import_model(model, ranges={"n": (2, 99)}).graph)
    assert "loop" not in [node.op for node in graph.nodes]
    for n in (2, 3, 7):
        assert_same(model, graph_at(graph, {"n": n}), {"x": np.zeros(n, np.float32)})


DEPENDENT = {
    "carried": "(float[5, 3] x, float[3] s) => (float[3] y) <int64 turns = {5}, bool yes = {1}> {\n"
    "y = Loop(turns, yes, s) <body = turn (int64 i, bool go, float[3] a) => (bool on, float[3] b)\n"
    "{ x1 = Gather(x, i)  b = Add(a, x1)  on = Identity(go) }> }",
    "ended_early": "(float[5, 3] x) => (float[k, 3] y) <int64 turns = {5}, bool yes = {1}, int64 two = {2}> {\n"
    "y = Loop(turns, yes) <body = turn (int64 i, bool go) => (bool on, float[3] row)\n"
    "{ row = Gather(x, i)  on = Less(i, two) }> }",
    "ended early without a condition": "(float[5, 3] x) => (float[k, 3] y) <int64 turns = {5}, int64 two = {2}> {\n"
    "y = Loop(turns, \"\") <body = turn (int64 i, bool go) => (bool on, float[3] row)\n"
    "{ row = Gather(x, i)  on = Less(i, two) }> }",
    "uneven": "(float[6] x, int64[4] bounds) => (float[3] y)\n"
    "<int64 turns = {3}, bool yes = {1}, int64 one = {1}, int64[1] front = {0}> {\n"
    "y = Loop(turns, yes) <body = turn (int64 i, bool go) => (bool on, float row) {\n"
    "j = Add(i, one)  a = Gather(bounds, i)  b = Gather(bounds, j)\n"
    "a1 = Unsqueeze(a, front)  b1 = Unsqueeze(b, front)\n"
    "part = Slice(x, a1, b1, front)  row = ReduceSum<keepdims=0>(part, front)\n on = Identity(go) }> }",
}  # fmt: skip
INPUTS = {
    "x": np.arange(15, dtype=np.float32).reshape(5, 3), "s": np.ones(3, np.float32), "bounds": np.array([0, 1, 4, 6]),
}  # fmt: skip


@pytest.mark.parametrize("name", DEPENDENT)
def test_turns_that_depend_on_each_other_or_on_data_stay_a_loop(name: str) -> None:
    model = parser.parse_model(HEAD + DEPENDENT[name])
    graph = batched(imported(model))
    assert "loop" in [node.op for node in graph.nodes]
    feeds = {i.name: INPUTS[i.name] for i in model.graph.input}
    if name == "uneven":
        feeds["x"] = np.arange(6, dtype=np.float32)
    assert_same(model, graph, feeds)


def test_a_slice_that_ends_after_the_last_element_is_none_of_a_batch() -> None:
    """ONNX cuts it: the last turn has fewer elements than the others."""
    text = (
        BAGS.format(count="2").replace("int64 width = {3}", "int64 width = {4}").replace("float[n, 2]", "float[2, 2]")
    )
    graph = batched(imported(parser.parse_model(HEAD + text)))
    assert "loop" in [node.op for node in graph.nodes]


def test_a_condition_that_is_not_given_is_true_in_all_turns() -> None:
    text = "(float[3] x) => (float[n,3] y, bool[n] z) <int64 turns = {4}, bool yes = {1}> {\n"
    text += "y, z = Loop(turns, yes) <body = turn (int64 i, bool go) => (bool on, float[3] row, bool same) {\n"
    text += "on = Identity(go)  f = Cast<to=1>(i)  row = Add(x, f)  same = Identity(go) }> }"
    model = parser.parse_model(HEAD + text)
    model.graph.node[0].input[1] = ""
    graph = batched(imported(model))
    assert "loop" not in [node.op for node in graph.nodes]
    assert_same(model, graph, {"x": np.arange(3, dtype=np.float32)})
