"""Stitched groups written by hand: later stages read no indices that are checked before the launch; CPUs have one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, PlanError, StitchPlan, TargetInfo, check_plan, make_plan
from tilestitch.passes.plan import Group, GroupKind, Segment
from tilestitch.passes.schedule.kernels import schedule_group
from tilestitch.passes.schedule.memory import WINDOW, plan_buffers

A100 = TargetInfo("cuda", 1, "A100", ("sm_80",), 108)
ROWS = """
  %a = add(%p, %g) : float32[256,64]
  %r = reduce_sum(%a) {axes=[1], keepdims=true} : float32[256,1]
  %y = div(%a, %r) : float32[256,64]
}"""
GEMM = "%p = matmul(%x, %w) : float32[256,64]"
SMOOTH = "%p = exp(%x) : float32[256,64]"
GATHERED = "%g = gather(%t, %i) {axis=0} : float32[256,64]"
PLAIN = "%g = neg(%u) : float32[256,64]"
INPUTS = "%x: float32[256,64], %w: float32[64,64], %t: float32[9,64], %u: float32[256,64], %i: int64[256]"


def stitched(first: str, second: str, tie: str, target: TargetInfo = A100) -> tuple[StitchPlan, Graph]:
    """A plan of one group: what makes `p`, then the rows that read it and `g`."""
    graph = parse_graph(f"graph @g({INPUTS}) -> (%y) {{\n  {first}\n  {second}{ROWS}")
    reads = graph.node("g").inputs
    operands = tuple(v.name for v in graph.node("p").inputs)
    kind = GroupKind.CONTRACTION if first is GEMM else GroupKind.INJECTIVE
    made = Group("p", kind, ("p",), "p" if first is GEMM else None, operands, (), ("p",))
    others = tuple(v.name for v in reads)
    rows = Group("rows", GroupKind.ROWWISE, ("g", "a", "r", "y"), "r", (*others, "p"), (), ("y",))
    both = Group(
        "both", GroupKind.STITCHED, ("p", "g", "a", "r", "y"), None, (*operands, *others), (), ("y",),
        stages=((made,), (rows,)), tie=tie,
    )  # fmt: skip
    nodes = {node.name: node for node in graph.nodes}
    both = schedule_group(nodes, both, target, AnalyticalModel())
    plan = make_plan(graph, PassContext(target, {"planner": "none"}))
    segments = (Segment(True, ("both",)),)
    buffers = plan_buffers(graph, (both,), (), segments, {}, {}, window=WINDOW if target.is_gpu else 0)
    return replace(plan, groups=(both,), segments=segments, buffers=buffers, launches=None, edges=None), graph


@pytest.mark.parametrize(("first", "tie"), [(GEMM, "band"), (SMOOTH, "barrier")])
def test_a_later_stage_does_not_gather_by_indices_that_are_checked_before_the_launch(first: str, tie: str) -> None:
    plan, graph = stitched(first, PLAIN, tie)
    check_plan(plan, graph, A100)
    plan, graph = stitched(first, GATHERED, tie)
    with pytest.raises(PlanError, match="rows gathers by indices that are checked before the launch"):
        check_plan(plan, graph, A100)


def test_a_cpu_has_no_kernel_of_several_stages() -> None:
    cpu = TargetInfo("cpu", 2)
    plan, graph = stitched(SMOOTH, PLAIN, "barrier", cpu)
    with pytest.raises(PlanError, match="group both has several stages; on a CPU each of them is a launch"):
        check_plan(plan, graph, cpu)
