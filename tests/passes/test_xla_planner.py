"""The XLA baseline: reductions end kernels, products are library calls."""

from tests.networks import bert
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.planner import make_plan

LAYER_NORM = """graph @main(%x: float32[8,64], %g: float32[64]) -> (%y) {
  %n = constant [0.015625] : float32[]
  %e = constant [0.00001] : float32[]
  %s = reduce_sum(%x) {axes=[1], keepdims=true} : float32[8,1]
  %m = mul(%s, %n) : float32[8,1]
  %d = sub(%x, %m) : float32[8,64]
  %q = mul(%d, %d) : float32[8,64]
  %t = reduce_sum(%q) {axes=[1], keepdims=true} : float32[8,1]
  %v = mul(%t, %n) : float32[8,1]
  %a = add(%v, %e) : float32[8,1]
  %r = sqrt(%a) : float32[8,1]
  %z = div(%d, %r) : float32[8,64]
  %y = mul(%z, %g) : float32[8,64]
}"""

PRODUCT = """graph @main(%x: float32[8,64]) -> (%y) {
  %w = constant #sha256:0 : float32[64,64]
  %b = constant #sha256:1 : float32[64]
  %p = matmul(%x, %w) : float32[8,64]
  %a = add(%p, %b) : float32[8,64]
  %y = tanh(%a) : float32[8,64]
}"""


def plan(text: str, planner: str) -> StitchPlan:
    import numpy as np

    constants = {"0": np.ones((64, 64), np.float32), "1": np.ones(64, np.float32)}
    return make_plan(parse_graph(text, constants), PassContext(options={"planner": planner}))


def test_layer_normalisation_takes_three_kernels_where_stitching_takes_one() -> None:
    groups = plan(LAYER_NORM, "xla").groups
    assert [g.outputs for g in groups] == [("s",), ("d", "t"), ("y",)]
    assert len(plan(LAYER_NORM, "stitch").groups) == 1


def test_a_library_call_adds_the_bias_but_knows_no_tanh() -> None:
    assert [g.nodes for g in plan(PRODUCT, "xla").groups] == [("p", "a"), ("y",)]


def test_every_border_says_why() -> None:
    reasons = {r.reason for r in plan(LAYER_NORM, "xla").refusals if r.rule == "xla"}
    assert "the kernel ends with the reduction s" in reasons


def test_a_plan_is_the_same_every_time_its_refusals_too() -> None:
    graph = import_model(bert(layers=2)).graph
    context = PassContext(options={"planner": "xla"})
    plans = [make_plan(run_pipeline(graph, context), context) for _ in range(8)]
    assert len({repr(p.refusals) for p in plans}) == 1
