"""Loops and scans of few known turns become the nodes of all turns; all others stay what they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto, parser

from tests.compiled import assert_close
from tests.passes.helpers import ops, origins
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.substitute import graph_at
from tilestitch.passes import PassContext, VerifyListener, run_pipeline
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.rewrite.unroll import MOST_NODES
from tilestitch.runtime import load

pytest.importorskip("onnxruntime")

HEAD = '<ir_version: 9, opset_import: ["" : 20]> g '


def scan(turns: int | str, attributes: str = "", along: int = 0, body: str = "q = Sub(p, e) o = Mul(q, e)") -> str:
    x = f"{turns}, 3" if along == 0 else f"3, {turns}"
    return f"""(float[{x}] x, float[3] s) => (float[3] last, float[k, l] all) {{
        last, all = Scan(s, x) <num_scan_inputs = 1, scan_input_axes = [{along}]{attributes},
            body = b (float[3] p, float[3] e) => (float[3] q, float[3] o) {{ {body} }}>
    }}"""


def loop(head: str, body: str, given: str = "n, yes, s", constants: str = "int64 n = {5}, bool yes = {1}") -> str:
    return f"""{head} <{constants}, bool no = {{0}}, int64 two = {{2}}> {{
        last, all = Loop({given}) <body = b (int64 i, bool go, float[3] p) => (bool on, float[3] q, float[3] o) {{
            {body}
        }}>
    }}"""


HEADER = "(float[5, 3] x, float[3] s) => (float[3] last, float[k, 3] all)"
STEP = "e = Gather(x, i)  t = Cast<to = 1>(i)  u = Mul(e, t)  q = Add(p, u)  o = Exp(q)"


def given_too(value: str) -> str:
    return HEADER.replace("s) =>", f"s, {value}) =>")


def model_of(text: str) -> ModelProto:
    return parser.parse_model(HEAD + text)


def unrolled(model: ModelProto, target: TargetInfo | None = None) -> Graph:
    context = PassContext(*([target] if target else []), listeners=[VerifyListener()])
    graph = import_model(model, ranges={}).graph
    return run_pipeline(graph, context, "fixpoint(canonicalise,fold_constants,dead_branches,cse,dce),unroll,dce")


def assert_same(model: ModelProto, graph: Graph, feeds: Mapping[str, np.ndarray]) -> None:
    for actual, wanted in zip(evaluate(graph, list(feeds.values())), rivals.onnxruntime(model, 1)(feeds), strict=True):
        assert_close(actual, wanted, MODELS["float32"])


def feeds_of(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[1, 1] = np.nan
    return {"x": x, "s": np.arange(3, dtype=np.float32)}


@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (0, -1)])
def test_turns_of_a_scan_read_and_write_along_their_axes(axes: tuple[int, int], directions: tuple[int, int]) -> None:
    read, written = directions
    attributes = f", scan_output_axes = [{axes[1]}], scan_input_directions = [{read}]"
    model = model_of(scan(5, f"{attributes}, scan_output_directions = [{written}]", axes[0]))
    graph = unrolled(model)
    assert not {"scan", "loop"} & set(ops(graph)) and ops(graph).count("sub") == 5
    assert_same(model, graph, feeds_of((3, 5) if axes[0] else (5, 3)))


@pytest.mark.parametrize("given", ["n, yes, s", "n, , s"])
@pytest.mark.parametrize("on", ["Identity(go)", "Identity(yes)"])
def test_turns_of_a_loop_know_their_number(given: str, on: str) -> None:
    model = model_of(loop(HEADER, f"{STEP}  on = {on}", given))
    graph = unrolled(model)
    assert "loop" not in ops(graph) and ops(graph).count("exp") == 5
    assert_same(model, graph, feeds_of((5, 3)))


STAY = {
    "turns that data decide": loop(given_too("int64 m"), f"{STEP} on = Identity(go)", "m, yes, s"),
    "a beginning that data decide": loop(given_too("bool m"), f"{STEP} on = Identity(go)", "n, m, s"),
    "an end that data decide": loop(
        HEADER, f"{STEP} m = ReduceMax<keepdims = 0>(q)  l = Cast<to = 1>(two)  on = Less(m, l)"
    ),
    "an end after the first turn": loop(HEADER, f"{STEP} on = Identity(no)"),
    "a branch in each turn": scan(5, body="""m = ReduceMax<keepdims = 0>(p)  c = Cast<to = 9>(m)
        q = If(c) <then_branch = t () => (float[3] v) { v = Neg(e) }, else_branch = f () => (float[3] w) { w = Exp(e) }>
        o = Mul(q, e)"""),
    "more nodes than all turns may have": scan(MOST_NODES // 2 + 1),
    "turns without end": scan("n"),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str) -> None:
    assert {"scan", "loop"} & set(ops(unrolled(model_of(STAY[name]))))


def test_the_most_nodes_that_turns_may_have() -> None:
    assert "scan" not in ops(unrolled(model_of(scan(MOST_NODES // 2))))


def test_a_state_that_grows_stays_in_its_loop() -> None:
    text = """(float[3] s) => (float[k] last) <int64 n = {3}> { last = Loop(n, , s) <body = b
        (int64 i, bool go, float[l] p) => (bool on, float[m] q) { on = Identity(go)  q = Concat<axis = 0>(p, p) }> }"""
    assert "loop" in ops(unrolled(model_of(text)))


def test_on_gpus_turns_stay_launches_of_one_step() -> None:
    assert "scan" in ops(unrolled(model_of(scan(5)), TargetInfo("cuda", 2)))


def test_turns_within_turns() -> None:
    inner = """q, o2 = Scan(p, y) <num_scan_inputs = 1, body = c (float[3] a, float[3] f) => (float[3] g, float[3] h) {
        g = Mul(a, f)  h = Neg(g) }>  o = ReduceSum<keepdims = 0>(o2, front)"""
    text = scan(2, body=inner).replace("float[3] s)", "float[3] s, float[2, 3] y)", 1)
    model = model_of(text.replace("{", "<int64[1] front = {0}> {", 1))
    graph = unrolled(model)
    assert "scan" not in ops(graph) and ops(graph).count("mul") == 4
    assert_same(model, graph, {**feeds_of((2, 3)), "y": np.full((2, 3), 1.5, np.float32)})


def test_all_turns_share_what_they_multiply_by_and_say_whose_they_are() -> None:
    weights = f"float[3, 3] w = {{{', '.join(map(str, range(9)))}}}"
    model = model_of(scan(4, body="m = MatMul(p, w)  q = Tanh(m)  o = Mul(q, e)").replace("{", f"<{weights}> {{", 1))
    graph = unrolled(model)
    assert len({node.inputs[1] for node in graph.nodes if node.op == "matmul"}) == 1
    assert {"MatMul_0", "Tanh_0", "Mul_0", "Scan_0"} == origins(graph)
    assert_same(model, graph, feeds_of((4, 3)))


def test_sizes_may_be_open() -> None:
    text = """(float[4, b, 3] x, float[b, 3] s) => (float[b, 3] last, float[4, b, 3] all) {
        last, all = Scan(s, x) <num_scan_inputs = 1, body = r (float[b, 3] p, float[b, 3] e) => (float[b, 3] q,
            float[b, 3] o) { h = Mul(p, e)  q = Add(h, e)  o = Neg(q) }> }"""
    model = model_of(text)
    graph = unrolled(model)
    assert "scan" not in ops(graph)
    for b in (1, 2, 7):
        x = np.random.default_rng(b).standard_normal((4, b, 3)).astype(np.float32)
        assert_same(model, graph_at(graph, {"b": b}), {"x": x, "s": x[0]})


def test_a_compiled_model_has_no_turns_left() -> None:
    model = model_of(loop(HEADER, f"{STEP} on = Identity(go)"))
    compiled = compile_model(model, num_threads=1)
    assert not compiled.plan.bodies
    feeds = feeds_of((5, 3))
    for actual, wanted in zip(load(compiled.to_bytes()).run(feeds).values(), rivals.onnxruntime(model, 1)(feeds)):
        assert_close(actual, wanted, MODELS["float32"])
