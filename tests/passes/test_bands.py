"""Row statistics after a GEMM in its launch: what is legal, what is predicted to pay, and what the plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.passes.test_stages import Wanted
from tests.passes.test_stages import planned as planned_stages
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.constants import GPU_ROW_US
from tilestitch.cost_model.devices import find_device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import latency_us
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, WhyNot, check_plan, explain_plan, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.fusion.rules.combining import Bands, GlobalStitching
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.schedules import BandSchedule, RowSchedule
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name

SOFTMAX = """
  %m = reduce_max(%p) {axes=[1], keepdims=true} : float32[M,1]
  %d = sub(%p, %m) : float32[M,N]
  %e = exp(%d) : float32[M,N]
  %s = reduce_sum(%e) {axes=[1], keepdims=true} : float32[M,1]
  %y = div(%e, %s) : float32[M,N]"""
TWICE = """graph @twice(%x: float32[64,96]) -> (%y) {
  %s = reduce_sum(%x) {axes=[1], keepdims=true} : float32[64,1]
  %d = mul(%x, %s) : float32[64,96]
  %y = reduce_sum(%d) {axes=[0], keepdims=true} : float32[1,96]
}"""
GEMM = "\n  %p = matmul(%x, %w) : float32[M,N]"


def graph_of(body: str, results: str = "%y", m: int = 256, n: int = 768, k: int = 768, inputs: str = "") -> Graph:
    head = f"graph @g(%x: float32[M,K], %w: float32[K,N]{inputs}) -> ({results}) {{"
    text = f"{head}{body}\n}}"
    for name, size in (("M", m), ("N", n), ("K", k)):
        text = text.replace(f"[{name}", f"[{size}").replace(f",{name}", f",{size}")
    return parse_graph(text)


def planned(graph: Graph, *rules: Any, target: str = "cuda") -> StitchPlan:
    plan = make_plan(graph, PassContext(TargetInfo(target, 2), {"planner": "stitch"}, rules=rules))
    check_plan(plan, graph)
    return plan


def refusals(plan: StitchPlan, rule: str) -> list[WhyNot]:
    return [r for r in plan.refusals if r.rule == rule]


def test_softmax_after_a_gemm_becomes_one_launch_that_the_plan_shows() -> None:
    graph = graph_of(GEMM + SOFTMAX)
    plan = planned(graph)
    (group,) = plan.groups
    assert group.kind is GroupKind.STITCHED and group.tie == "band"
    assert [part.kind for part in group.parts] == [GroupKind.CONTRACTION, GroupKind.ROWWISE]
    assert group.outputs == ("y",), "nothing else reads the GEMM"
    (kernel,) = explain_plan(graph, plan)["kernels"]
    bands = [s for s in kernel["stitches"] if s["scheme"] == "band"]
    assert [(s["producer"], s["rule"]) for s in bands] == [(bands[0]["producer"], "bands")] * len(bands)
    assert StitchPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(("m", "n"), [(256, 4096), (4096, 2048), (64, 20000)])
def test_one_row_of_a_block_may_have_several_warps(m: int, n: int) -> None:
    """Long rows are shared by all threads of a block; two such rows would meet in its shared memory."""
    plan = planned(graph_of(GEMM + SOFTMAX, m=m, n=n, k=64), Bands(forced=True))
    for group in plan.groups:
        for part in group.parts:
            if isinstance(part.schedule, RowSchedule):
                assert part.schedule.team <= 32 or part.schedule.rows == 1


def test_the_gemm_is_stored_for_others_too() -> None:
    (group,) = planned(graph_of(GEMM + SOFTMAX, "%y, %p")).groups
    assert group.tie == "band" and set(group.outputs) == {"p", "y"}


def test_reshapes_between_keep_rows_where_they_are() -> None:
    body = (
        GEMM
        + """
  %q = reshape(%p) {shape=[2, 128, 12, 64]} : float32[2,128,12,64]
  %s = reduce_sum(%q) {axes=[3], keepdims=true} : float32[2,128,12,1]
  %y = div(%q, %s) : float32[2,128,12,64]"""
    )
    (group,) = planned(graph_of(body), Bands(forced=True)).groups
    assert group.tie == "band"


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        # Statistics of columns.
        ("""
  %s = reduce_sum(%p) {axes=[0], keepdims=true} : float32[1,N]
  %y = div(%p, %s) : float32[M,N]""", "legality.band_rows"),
        # Rows that hold several of the GEMM's.
        ("""
  %q = reshape(%p) {shape=[128, 1536]} : float32[128,1536]
  %s = reduce_sum(%q) {axes=[1], keepdims=true} : float32[128,1]
  %y = div(%q, %s) : float32[128,1536]""", "legality.band_rows"),
        # Stored the other way round.
        ("""
  %q = transpose(%p) {perm=[1, 0]} : float32[N,M]
  %s = reduce_sum(%q) {axes=[1], keepdims=true} : float32[N,1]
  %y = div(%q, %s) : float32[N,M]""", "legality.band_"),
        # A row looks at another row of the GEMM.
        ("""
  %q = slice(%p) {sizes=[128, 768], starts=[0, 0], steps=[1, 1]} : float32[128,N]
  %r = concat(%q, %q) {axis=0} : float32[M,N]
  %t = reduce_sum(%r) {axes=[1], keepdims=true} : float32[M,1]
  %y = mul(%p, %t) : float32[M,N]""", "legality.band_index"),
    ],
    ids=["columns", "longer rows", "transposed", "other rows"],
)  # fmt: skip
def test_rows_must_be_the_gemms_own(body: str, rule: str) -> None:
    plan = planned(graph_of(GEMM + body), Bands(forced=True))
    assert not any(g.tie == "band" for g in plan.groups)
    assert any(r.rule.startswith(rule) for r in plan.refusals), plan.refusals


def test_a_gemm_and_its_reader_with_a_kernel_between_stay_apart() -> None:
    body = (
        GEMM
        + """
  %c = reduce_sum(%p) {axes=[0], keepdims=true} : float32[1,N]
  %q = mul(%p, %c) : float32[M,N]
  %s = reduce_sum(%q) {axes=[1], keepdims=true} : float32[M,1]
  %y = div(%q, %s) : float32[M,N]"""
    )
    plan = planned(graph_of(body), Bands(forced=True))
    assert not any(g.tie == "band" for g in plan.groups)


def test_a_cpu_has_no_bands() -> None:
    _, plan = planned_stages(
        str(graph_of(GEMM + SOFTMAX)), "cpu", Wanted((("p",), ("y",)), tie="band"), planner="stitch"
    )
    assert not any(g.stages for g in plan.groups)
    (refusal,) = refusals(plan, "legality.global_target")
    assert "on a CPU" in refusal.reason


def test_few_rows_are_left_to_the_kernel_for_them() -> None:
    plan = planned(graph_of(GEMM + SOFTMAX, m=4))
    assert len(plan.groups) == 2
    (refusal,) = refusals(plan, "bands")
    assert refusal.numbers == {"rows": 4, "columns": 768}


def test_a_tail_that_takes_longer_than_a_launch_is_refused_with_microseconds() -> None:
    """Few tiles with many rows, which so many columns share: the last block of a band has eight rows for a team."""
    plan = planned(graph_of(GEMM + SOFTMAX, m=1024, n=2048, k=2048))
    assert len(plan.groups) == 2
    (refusal,) = refusals(plan, "bands")
    assert refusal.numbers["saved_us"] < 0 and refusal.numbers["tail_rows"] > 1


def test_only_a_gemm_and_rows_are_tied_by_bands() -> None:
    graph, plan = planned_stages(TWICE, "cuda", GlobalStitching(forced=True), planner="stitch")
    (group,) = plan.groups
    tied = replace(group, tie="band")
    with pytest.raises(PlanError, match="not a contraction and rows"):
        check_plan(replace(plan, groups=tuple(tied if g is group else g for g in plan.groups)), graph)
    with pytest.raises(PlanError, match="tied by 'rope'"):
        replace(group, tie="rope")
    with pytest.raises(PlanError, match="takes two stages of one part each"):
        replace(group, tie="band", stages=(group.parts,))


def test_what_a_band_costs() -> None:
    """No barrier of the grid; the rows that one team computes, and what the GEMM has stored, from the cache."""
    graph = graph_of(GEMM + SOFTMAX)
    (group,) = planned(graph).groups
    nodes, target = nodes_by_name(graph), TargetInfo("cuda", 2, "H100")
    gemm, after = (group_facts(nodes, part, target) for part in group.parts)
    whole = group_facts(nodes, group, target)
    (launch,) = whole.sequence
    first, last = launch.parts
    assert last.tail is not None and (last.tail.rows, last.tail.barriers) == (1, after.barriers)
    assert (launch.tasks, launch.grid_barriers) == (gemm.tasks, 0)
    assert whole.footprint_bytes == gemm.footprint_bytes + 256 * 768 * 4, "only the softmax is new"
    model, gpu = AnalyticalModel(), find_device("H100")
    longer = KernelFacts((replace(launch, stages=((first,), (replace(last, tail=replace(last.tail, rows=8)),))),))
    assert latency_us(model, longer, gpu) > latency_us(model, whole, gpu) + 7 * GPU_ROW_US


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_tail_has_the_rows_that_its_schedule_shares(dtype: str, architecture: str) -> None:
    text = str(graph_of(GEMM + SOFTMAX)).replace("float32", dtype)
    graph = parse_graph(text.replace("(%x, %w) :", f'(%x, %w) {{out_dtype="{dtype}"}} :'))
    device = {"sm_80": "A100", "sm_90a": "H100"}[architecture]
    target = TargetInfo("cuda", 2, device, (architecture,))
    (group,) = make_plan(graph, PassContext(target)).groups
    rows = group.parts[1].schedule
    assert isinstance(group.schedule, BandSchedule) and isinstance(rows, RowSchedule)
    tail = group_facts(nodes_by_name(graph), group, target).parts[-1].tail
    assert tail is not None
    assert (tail.blocks, tail.rows) == (
        -(-256 // group.schedule.share_rows),
        -(-group.schedule.share_rows // rows.rows),
    )
