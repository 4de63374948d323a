"""Sequences that a loop appends to become tensors where all their elements have one shape; others stay sequences."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, parser

from tilestitch.compiler.frontend.importer import import_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.substitute import graph_at

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
CONSTANTS = "int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 three = {3}, bool yes = {1}"
STATE = "(int64 turn, bool go, int64 i, seq(float[2, 3]) rows) => (bool on, int64 j, seq(float[2, 3]) more)"
COUNTED = """(float[n, 2, 3] x, int64[n] numbers) => (float[{shape}] y) <{constants}> {{
    count = Size(numbers)
    goes = Less({first}, count)
    empty = SequenceEmpty()
    last, all = Loop("", goes, {first}, empty) <body = turns {state} {{
        row = Gather(x, i)
        more = SequenceInsert(rows, row)
        j = Add(i, {step})
        on = Less({asked}, count)
    }}>
    y = ConcatFromSequence<axis={axis}, new_axis={new_axis}>(all)
}}"""
GIVEN = """(float[5, 2, 3] x) => (float[a, b] y) <{constants}> {{
    empty = SequenceEmpty()
    all = Loop(three, {starts}, empty) <body = turns
        (int64 i, bool go, seq(float[2, 3]) rows) => (bool on, seq(float[2, 3]) more) {{
        {body}
    }}>
    y = ConcatFromSequence<axis=0>(all)
}}"""


def counted(first: str = "zero", step: str = "one", asked: str = "j", axis: int = 0, new_axis: int = 0) -> ModelProto:
    text = COUNTED.format(
        constants=CONSTANTS, state=STATE, first=first, step=step, asked=asked, axis=axis, new_axis=new_axis,
        shape="a, b, c" if new_axis else "a, b",
    )  # fmt: skip
    return parser.parse_model(HEAD + text)


def given(body: str, starts: str = "yes") -> ModelProto:
    return parser.parse_model(HEAD + GIVEN.format(constants=CONSTANTS, body=body, starts=starts))


def operators(graph: Graph) -> set[str]:
    return {node.op for node in graph.nodes}


def assert_as_onnx_runtime(model: ModelProto, graph: Graph, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((n, 2, 3)).astype(np.float32)
    feeds = {"x": x, "numbers": np.arange(n)}
    feeds = {i.name: feeds[i.name] for i in model.graph.input}
    known = graph_at(graph, {s.name: n for s in graph.symbols if s.name == "n"})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for actual, wanted in zip(evaluate(known, list(feeds.values())), session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_loop_that_counts_its_turns_gives_a_tensor_of_known_shape(axis: int, new_axis: int) -> None:
    model = counted(axis=axis, new_axis=new_axis)
    graph = import_model(model, ranges={"n": (1, 99)}).graph
    assert "host.ConcatFromSequence" not in operators(graph)
    assert isinstance(graph.outputs[0].type, TensorType) and graph.outputs[0].type.is_sized
    for n in (1, 2, 7):
        assert_as_onnx_runtime(model, graph, n)


@pytest.mark.parametrize("starts", ["yes", '""'])
def test_a_loop_with_a_number_of_turns_does_so_too(starts: str) -> None:
    model = given("row = Gather(x, i)  more = SequenceInsert(rows, row)  on = Identity(go)", starts)
    graph = import_model(model).graph
    assert graph.outputs[0].type == TensorType("float32", (6, 3))
    assert_as_onnx_runtime(model, graph, 5)


OTHER_COUNTS = {
    "from_one": counted(first="one"), "in_steps_of_two": counted(step="two"),
    "by_the_number_before": counted(asked="i"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_COUNTS)
def test_other_ways_to_count_stay_sequences(name: str) -> None:
    model = OTHER_COUNTS[name]
    graph = import_model(model, ranges={"n": (3, 99)}).graph
    assert "host.ConcatFromSequence" in operators(graph)
    if name != "by_the_number_before":  # reads beyond the end
        assert_as_onnx_runtime(model, graph, 4)


OTHER_BODIES = {
    "in_front": "row = Gather(x, i)  more = SequenceInsert(rows, row, zero)  on = Identity(go)",
    "twice": "row = Gather(x, i)  once = SequenceInsert(rows, row)  more = SequenceInsert(once, row)\n"
    "on = Identity(go)",
    "read": "row = Gather(x, i)  more = SequenceInsert(rows, row)  n = SequenceLength(rows)  on = Less(n, two)",
    "ended_by_data": "row = Gather(x, i)  more = SequenceInsert(rows, row)  on = Less(i, one)",
}  # fmt: skip
OTHER_BODIES["uneven"] = (
    "first = Gather(x, zero)  front = Constant<value_ints=[0]>()  flat = Constant<value_ints=[-1]>()\n"
    "at = Reshape(i, flat)  row = Slice(first, front, at)  more = SequenceInsert(rows, row)  on = Identity(go)"
)


@pytest.mark.parametrize("name", OTHER_BODIES)
def test_other_ways_to_grow_stay_sequences(name: str) -> None:
    model = given(OTHER_BODIES[name])
    graph = import_model(model).graph
    assert "host.ConcatFromSequence" in operators(graph)
    assert_as_onnx_runtime(model, graph, 5)


def test_a_sequence_that_is_not_empty_at_first_stays_one() -> None:
    text = GIVEN.replace("empty = SequenceEmpty()", "x0 = Gather(x, two)  empty = SequenceConstruct(x0)")
    body = "row = Gather(x, i)  more = SequenceInsert(rows, row)  on = Identity(go)"
    model = parser.parse_model(HEAD + text.format(constants=CONSTANTS, body=body, starts="yes"))
    assert_as_onnx_runtime(model, import_model(model).graph, 5)


RECURRENT = """(float[n, 2, 3] x, int64[n] numbers)
    => (float[a, b] y, float[2, 3] last, float[2, 3] sums) <{constants}> {{
    count = Size(numbers)  start = ReduceMax<axes=[0], keepdims=0>(x)  empty = SequenceEmpty()  goes = Less(zero, count)
    {ends}, all, sums = Loop({begins}, empty, start) <body = turns
        (int64 turn, bool go, float[2, 3] state, {number} seq(float[2, 3]) rows, float[2, 3] before)
        => (bool on, float[2, 3] next, {following} seq(float[2, 3]) more, float[2, 3] after) {{
        row = Gather(x, turn)  both = Mul(state, row)  next = Neg(both)  after = Add(before, state)
        more = SequenceInsert(rows, next)  {again}
    }}>
    y = ConcatFromSequence<axis=0>(all)
}}"""


@pytest.mark.parametrize("counts", [False, True])
def test_states_besides_a_sequence_are_carried(counts: bool) -> None:
    parts = {
        "ends": "last, i" if counts else "last",
        "begins": '"", goes, start, zero' if counts else "count, yes, start",
        "number": "int64 i," if counts else "",
        "following": "int64 j," if counts else "",
        "again": "j = Add(i, one)  on = Less(j, count)" if counts else "on = Identity(go)",
    }
    model = parser.parse_model(HEAD + RECURRENT.format(constants=CONSTANTS, **parts))
    graph = import_model(model, ranges={"n": (1, 99)}).graph
    assert "host.ConcatFromSequence" not in operators(graph)
    for n in (1, 2, 7):
        assert_as_onnx_runtime(model, graph, n)


def test_rows_of_an_open_size_give_a_tensor() -> None:
    model = parser.parse_model(
        f"""{HEAD}(float[b, 3] x) => (float[a, c] y) <{CONSTANTS}> {{
        empty = SequenceEmpty()
        last, all = Loop(three, yes, x, empty) <body = turns
            (int64 i, bool go, float[b, 3] state, seq(float[b, 3]) rows)
            => (bool on, float[b, 3] next, seq(float[b, 3]) more) {{
            next = Tanh(state)  more = SequenceInsert(rows, next)  on = Identity(go)
        }}>
        y = ConcatFromSequence<axis=1>(all) }}"""
    )
    graph = import_model(model, ranges={"b": (1, 9)}).graph
    assert "host.ConcatFromSequence" not in operators(graph)
    assert isinstance(graph.outputs[0].type, TensorType) and graph.outputs[0].type.is_sized
