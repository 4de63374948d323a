"""On CPUs only what is evaluated element by element counts as that: what moves elements along the last dimension."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.fusion.rules.shuffled import Shuffled
from tilestitch.passes.plan.cpu.schedules import CpuGemmSchedule
from tilestitch.passes.schedule.cpu.scalars import scalar_steps
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name

TARGET = TargetInfo("cpu", 1, isa="avx512")
MOVED = {
    "concat(%x, %x) {axis = 1} : float32[6,16]": 2,
    "concat(%x, %x, %x) {axis = 1} : float32[6,24]": 3,
    "concat(%x, %x) {axis = 0} : float32[12,8]": 0,
    "pad(%x) {before = [0, 1], after = [0, 0], mode = \"constant\"} : float32[6,9]": 1,
    "pad(%x) {before = [1, 0], after = [2, 0], mode = \"constant\"} : float32[9,8]": 0,
    "gather(%x, %i) {axis = 1} : float32[6,3]": 1,
    "gather(%x, %i) {axis = 0} : float32[3,8]": 0,
    "gather_elements(%x, %e) {axis = 0} : float32[2,8]": 2,
    "gather_nd(%x, %p) {batch_dims = 0} : float32[4]": 2,
    "gather_nd(%x, %r) {batch_dims = 0} : float32[4,8]": 0,
    "neg(%x) : float32[6,8]": 0,
}  # fmt: skip


def graph(lines: str, inputs: str = "%x: float32[6,8]") -> Graph:
    return parse_graph(f"graph @g({inputs}) -> (%y) {{\n{lines}\n}}")


@pytest.mark.parametrize("moved", MOVED)
def test_steps_of_an_element(moved: str) -> None:
    inputs = "%x: float32[6,8], %i: int64[3], %e: int64[2,8], %p: int64[4,2], %r: int64[4,1]"
    (node,) = graph(f"  %y = {moved}", inputs).nodes
    assert scalar_steps(node) == MOVED[moved]


def fused(x: str, prologue: str) -> tuple[int, float, float]:
    """Scalar steps of a GEMM with what comes before it in one kernel, and its prediction over that of kernels apart."""
    made = graph(f"{prologue}\n  %y = matmul(%v, %w) : float32[256,64]", f"%x: {x}, %w: float32[256,64]")
    context = PassContext(TARGET, rules=(Shuffled(1, 1.0, forced=True),))
    device, totals, steps = device_of(TARGET), [], 0
    for plan in (make_plan(made, context), make_plan(made, PassContext(TARGET, {"planner": "none"}))):
        facts = [group_facts(nodes_by_name(made), group, TARGET, context.cost_model) for group in plan.groups]
        totals.append(sum(one.latency_us for one in AnalyticalModel().predict(facts, device)))
        steps = steps or sum(kernel.operations("scalar") for kernel in facts)
    assert len(make_plan(made, context).groups) == 1
    return steps, *totals


def test_what_comes_before_a_gemm_in_vectors_costs_hardly_more_than_apart() -> None:
    prologue = "  %c = neg(%x) : float32[128,256]\n  %v = concat(%c, %x) {axis = 0} : float32[256,256]"
    steps, together_us, apart_us = fused("float32[128,256]", prologue)
    assert steps == 0 and together_us < 1.2 * apart_us


def test_operands_of_a_concat_before_a_gemm_are_told_apart_one_by_one() -> None:
    steps, together_us, apart_us = fused("float32[256,128]", "  %v = concat(%x, %x) {axis = 1} : float32[256,256]")
    assert steps == 2 * 256 * 256 and together_us > apart_us


def test_a_gemm_that_copies_no_rows_computes_them_one_by_one_in_each_tile() -> None:
    made = graph("  %v = exp(%x) : float32[16,64]\n  %y = matmul(%v, %w) : float32[16,160]",
                 "%x: float32[16,64], %w: float32[64,160]")  # fmt: skip
    context = PassContext(TARGET, rules=(Shuffled(1, 1.0, forced=True),))
    (group,) = make_plan(made, context).groups
    assert isinstance(group.schedule, CpuGemmSchedule) and group.schedule.stage_left
    steps = []
    for schedule in (group.schedule, replace(group.schedule, stage_left=False)):
        kernel = group_facts(nodes_by_name(made), replace(group, schedule=schedule), TARGET, context.cost_model)
        steps.append(kernel.operations("scalar"))
    panels = -(-160 // (group.schedule.vectors * group.schedule.lanes))
    assert steps == [0, 16 * 64 * panels * 16]
