"""Exploration: what it finds, that it is repeatable and legal, and how far from the optimum it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings

from tests.passes.helpers import assert_close
from tests.passes.simulate import simulate
from tests.strategies import feeds, graphs
from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.cpu import CpuDevice
from tilestitch.cost_model.protocol import AnyDevice, KernelFacts, LatencyModel
from tilestitch.cost_model.random_model import RandomModel
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, WhyNot, check_plan, make_plan
from tilestitch.passes.fusion.bitsets import bits
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.exact import TooLargeError, exact
from tilestitch.passes.fusion.explore import Explore
from tilestitch.passes.fusion.planners import PLANNERS
from tilestitch.passes.fusion.rules import Fuse
from tilestitch.passes.fusion.space import Space

ALONE = Explore(seeded=False)
"""Exploration without the partition of the other rules to fall back on."""


def explored(text: str, explore: Explore = ALONE, rules: Sequence[object] = ()) -> StitchPlan:
    """The checked plan of a graph by exploration alone; it computes what the graph says."""
    graph = parse_graph(text)
    plan = make_plan(graph, PassContext(TargetInfo(threads=2), {"planner": "none"}, rules=(*rules, explore)))
    check_plan(plan, graph)
    inputs = feeds(graph)
    assert_close(evaluate(graph, inputs), simulate(plan, graph, inputs))
    return plan


def kernels(plan: StitchPlan) -> list[list[str]]:
    return [list(plan.group(name).nodes) for name in plan.launch_order]


def space(graph: Graph, model: LatencyModel | None = None, device: AnyDevice | None = None) -> Space:
    state = Fusion(graph, TargetInfo(threads=2))
    return Space(state, model or AnalyticalModel(), device or CpuDevice(cores=2))


LAYER_NORM = """graph @g(%a: float32[64,96], %b: float32[64,96], %g: float32[96]) -> (%x, %y) {
  %n = constant [0.0104] : float32[]
  %e = constant [0.00001] : float32[]
  %x = add(%a, %b) : float32[64,96]
  %s = reduce_sum(%x) {axes=[1], keepdims=true} : float32[64,1]
  %m = mul(%s, %n) : float32[64,1]
  %d = sub(%x, %m) : float32[64,96]
  %q = mul(%d, %d) : float32[64,96]
  %t = reduce_sum(%q) {axes=[1], keepdims=true} : float32[64,1]
  %v = mul(%t, %n) : float32[64,1]
  %w = add(%v, %e) : float32[64,1]
  %r = sqrt(%w) : float32[64,1]
  %z = div(%d, %r) : float32[64,96]
  %y = mul(%z, %g) : float32[64,96]
}"""


def test_a_residual_with_its_layer_normalisation_becomes_one_kernel() -> None:
    plan = explored(LAYER_NORM)
    assert kernels(plan) == [["x", "s", "m", "d", "q", "t", "v", "w", "r", "z", "y"]]
    assert {s.rule for s in plan.groups[0].stitches} == {"explore"}


def test_a_kernel_with_two_producers_that_do_not_know_each_other_is_found() -> None:
    plan = explored("""graph @g(%a: float32[64,64], %b: float32[64,64]) -> (%y) {
      %p = tanh(%a) : float32[64,64]
      %q = exp(%b) : float32[64,64]
      %y = add(%p, %q) : float32[64,64]
    }""")
    assert kernels(plan) == [["p", "q", "y"]]


CROSSED = """graph @g(%x: float32[64,64], %y: float32[64,64]) -> (%e, %f) {
  %a = exp(%x) : float32[64,64]
  %b = exp(%y) : float32[64,64]
  %c = reduce_sum(%a) {axes=[0], keepdims=true} : float32[1,64]
  %d = reduce_sum(%b) {axes=[0], keepdims=true} : float32[1,64]
  %e = mul(%a, %d) : float32[64,64]
  %f = mul(%b, %c) : float32[64,64]
}"""


def test_kernels_that_would_wait_for_each_other_are_not_chosen_together() -> None:
    found = space(parse_graph(CROSSED))
    name = {c.owned.copy().pop().name: i for i, c in enumerate(found.atoms)}

    def mask(names: str) -> int:
        return sum(1 << name[n] for n in names)

    for first, second in (("ae", "bf"), ("acf", "bde")):
        assert found.is_convex(mask(first)) and found.is_convex(mask(second))
        assert not found.is_acyclic([mask(first)], mask(second))
    assert found.is_acyclic([mask("ae")], mask("bd")) and found.is_acyclic([mask("ac")], mask("bd"))
    explored(CROSSED)


def test_a_kernel_that_would_wait_for_itself_is_no_pattern() -> None:
    found = space(
        parse_graph("""graph @g(%x: float32[8,8]) -> (%y) {
      %a = exp(%x) : float32[8,8]
      %s = cumulative(%a) {axis=1, exclusive=false, reducer="sum", reverse=false} : float32[8,8]
      %y = add(%a, %s) : float32[8,8]
    }""")
    )
    assert not found.is_convex(0b101) and not found.is_pattern(0b101)


@dataclass(frozen=True)
class DislikesFusion:
    """A model for which every kernel takes as long as the square of its operands."""

    name: str = "dislikes fusion"

    def latency_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        return float(len(kernel.reads) ** 4)


def test_the_latency_model_decides() -> None:
    assert len(explored(LAYER_NORM, Explore(seeded=False, model=DislikesFusion())).groups) > 1


@dataclass(frozen=True)
class KeepsApart:
    """Forbids that one node shares a kernel."""

    node: str
    name: str = "keeps_apart"

    def propose(self, state: Fusion) -> Sequence[Fuse]:
        return ()

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return WhyNot(self.node, self.name, "it stays alone") if self.node in [n.name for n in nodes] else None


def test_what_a_rule_forbids_is_explored_around() -> None:
    assert kernels(explored(LAYER_NORM, rules=[KeepsApart("y")])) == [list("xsmdqtvwrz"), ["y"]]


@dataclass(frozen=True)
class Joins:
    """Wants two nodes together."""

    nodes: tuple[str, ...]
    name: str = "joins"

    def propose(self, state: Fusion) -> Sequence[Fuse]:
        return [Fuse(tuple(n for n in state.nodes if n.name in self.nodes), forced=True)]

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None


def test_kernels_that_other_rules_made_are_kept_and_grow() -> None:
    plan = explored(LAYER_NORM, rules=[Joins(("z", "y"))])
    assert kernels(plan) == [list("xsmdqtvwrzy")]
    assert {s.rule for s in plan.groups[0].stitches if s.producer == "z"} == {"joins"}


def test_the_search_is_repeatable_and_says_when_time_ended_it() -> None:
    assert explored(LAYER_NORM).to_json() == explored(LAYER_NORM).to_json()
    plan = explored(LAYER_NORM, Explore(budget_s=0.0))
    assert [r.rule for r in plan.refusals if r.subject == "g"] == ["explore"]
    assert not [r for r in explored(LAYER_NORM).refusals if r.subject == "g"]


def test_reshapes_between_kernels_are_free() -> None:
    found = space(
        parse_graph("""graph @g(%x: float32[8,8]) -> (%y, %z) {
      %a = exp(%x) : float32[8,8]
      %r = reshape(%a) {shape=[64]} : float32[64]
      %y = cumulative(%r) {axis=0, exclusive=false, reducer="sum", reverse=false} : float32[64]
      %z = reshape(%y) {shape=[8,8]} : float32[8,8]
    }""")
    )
    latency = {c.owned.copy().pop().name: found.latency_us(1 << i) for i, c in enumerate(found.atoms)}
    assert latency["r"] == 0 and latency["z"] > 0 and latency["a"] > 0


def test_the_planner_is_there_for_everybody() -> None:
    assert "explore" in PLANNERS
    graph = parse_graph(LAYER_NORM)
    plan = make_plan(graph, PassContext(options={"planner": "explore"}))
    assert plan.planner == "explore" and len(plan.groups) == 1


# -- against the optimum -----------------------------------------------------------------------------------------------


def all_partitions(found: Space) -> float:
    """The optimum by trying every partition: what `exact` must find."""

    def rest(open_: int, chosen: tuple[int, ...]) -> float:
        if not open_:
            return found.total_us(chosen)
        first = open_ & -open_
        best = float("inf")
        others = [1 << i for i in bits(open_ & ~first)]
        for pick in range(1 << len(others)):
            mask = first | sum(o for i, o in enumerate(others) if pick >> i & 1)
            alone = not mask & (mask - 1)
            if alone or (found.is_connected(mask) and found.is_pattern(mask) and found.is_acyclic(chosen, mask)):
                best = min(best, rest(open_ & ~mask, chosen if alone else (*chosen, mask)))
        return best

    return rest(found.everything, ())


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_solver_finds_what_trying_everything_finds(seed: int) -> None:
    found = space(parse_graph(CROSSED), RandomModel(seed))
    masks, latency_us = exact(found)
    assert latency_us == pytest.approx(all_partitions(found)) == pytest.approx(found.total_us(masks))


def test_the_exact_solver_refuses_large_graphs() -> None:
    chain = "\n".join(f"  %v{i + 1} = neg(%v{i}) : float32[2]" for i in range(21))
    with pytest.raises(TooLargeError, match="21 nodes"):
        exact(space(parse_graph(f"graph @g(%v0: float32[2]) -> (%v21) {{\n{chain}\n}}")))


def test_on_random_graphs_the_search_is_within_two_percent_of_the_optimum() -> None:
    gaps: list[float] = []

    @settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(graphs(max_nodes=8))
    def measure(graph: Graph) -> None:
        for device in (CpuDevice(cores=2), CpuDevice(cores=2, launch_us=0.0)):
            found = space(graph, device=device)
            optimum_us = exact(found)[1]
            search_us = ALONE.search(found).predicted_us
            assert search_us >= optimum_us * (1 - 1e-9)
            gaps.append(search_us / optimum_us - 1 if optimum_us else 0.0)

    measure()
    assert len(gaps) >= 30 and sum(gaps) / len(gaps) < 0.02


@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=10))
def test_explored_plans_of_random_graphs_are_legal_and_right_whatever_the_model_says(graph: Graph) -> None:
    for explore in (Explore(), Explore(k=2, beam=1, model=RandomModel(7))):
        plan = make_plan(graph, PassContext(options={"planner": "none"}, rules=(explore,)))
        check_plan(plan, graph)
        inputs = feeds(graph)
        assert_close(evaluate(graph, inputs), simulate(plan, graph, inputs))
