"""Recomputation is chosen by the latency model, not by a rule of thumb."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.passes.helpers import assert_close
from tests.passes.simulate import simulate
from tests.strategies import feeds
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.protocol import AnyDevice, KernelFacts
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, check_plan, make_plan
from tilestitch.passes.fusion.recompute import Recompute

SHARED = """graph @shared(%x: float32[64,128], %y: float32[64,128]) -> (%a, %b) {
  %e = exp(%x) : float32[64,128]
  %t = transpose(%e) {perm=[1,0]} : float32[128,64]
  %a = reduce_sum(%t) {axes=[1], keepdims=false} : float32[128]
  %m = mul(%e, %y) : float32[64,128]
  %b = reduce_max(%m) {axes=[1], keepdims=false} : float32[64]
}"""


@dataclass(frozen=True)
class Prices:
    """What a launch, a byte and a call of exp cost, in microseconds."""

    launch: float = 0.0
    byte: float = 0.0
    exp: float = 0.0
    name: str = "prices"

    def latency_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        return self.launch + self.byte * kernel.footprint_bytes + self.exp * kernel.transcendental


def planned(model: Prices) -> StitchPlan:
    graph = parse_graph(SHARED)
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2), {"planner": "none"}, rules=(Recompute(model),)))
    check_plan(plan, graph)
    given = feeds(graph, 0)
    assert_close(evaluate(graph, given), simulate(plan, graph, given))
    return plan


@pytest.mark.parametrize(
    ("model", "again"),
    [
        (Prices(launch=5.0), True),
        (Prices(exp=1.0), False),
        (Prices(launch=5.0, exp=1e-5), True),
        (Prices(launch=5.0, exp=1.0), False),
        (Prices(byte=1.0), True),
    ],
)
def test_a_value_is_computed_again_where_that_is_predicted_to_be_faster(model: Prices, again: bool) -> None:
    holders = [g for g in planned(model).groups if "e" in g.nodes]
    assert (len(holders) > 1) == again
    if again:
        stitches = [s for g in holders for s in g.stitches if s.producer == "e"]
        assert {s.scheme for s in stitches} == {"duplicate"} and {s.rule for s in stitches} == {"recompute"}
