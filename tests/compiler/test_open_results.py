"""Sizes that only a run can tell: results as large as the data says, loops and branches over open sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError

pytest.importorskip("onnxruntime")

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
SIZES = (1, 2, 3, 17, 97, 1000)
MODELS_BY_NAME = {
    "rows_by_mask": "(float[n, 4] x, bool[n] m) => (float[k, 4] y, float[n, 4] w) <int64[1] a = {0}>\n"
    "{ w = Relu(x)  z = NonZero(m)  s = Squeeze(z, a)  g = Gather<axis=0>(w, s)  y = Softmax<axis=1>(g) }",
    "joined_with_all": "(float[n, 4] x, bool[n] m) => (float[k, 4] y, float[q, 4] v)\n"
    "{ g = Compress<axis=0>(x, m)  y = Exp(g)  v = Concat<axis=0>(y, x) }",
    "twice": "(float[n, 4] x, bool[n] m) => (float[k] y, int64[j] v) <int64[1] a = {0}, float c = {0.5}>\n"
    "{ z = NonZero(m)  s = Squeeze(z, a)  g = Gather(x, s)  h = ReduceMax<axes=[1], keepdims=0>(g)  b = Greater(h, c)\n"
    "z2 = NonZero(b)  s2 = Squeeze(z2, a)  y = Gather(h, s2)  v = Gather(s, s2) }",
    "matmul": "(float[n, 2] x, bool[n] m) => (float[k, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}>\n"
    "{ g = Compress<axis=0>(x, m)  y = MatMul(g, w) }",
    "sums_of_none": "(float[n, 4] x, bool[n] m) => (float[4] y, float[o] v) <int64[1] a = {0}>\n"
    "{ g = Compress<axis=0>(x, m)  y = ReduceSum<keepdims=0>(g, a)  q = ReduceProd<axes=[0], keepdims=0>(g)\n"
    "f = Shape(g)  f0 = Gather(f, a)  f1 = Cast<to=1>(f0)  v = Add(f1, q) }",
    "equal_groups_among_other_symbols": "(float[n, 4] x, bool[n] m) => (float[n, 4] y, float[n, 4] z, float[k, 4] w)\n"
    "<int64[1] a = {0}, float c = {2}>\n"
    "{ y = Mul(x, c)  g = Compress<axis=0>(y, m)  w = Exp(g)  h = Shape(g)  k0 = Gather(h, a)  k1 = Cast<to=1>(k0)\n"
    "p = Sub(k1, k1)  u = Add(y, p)  u2 = Softmax<axis=1>(u)  z = Mul(u2, c) }",
    "only_how_many": "(float[n, 4] x, bool[n] m) => (int64[1] y, float[k] z) <int64[1] a = {1}, float c = {1}>\n"
    "{ f = NonZero(m)  h = Shape(f)  y = Gather(h, a)  z0 = ConstantOfShape(y)  z = Add(z0, c) }",
    "different": "(float[n] x, bool[n] m) => (int64[k] y, float[k] z)\n"
    "{ i = Cast<to=7>(x)  u, f, inv, count = Unique<sorted=1>(i)  y = Add(u, count)  z = Cast<to=1>(count) }",
}
"""What follows is computed in kernels: all but one step for each result of such a size."""
CONTROL = {
    "branches": "(float[n, 4] x, bool c) => (float[k, 4] y)\n"
    "{ y = If (c) <then_branch = t () => (float[k, 4] a) { e = Exp(x)  a = Add(e, e) },\n"
    "else_branch = f () => (float[k2, 4] b) { e2 = Relu(x)  b = Concat<axis=0>(e2, x) }> }",
    "a_loop": "(float[n, 4] x, int64 t) => (float[n, 4] y) <bool c = {1}>\n"
    "{ y = Loop (t, c, x) <body = b (int64 i, bool ci, float[n, 4] a) => (bool co, float[n, 4] d)\n"
    "{ co = Identity(ci)  e = Tanh(a)  d = Add(e, x) }> }",
    "a_loop_that_grows": "(float[n, 4] x, int64 t) => (float[q, 4] y) <bool c = {1}>\n"
    "{ y = Loop (t, c, x) <body = b (int64 i, bool ci, float[k, 4] a) => (bool co, float[k2, 4] d)\n"
    "{ co = Identity(ci)  e = Tanh(a)  d = Concat<axis=0>(e, x) }> }",
    "a_loop_that_finds": "(float[n] x, int64 t) => (float[q] y) <bool c = {1}, int64[1] a = {0}>\n"
    "{ y = Loop (t, c, x) <body = b (int64 i, bool ci, float[k] v) => (bool co, float[k2] d)\n"
    "{ co = Identity(ci)  e = Abs(v)  m = Less(e, v)  mm = Not(m)  z = NonZero(mm)  s = Squeeze(z, a)\n"
    "g = Gather(v, s)  d = Mul(g, g) }> }",
    "branches_in_a_loop": "(float[n, 4] x, int64 t) => (float[q, 4] y)\n"
    "<bool c = {1}, float z = {0.1}, int64[1] a1 = {1}, int64[2] a01 = {0, 1}>\n"
    "{ y = Loop (t, c, x) <body = b (int64 i, bool ci, float[k, 4] a) => (bool co, float[k2, 4] d)\n"
    "{ co = Identity(ci)  s = ReduceSum<keepdims=0>(a, a1)  m = Greater(s, z)  u = ReduceSum<keepdims=0>(a, a01)\n"
    "p = Greater(u, z)  d = If (p)\n"
    "<then_branch = t1 () => (float[k3, 4] d1) { f = Compress<axis=0>(a, m)  d1 = Tanh(f) },\n"
    "else_branch = e1 () => (float[k4, 4] d2) { d2 = Concat<axis=0>(a, x) }> }> }",
    "a_scan": "(float[n, 4] x, float[4] h) => (float[4] y, float[n, 4] ys)\n"
    "{ y, ys = Scan <num_scan_inputs=1, body = b (float[4] a, float[4] e) => (float[4] o, float[4] p)\n"
    "{ t = Tanh(a)  o = Add(t, e)  p = Exp(t) }> (h, x) }",
}


def feeds_of(model: ModelProto) -> Iterator[dict[str, Any]]:
    """For all sizes, with none, some and all of a mask set."""
    random = np.random.default_rng(0)
    for size in SIZES:
        for density in (0, 0.5, 1):
            feeds = {}
            for info in model.graph.input:
                tensor = info.type.tensor_type
                shape = [size if d.dim_param else d.dim_value for d in tensor.shape.dim]
                match tensor.elem_type:
                    case TensorProto.BOOL:
                        feeds[info.name] = np.asarray(random.random(shape) < density)
                    case TensorProto.INT64:
                        feeds[info.name] = np.asarray(random.integers(0, 4, shape))
                    case _:
                        feeds[info.name] = random.standard_normal(shape).astype(np.float32)
            yield feeds


def assert_equal_to_onnxruntime(model: ModelProto, dims: Mapping[str, tuple[int, int]]) -> Any:
    compiled = compile_model(model, dims=dims)
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for feeds in feeds_of(model):
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])
    return compiled


@pytest.mark.parametrize("name", MODELS_BY_NAME)
def test_what_follows_a_size_that_the_data_decides_is_in_kernels(name: str) -> None:
    compiled = assert_equal_to_onnxruntime(parser.parse_model(HEAD + MODELS_BY_NAME[name]), {"n": (1, 1000)})
    host = compiled.explain()["host"]
    assert {reason["rule"] for reason in host["reasons"]} == {"host.data_dependent"}
    assert {op for reason in host["reasons"] for op in reason["operators"]} == {"Extent"}


@pytest.mark.parametrize("name", CONTROL)
def test_bodies_over_open_sizes_are_compiled(name: str) -> None:
    compiled = assert_equal_to_onnxruntime(parser.parse_model(HEAD + CONTROL[name]), {"n": (1, 1000)})
    operators = {op for reason in compiled.explain()["host"]["reasons"] for op in reason["operators"]}
    assert operators <= {"if", "loop", "scan", "Extent"}


HIDDEN, INPUTS, GATES = 8, 5, {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(kind: str, direction: str, with_lengths: bool) -> ModelProto:
    random = np.random.default_rng(0)
    directions, rows = 1 + (direction == "bidirectional"), GATES[kind] * HIDDEN
    shapes = {"w": (directions, rows, INPUTS), "r": (directions, rows, HIDDEN), "b": (directions, 2 * rows)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) * 0.3, name)
        for name, shape in shapes.items()
    ]
    finals = ["h", "c"][: 1 + (kind == "LSTM")]
    operands = ["x", *shapes, *(["lengths"] if with_lengths else [])]
    node = helper.make_node(kind, operands, ["y", *finals], hidden_size=HIDDEN, direction=direction)
    info, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    inputs = [info("x", floats, ["s", "b", INPUTS])]
    inputs += [info("lengths", TensorProto.INT32, ["b"])] if with_lengths else []
    outputs = [info("y", floats, ["s", directions, "b", HIDDEN])]
    outputs += [info(name, floats, [directions, "b", HIDDEN]) for name in finals]
    graph = helper.make_graph([node], "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("kind", "direction", "with_lengths"),
    [
        ("LSTM", "bidirectional", True),
        ("LSTM", "forward", False),
        ("GRU", "bidirectional", False),
        ("GRU", "reverse", True),
        ("RNN", "bidirectional", True),
    ],
)
def test_recurrent_layers_run_over_any_length_and_batch(kind: str, direction: str, with_lengths: bool) -> None:
    model = recurrent(kind, direction, with_lengths)
    compiled = compile_model(model, dims={"b": (1, 8), "s": (1, 300)})
    operators = {op for reason in compiled.explain()["host"]["reasons"] for op in reason["operators"]}
    assert not operators
    reference, random = rivals.onnxruntime(model, 1), np.random.default_rng(1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for batch, steps in ((1, 1), (2, 3), (7, 17), (1, 128), (8, 300)):
            feeds = {"x": random.standard_normal((steps, batch, INPUTS)).astype(np.float32)}
            if with_lengths:
                feeds["lengths"] = random.integers(1, steps + 1, batch).astype(np.int32)
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])


def test_parts_say_how_much_must_be_found() -> None:
    """As experts of a mixture are exported: by how many of them the sample chose."""
    model = parser.parse_model(
        HEAD + "(bool[4] chosen, bool[3] m, float[4, 3] x) => (float[k] y) <int64[2] parts = {1, 1}>\n"
        "{ z = NonZero(chosen)  a, b = Split<axis=1>(z, parts)  i = Squeeze(b)  r = Gather(x, i)\n"
        "f = Compress<axis=0>(r, m)  y = Exp(f) }"
    )
    compiled = compile_model(model)
    assert not compiled.explain()["sizes"]["refused"]
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    with load(compiled.to_bytes()) as module:
        feeds = {"chosen": np.array([True, False, True, False]), "m": np.array([True, False, True]), "x": x}
        (wanted,) = rivals.onnxruntime(model, 1)(feeds)
        assert_close(module.run(feeds)["y"], wanted, MODELS["float32"])
        with pytest.raises(ExecutionError, match=r"NonZero.* a size of 3, but it meets one of 2"):
            module.run({**feeds, "chosen": np.array([True, True, True, False])})
