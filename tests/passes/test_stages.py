"""Kernels made of kernels: what may be combined, what it is predicted to cost, and what the plan says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from tests.priced import Priced
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.constants import GPU_GRID_BARRIER_US, GPU_LAUNCH_US
from tilestitch.cost_model.devices import find_device
from tilestitch.cost_model.facts import KernelFacts, Part, Traffic, kernel_of
from tilestitch.cost_model.joined import joined_facts
from tilestitch.cost_model.protocol import latency_us
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, WhyNot, check_plan, explain_plan, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.fusion.rules.combining import GlobalStitching, Packing
from tilestitch.passes.fusion.stages import Combine, Kernels
from tilestitch.passes.plan import Group, GroupKind

TWO = """graph @two(%x: float32[64,128], %y: float32[33,77]) -> (%a, %b) {
  %a = reduce_sum(%x) {axes=[1], keepdims=false} : float32[64]
  %b = exp(%y) : float32[33,77]
}"""
CHAIN = """graph @chain(%x: float32[64,96]) -> (%y, %z) {
  %m = reduce_max(%x) {axes=[1], keepdims=true} : float32[64,1]
  %d = sub(%x, %m) : float32[64,96]
  %s = reduce_sum(%d) {axes=[0], keepdims=true} : float32[1,96]
  %y = mul(%d, %s) : float32[64,96]
  %r = reshape(%d) {shape=[6144]} : float32[6144]
  %z = reduce_prod(%r) {axes=[0], keepdims=false} : float32[]
}"""


@dataclass(frozen=True)
class Wanted:
    """Proposes the groups that hold certain nodes."""

    stages: tuple[tuple[str, ...], ...] = ()
    tie: str = "barrier"
    name: ClassVar[str] = "wanted"

    def propose(self, state: Any) -> Iterator[Any]:
        return iter(())

    def forbid(self, state: Any, nodes: Any) -> None:
        return None

    def combine(self, kernels: Kernels) -> Iterator[Combine]:
        by_node = {n: g.name for g in kernels.groups.values() for n in g.nodes}
        yield Combine(tuple(tuple(by_node[n] for n in stage) for stage in self.stages), forced=True, tie=self.tie)


def planned(text: str, target: str, *rules: Any, planner: str = "none") -> tuple[Graph, StitchPlan]:
    graph = parse_graph(text)
    return graph, make_plan(graph, PassContext(TargetInfo(target, 2), {"planner": planner}, rules=rules))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_independent_kernels_are_packed_into_one_launch(target: str) -> None:
    graph, plan = planned(TWO, target, Packing())
    (group,) = plan.groups
    assert group.kind is GroupKind.STITCHED and [len(stage) for stage in group.stages] == [2]
    assert group.schemes == ("packing",)
    assert (group.inputs, set(group.outputs)) == (("x", "y"), {"a", "b"})
    (kernel,) = explain_plan(graph, plan)["kernels"]
    assert [p["kind"] for p in kernel["stages"][0]] == ["rowwise", "injective"]
    assert kernel["stitches"] == [{"producer": "a", "consumer": "b", "scheme": "packing", "rule": "packing"}]


def test_a_chain_of_rows_becomes_stages_that_read_through_memory() -> None:
    graph, plan = planned(CHAIN, "cuda", GlobalStitching(forced=True), planner="injective")
    stitched = [g for g in plan.groups if g.stages]
    assert stitched and any("global" in g.schemes for g in stitched)
    inner = {v for g in stitched for part in g.parts for v in part.outputs} - {v for g in stitched for v in g.outputs}
    assert inner, "what only later stages read is not stored for others"
    assert not inner & {b.value for b in plan.buffers.buffers}
    check_plan(plan, graph)


def test_plans_with_stages_are_read_back_and_checked() -> None:
    graph, plan = planned(CHAIN, "cuda", GlobalStitching(forced=True), planner="injective")
    again = StitchPlan.from_json(plan.to_json())
    assert again == plan
    check_plan(again, graph)
    group = next(g for g in plan.groups if len(g.stages) > 1)
    swapped = replace(group, stages=tuple(reversed(group.stages)))
    with pytest.raises(PlanError, match="before a barrier has made it known"):
        check_plan(replace(plan, groups=tuple(swapped if g is group else g for g in plan.groups)), graph)
    together = replace(group, stages=(group.parts,))
    with pytest.raises(PlanError, match="before a barrier has made it known"):
        check_plan(replace(plan, groups=tuple(together if g is group else g for g in plan.groups)), graph)


@pytest.mark.parametrize(
    ("target", "stages", "rule", "reason"),
    [
        ("cpu", (("m",), ("d",)), "legality.global_target", "on a CPU a barrier in a kernel is what lies between"),
        ("cuda", (("m", "d"),), "legality.stages", "needs .*max.*, which is in no earlier stage"),
        ("cuda", (("m",), ("s",)), "legality.cycle", "lies between them"),
        ("cuda", (("d",), ("m",)), "legality.stages", "in no earlier stage"),
        ("cuda", (("d",), ("z",)), "legality.part", "has few long rows"),
    ],
)  # fmt: skip
def test_refusals_say_why(target: str, stages: tuple[tuple[str, ...], ...], rule: str, reason: str) -> None:
    _, plan = planned(CHAIN, target, Wanted(stages))
    assert not any(g.stages for g in plan.groups)
    assert any(r.rule == rule and re.search(reason, r.reason) for r in plan.refusals), plan.refusals


def gemms(rows: int, depth: int) -> str:
    return f"""graph @g(%x: float32[{rows},{depth}], %w: float32[{depth},9], %v: float32[{depth},9]) -> (%a, %b) {{
      %a = matmul(%x, %w) : float32[{rows},9]
      %b = matmul(%x, %v) : float32[{rows},9]
    }}"""


def test_a_contraction_takes_launches_of_its_own_on_a_gpu_but_not_on_a_cpu() -> None:
    assert len(planned(gemms(9, 16), "cpu", Packing())[1].groups) == 1
    _, plan = planned(gemms(9, 16), "cuda", Wanted((("a", "b"),)))
    assert len(plan.groups) == 2
    assert any("whose kernels take launches of their own" in r.reason for r in plan.refusals)


def test_gemms_of_few_rows_lie_side_by_side_where_shared_memory_is_enough_for_them() -> None:
    assert len(planned(gemms(2, 16), "cuda", Packing())[1].groups) == 1
    _, plan = planned(gemms(8, 600), "cuda", Wanted((("a", "b"),)))
    assert len(plan.groups) == 2
    assert any("keeps 16384 bytes in shared memory, more than 6144" in r.reason for r in plan.refusals)


def test_a_rule_may_forbid_what_another_combines() -> None:
    @dataclass(frozen=True)
    class Never:
        name: ClassVar[str] = "never"

        def propose(self, state: Any) -> Iterator[Any]:
            return iter(())

        def forbid(self, state: Any, nodes: Any) -> Any:
            return WhyNot("", self.name, "not together") if len(nodes) > 1 else None

    _, plan = planned(TWO, "cpu", Packing(), Never())
    assert len(plan.groups) == 2
    assert any(r.rule == "never" for r in plan.refusals)


def test_a_group_has_stages_exactly_if_it_is_stitched() -> None:
    part = Group("p", GroupKind.INJECTIVE, ("n",), None, ("x",), (), ("y",))
    other = replace(part, name="q", nodes=("o",), outputs=("z",))
    whole = Group("g", GroupKind.STITCHED, ("n", "o"), None, ("x",), (), ("y", "z"), stages=((part, other),))
    with pytest.raises(PlanError, match="is stitched and has 0 parts"):
        replace(whole, stages=())
    with pytest.raises(PlanError, match="an empty stage"):
        replace(whole, stages=((part, other), ()))
    with pytest.raises(PlanError, match="two parts of one name"):
        replace(whole, stages=((part, replace(other, name="p")),))
    with pytest.raises(PlanError, match="other nodes than its parts"):
        replace(whole, nodes=("n", "o", "m"))


def facts(tasks: int, **more: Any) -> KernelFacts:
    given = {"reads": (Traffic("x", 40, 40),), "elements": 10, "threads": 256, "registers": 32, **more}
    return kernel_of(Part("injective", "float32", tasks=tasks, **given))


def test_side_by_side_work_adds_up_and_the_neediest_part_sets_the_block() -> None:
    joined = joined_facts([[facts(10), facts(5, registers=64, threads=1024)]])
    assert (joined.tasks, joined.registers, joined.threads, joined.launches) == (15, 64, 1024, 1)
    assert joined.reads == (Traffic("x", 80, 40),), "one tensor is in memory once"
    assert joined.grid_barriers == 0 and [part.threads for part in joined.parts] == [256, 1024]


def test_stages_cost_barriers_of_the_grid() -> None:
    stages = [facts(10), facts(5), facts(7)]
    joined = joined_facts([[stage] for stage in stages])
    assert (joined.tasks, joined.grid_barriers) == (10, 2)
    model, gpu = AnalyticalModel(), find_device("h100")
    apart = sum(latency_us(model, stage, gpu) - GPU_LAUNCH_US for stage in stages)
    assert latency_us(model, joined, gpu) == pytest.approx(apart + GPU_LAUNCH_US + 2 * GPU_GRID_BARRIER_US)


def test_packing_leaves_kernels_apart_whose_blocks_do_not_suit_each_other() -> None:
    """A kernel of small blocks beside one that needs most of a multiprocessor's shared memory: occupancy is lost."""
    model, gpu = AnalyticalModel(), find_device("a100")
    many = facts(20_000, threads=128, reads=(Traffic("big", 1 << 28, 1 << 28),))
    hungry = facts(50, threads=128, shared_bytes=160_000)
    apart = latency_us(model, many, gpu) + latency_us(model, hungry, gpu)
    assert latency_us(model, joined_facts([[many, hungry]]), gpu) > apart


@dataclass(frozen=True)
class Table(Priced):
    """Microseconds by what a kernel writes; whatever is not listed is slow."""

    listed: tuple[tuple[str, float], ...]
    name: str = "table"

    def price_us(self, kernel: KernelFacts, device: Any) -> float:
        return dict(self.listed).get("".join(sorted(t.value for t in kernel.writes)), 100.0)


FIVE = "\n".join([
    f"graph @five({', '.join(f'%{n}0: float32[{i + 3}]' for i, n in enumerate('abcde'))}) -> (%a, %b, %c, %d, %e) {{",
    *(f"  %{n} = exp(%{n}0) : float32[{i + 3}]" for i, n in enumerate("abcde")),
    "}",
])  # fmt: skip


def test_a_packed_kernel_changes_launches_where_a_later_one_suits_it_better() -> None:
    """c joins a and b, as that saves most; once d and e are together, it is with them that it costs nothing."""
    alone = tuple((n, 10.0) for n in "abcde")
    model = Table((*alone, ("ab", 10.0), ("abc", 15.0), ("cd", 17.0), ("ce", 17.0), ("de", 18.0), ("cde", 18.0)))
    _, plan = planned(FIVE, "cpu", Packing(model))
    assert sorted("".join(sorted(g.outputs)) for g in plan.groups) == ["ab", "cde"]


def test_kernels_that_can_meet_no_other_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    facts_of = Kernels.facts
    monkeypatch.setattr(Kernels, "facts", lambda *given: asked.append(given[1].name) or facts_of(*given))
    chain = """graph @chain(%x: float32[8]) -> (%c) {
      %a = exp(%x) : float32[8]
      %b = tanh(%a) : float32[8]
      %c = sqrt(%b) : float32[8]
    }"""
    assert len(planned(chain, "cpu", Packing())[1].groups) == 3 and not asked
    planned(TWO, "cpu", Packing())
    assert asked


def test_packing_makes_no_chain_of_launches_longer() -> None:
    """b and f could each go with a kernel of the other chain; both together would wait for each other."""
    graph = """graph @two(%x: float32[4,8], %y: float32[6,8]) -> (%b, %f) {
      %a = reduce_sum(%x) {axes=[0], keepdims=false} : float32[8]
      %b = cumulative(%a) {axis=0, exclusive=false, reducer="sum", reverse=false} : float32[8]
      %e = reduce_sum(%y) {axes=[0], keepdims=false} : float32[8]
      %f = cumulative(%e) {axis=0, exclusive=false, reducer="sum", reverse=false} : float32[8]
    }"""
    for pairs in (("af", "be"), ("ae", "bf")):
        model = Table((*((n, 10.0) for n in "abef"), *((pair, 1.0) for pair in pairs)))
        parsed, plan = planned(graph, "cpu", Packing(model))
        check_plan(plan, parsed)
        assert len(plan.groups) == (2 if pairs == ("ae", "bf") else 4)
