"""GEMMs of 8-bit integers: the instructions that CPUs get, what is read in place, and what plans may say of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.codegen.kernel_harness import cpu_group, run_launches
from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import CpuTarget, parse_target
from tilestitch.codegen.cpu.toolchain.build import _codegen, lower
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir import Graph, TensorType, reference
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.cpu.schedules import CpuDotConvSchedule, CpuDotGemmSchedule, DotSchedule
from tilestitch.passes.planner import check_plan

VNNI, PAIRS = TargetInfo(isa="avx512", dot="vpdpbusd"), TargetInfo(isa="avx2", dot="vpmaddwd")
DOT = CpuDotGemmSchedule(6, 2, 16, 2, 1, 10)


def gemm(m: int = 14, n: int = 50, k: int = 40, left: str = "uint8", trans_a: bool = False) -> Graph:
    graph = Graph("gemm")
    x = graph.add_input("x", TensorType(left, (k, m) if trans_a else (m, k)))
    w = np.random.default_rng(k).integers(-128, 128, (k, n)).astype(np.int8)
    attrs = {"trans_a": True} if trans_a else {}
    graph.outputs = [graph.emit("matmul", x, graph.constant(w), out_dtype="int32", **attrs)]
    return graph


def planned(graph: Graph, target: TargetInfo = VNNI) -> StitchPlan:
    return make_plan(graph, PassContext(target))


def launch_of(graph: Graph, schedule: DotSchedule) -> KernelLaunch:
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=schedule))
    return launch


def assembly(launch: KernelLaunch, cpu: CpuTarget) -> str:
    return str(_codegen(lower(launch.func, "kernel", cpu), cpu).inspect_source("asm"))


@pytest.mark.parametrize(
    ("name", "dot", "instruction"),
    [
        ("cpu:znver4", "vpdpbusd", r"vpdpbusd\s.*zmm"),
        ("cpu:sapphirerapids", "vpdpbusd", r"vpdpbusd\s.*zmm"),
        ("cpu:alderlake", "vpdpbusd", r"vpdpbusd\s.*ymm"),
        ("cpu:x86-64-v4", "vpmaddwd", r"vpmaddwd\s.*zmm"),
        ("cpu:x86-64-v3", "vpmaddwd", r"vpmaddwd\s.*ymm"),
        ("cpu:aarch64-linux-gnu/neoverse-v2", "usdot", r"usdot\s+v\d+\.4s, v\d+\.16b, v\d+\."),
        ("cpu:aarch64-linux-gnu/neoverse-n1", "sdot", r"\bsdot\s+v\d+\.4s, v\d+\.16b, v\d+\."),
    ],
)
def test_the_best_instruction_of_a_cpu(name: str, dot: str, instruction: str) -> None:
    """None of them saturates: of two products of bytes, the sum of pairs in 16 bits would."""
    cpu = parse_target(name)
    assert cpu.dot == dot
    graph = gemm(left="int8" if dot == "sdot" else "uint8")
    (group,) = planned(graph, TargetInfo(isa=cpu.isa.name, dot=dot)).groups
    (launch,) = lower_group(graph, group)
    text = assembly(launch, cpu)
    assert re.search(instruction, text)
    assert "vpmaddubsw" not in text and "vpdpbusds" not in text


@pytest.mark.parametrize("name", ["cpu:x86-64", "cpu:aarch64-linux-gnu/cortex-a72"])
def test_other_cpus_have_none(name: str) -> None:
    assert parse_target(name).dot == ""


def test_rows_of_whole_groups_are_read_where_they_lie() -> None:
    def staged(graph: Graph, target: TargetInfo = VNNI) -> bool:
        schedule = planned(graph, target).groups[0].schedule
        assert isinstance(schedule, CpuDotGemmSchedule)
        return schedule.stage_left

    assert not staged(gemm(k=40))
    assert staged(gemm(k=42)) and staged(gemm(trans_a=True)) and staged(gemm(k=40), PAIRS)


@pytest.mark.parametrize(
    ("changes", "tasks", "scratch_bytes"),
    [
        ({}, 4, 0),  # 3 tiles of rows in blocks of 2, by 2 panels of 32 columns
        ({"rows": 3}, 6, 0),
        ({"vectors": 1, "block_tiles": 1}, 12, 0),
        ({"lanes": 8, "block_panels": 2}, 4, 0),
        ({"lanes": 4, "vectors": 3, "block_tiles": 9}, 5, 0),
        ({"k_block": 3}, 4, 10 * 32 * 4),  # sums of 2 tiles of 5 rows wait
        ({"stage_left": True}, 4, 10 * 64),
        ({"stage_left": True, "dot": "vpmaddwd", "k_block": 20}, 4, 10 * 64 * 3),  # lines, an odd number
        ({"spill": True, "rows_outer": True}, 4, 5 * 32 * 4),
    ],
)
def test_tiles_are_those_of_the_plan(changes: dict[str, Any], tasks: int, scratch_bytes: int) -> None:
    graph = gemm()
    launch = launch_of(graph, replace(DOT, **changes))
    x = np.random.default_rng(1).integers(0, 256, (14, 40)).astype(np.uint8)
    w = graph.nodes[0].inputs[1]
    assert w.data is not None
    (y,) = run_launches([launch], {"x": x, w.name: w.data}, graph.outputs).values()
    np.testing.assert_array_equal(y, x.astype(np.int32) @ w.data.astype(np.int32))
    assert launch.tasks == tasks and launch.scratch_bytes == scratch_bytes


CONV = CpuDotConvSchedule(1, 5, 2, 16, 2, 1)


def conv(channels: int = 8, padding: int = 1) -> Graph:
    graph = Graph("conv")
    x = graph.add_input("x", TensorType("uint8", (2, 7, 9, channels)))
    w = np.random.default_rng(channels).integers(-128, 128, (3, 3, channels, 40)).astype(np.int8)
    pads = (padding, padding)
    attrs = {"strides": (1, 1), "before": pads, "after": pads, "dilations": (1, 1), "groups": 1, "layout": "NXC"}
    graph.outputs = [graph.emit("conv", x, graph.constant(w), out_dtype="int32", **attrs)]
    return graph


@pytest.mark.parametrize(
    ("channels", "changes", "scratch_bytes"),
    [
        (8, {}, 0),
        (8, {"rows": 3, "columns": 3, "rows_outer": True}, 0),
        (8, {"lanes": 8, "vectors": 3, "spill": True}, 5 * 24 * 4),
        (8, {"stage": True}, 4 * 11 * 8),
        (8, {"stage": True, "dot": "vpmaddwd"}, 4 * 11 * 8 * 2),
        (7, {"stage": True}, 4 * 11 * 8),  # room for whole groups
        (3, {"stage": True, "dot": "vpmaddwd"}, 2 * (4 * 11 * 3 + 2)),  # pixels one right after the other
        (3, {"stage": True}, 4 * 11 * 3 + 4),
        (1, {"stage": True}, 4 * 11 + 4),
        (5, {"stage": True, "rows_outer": True, "rows": 2, "columns": 4}, 6 * 11 * 5 + 4),
    ],
)
def test_convolutions_are_those_of_the_plan(channels: int, changes: dict[str, Any], scratch_bytes: int) -> None:
    graph = conv(channels)
    launch = launch_of(graph, replace(CONV, **changes))
    x = np.random.default_rng(1).integers(0, 256, (2, 7, 9, channels)).astype(np.uint8)
    w = graph.nodes[0].inputs[1]
    assert w.data is not None
    (y,) = run_launches([launch], {"x": x, w.name: w.data}, graph.outputs).values()
    (expected,) = reference("conv")([x, w.data], graph.nodes[0].attrs)
    np.testing.assert_array_equal(y, expected)
    assert launch.scratch_bytes == -(-scratch_bytes // 64) * 64


@pytest.mark.parametrize(
    ("graph", "schedule", "reason"),
    [
        (gemm(), replace(DOT, dot="fmul"), "no instruction 'fmul'"),
        (gemm(), replace(DOT, lanes=32), "has 4, 8, 16 sums, not 32"),
        (gemm(left="int8"), replace(DOT, stage_left=True), "multiplies uint8 by constant int8"),
        (gemm(k=42), DOT, "whole groups of 4"),
        (gemm(trans_a=True), DOT, "whole groups of 4"),
        (gemm(), replace(DOT, dot="vpmaddwd"), "whole groups of 2"),
        (gemm(), replace(DOT, widen_right=True), "none to widen"),
        (gemm(), replace(DOT, k_block=0), "0 steps of the reduction"),
        (conv(), replace(CONV, dot="fmul"), "no instruction 'fmul'"),
        (conv(7), CONV, "whole groups of 4"),
        (conv(), replace(CONV, dot="vpmaddwd"), "whole groups of 2"),
        (conv(), replace(CONV, lanes=2), "has 4, 8, 16 sums, not 2"),
    ],
)
def test_what_cannot_be_emitted_is_refused(graph: Graph, schedule: DotSchedule, reason: str) -> None:
    with pytest.raises(KernelError, match=f"{reason}.*repair the plan or write it again"):
        launch_of(graph, schedule)


def test_plans_name_the_instruction_that_they_need() -> None:
    graph = gemm()
    plan = planned(graph)
    assert StitchPlan.from_json(plan.to_json()) == plan and plan.target.dot == "vpdpbusd"
    check_plan(plan, graph, VNNI)
    with pytest.raises(PlanError, match=r"kernels need the instruction vpdpbusd; cpu .avx512. has none such"):
        check_plan(plan, graph, TargetInfo(isa="avx512"))
    hidden = replace(plan, target=TargetInfo(isa="avx512"))
    with pytest.raises(PlanError, match=r"needs the instruction vpdpbusd, which cpu .avx512. lacks"):
        check_plan(hidden, graph, VNNI)


def test_plans_of_floats_name_none() -> None:
    graph = Graph("floats")
    x = graph.add_input("x", TensorType("float32", (4, 8)))
    graph.outputs = [graph.emit("matmul", x, graph.constant(np.ones((8, 8), np.float32)))]
    plan = planned(graph)
    assert plan.target == TargetInfo(isa="avx512") and "dot" not in plan.target.to_json()
    check_plan(plan, graph, VNNI)
