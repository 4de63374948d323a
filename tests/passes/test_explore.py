"""Exploration: what it finds, that it is repeatable and legal, and how far from the optimum it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings

from benchmarks.exact_fusion import TooLargeError, exact
from tests.passes.helpers import assert_close
from tests.passes.simulate import simulate
from tests.priced import Priced
from tests.strategies import feeds, graphs
from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.models import RandomModel
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel, latency_us
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, WhyNot, check_plan, make_plan
from tilestitch.passes.fusion.bitsets import bits
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.planners import PLANNERS, VIEWED
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.fusion.rules.combining import Packing
from tilestitch.passes.fusion.rules.explore import SEEDS, Explore
from tilestitch.passes.fusion.search.space import Space
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name

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
class DislikesFusion(Priced):
    """A model for which every kernel takes as long as the square of its operands."""

    name: str = "dislikes fusion"

    def price_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
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


# -- recomputation -----------------------------------------------------------------------------------------------------

SHARED = """graph @shared(%x: float32[64,128], %y: float32[64,128]) -> (%a, %b) {
  %e = exp(%x) : float32[64,128]
  %t = transpose(%e) {perm=[1,0]} : float32[128,64]
  %a = reduce_sum(%t) {axes=[1], keepdims=false} : float32[128]
  %m = mul(%e, %y) : float32[64,128]
  %b = reduce_max(%m) {axes=[1], keepdims=false} : float32[64]
}"""


@dataclass(frozen=True)
class Prices(Priced):
    """What a launch, a byte and a call of exp cost, in microseconds."""

    launch: float = 0.0
    byte: float = 0.0
    exp: float = 0.0
    name: str = "prices"

    def price_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        return self.launch + self.byte * kernel.footprint_bytes + self.exp * kernel.transcendental


@pytest.mark.parametrize(
    ("model", "again"),
    [
        (Prices(byte=1.0), True),
        (Prices(byte=1.0, exp=1.0), True),
        (Prices(byte=1.0, exp=20.0), False),
        (Prices(launch=5.0, exp=1.0), False),
    ],
)
def test_a_value_is_computed_again_where_that_is_predicted_to_be_faster(model: Prices, again: bool) -> None:
    holders = [g for g in explored(SHARED, Explore(seeded=False, model=model)).groups if "e" in g.nodes]
    assert (len(holders) > 1) == again
    if again:
        stitches = [s for g in holders for s in g.stitches if s.producer == "e"]
        assert {s.scheme for s in stitches} == {"duplicate"} and {s.rule for s in stitches} == {"explore"}


def test_a_value_computed_again_lets_its_kernel_and_a_reader_join() -> None:
    """`f` and `s` differ in their number of elements, so one kernel cannot store both; it need not, if `f` is cheap."""
    plan = explored("""graph @g(%x: float32[7,1], %y: float32[1,1,7], %z: float32[7,33]) -> (%s, %a) {
      %f = floor(%x) : float32[7,1]
      %m = neg(%f) : float32[7,1]
      %s = sub(%y, %m) : float32[1,7,7]
      %a = add(%z, %f) : float32[7,33]
    }""")
    assert sorted(kernels(plan)) == [["f", "a"], ["f", "m", "s"]]


def test_gemms_and_reductions_are_computed_once() -> None:
    found = space(parse_graph(CROSSED))
    names = {next(iter(found.atoms[i].owned)).op for i in bits(found.copyable)}
    assert names == {"exp", "mul"}


# -- against the optimum -----------------------------------------------------------------------------------------------


def all_plans(found: Space) -> float:
    """The optimum by trying every set of stored atoms, cut into kernels in every way: what `exact` must find."""
    inner = list(bits(found.everything & ~found.results))
    best = float("inf")
    for pick in range(1 << len(inner)):
        stored = found.results | sum(1 << i for n, i in enumerate(inner) if pick >> n & 1)
        for parts in cuts(stored):
            kernels = {part: closure(found, part, stored) for part in parts}
            if all(map(found.is_kernel, kernels.values(), kernels)) and is_ordered(found, kernels):
                best = min(best, sum(found.latency_us(mask, part) for part, mask in kernels.items()))
    return best


def cuts(stored: int) -> list[list[int]]:
    """A set cut into parts in every way."""
    if not stored:
        return [[]]
    first = stored & -stored
    rest = cuts(stored ^ first)
    return [[first, *parts] for parts in rest] + [
        [*parts[:n], parts[n] | first, *parts[n + 1 :]] for parts in rest for n in range(len(parts))
    ]


def closure(found: Space, part: int, stored: int) -> int:
    mask = part
    for i in reversed(range(len(found.atoms))):
        if mask >> i & 1:
            mask |= found.before[i] & ~stored
    return mask


def is_ordered(found: Space, kernels: dict[int, int]) -> bool:
    waiting, done = dict(kernels), 0
    while waiting:
        ready = [p for p, m in waiting.items() if not sum(1 << i for i in reads(found, m)) & ~done]
        if not ready:
            return False
        for part in ready:
            done |= part
            del waiting[part]
    for a, b in combinations(kernels, 2):
        once = kernels[a] & kernels[b]
        if once & ~found.copyable or once & (a | b):
            return False
    return True


def reads(found: Space, mask: int) -> set[int]:
    return {p for i in bits(mask) for p in bits(found.before[i]) if not mask >> p & 1}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("text", ["crossed", "shared"])
def test_the_exact_solver_finds_what_trying_everything_finds(text: str, seed: int) -> None:
    found = space(parse_graph({"crossed": CROSSED, "shared": SHARED}[text]), RandomModel(seed))
    kernels, least_us = exact(found)
    assert least_us == pytest.approx(all_plans(found))
    assert least_us == pytest.approx(sum(found.latency_us(*kernel) for kernel in kernels))


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


@dataclass(frozen=True)
class Unbounded(Priced):
    """The analytical model, of which it is not known what no kernel takes less than."""

    name = "unbounded"

    def price_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        return latency_us(AnalyticalModel(), kernel, device)


def test_what_no_kernel_takes_less_than_saves_schedules_and_changes_nothing() -> None:
    asked = {True: 0, False: 0}

    @settings(max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(graphs(max_nodes=10))
    def compare(graph: Graph) -> None:
        found = {}
        for bounded, model in ((True, AnalyticalModel()), (False, Unbounded())):
            here = space(graph, model)
            found[bounded] = Explore().search(here).cover.key
            asked[bounded] += len(here.known_us)
        assert found[True] == found[False]

    compare()
    assert asked[True] < 0.8 * asked[False]


@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=10))
def test_explored_plans_of_random_graphs_are_legal_and_right_whatever_the_model_says(graph: Graph) -> None:
    target = TargetInfo(threads=2)
    for explore in (Explore(), Explore(k=2, beam=1, model=RandomModel(7))):
        plan = make_plan(graph, PassContext(target, {"planner": "none"}, rules=(explore,)))
        check_plan(plan, graph)
        inputs = feeds(graph)
        assert_close(evaluate(graph, inputs), simulate(plan, graph, inputs))
        # Nothing that the search has found is lost on the way; reshapes by themselves are none of its kernels.
        found = explore.search(Space(Fusion(graph, target), explore.model, device_of(target)))
        views = {n.name for n in graph.nodes if n.op == "reshape" and not graph.is_output(n.output)}
        facts = [group_facts(nodes_by_name(graph), g, target) for g in plan.groups if not {*g.nodes} <= views]
        planned_us = sum(latency_us(explore.model, f, device_of(target)) for f in facts)
        assert planned_us == pytest.approx(found.predicted_us)


@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=10))
def test_what_packing_and_views_make_of_a_plan_is_part_of_the_choice(graph: Graph) -> None:
    """No plan is predicted to be slower than what the same later rules make of the default planner's partition."""
    target = TargetInfo(threads=2)

    def predicted_us(rules: Sequence[object]) -> float:
        plan = make_plan(graph, PassContext(target, {"planner": "none"}, rules=rules))
        facts = [group_facts(nodes_by_name(graph), g, target) for g in plan.groups]
        return sum(latency_us(AnalyticalModel(), f, device_of(target)) for f in facts)

    later = (*VIEWED, Packing())
    assert predicted_us((Explore(then=later), *later)) <= predicted_us((*SEEDS, *later)) * (1 + 1e-9)
