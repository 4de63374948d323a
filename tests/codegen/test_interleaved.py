"""Convolutions of integers whose epilogues run among the steps of the next register tile."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.codegen.kernel_harness import cpu_group, run_launches
from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.backend import CpuBackend
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import parse_target
from tilestitch.codegen.cpu.toolchain.build import _codegen, lower
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.sizes import Symbol, size_of
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.plan.cpu.conv import ConvPlan
from tilestitch.passes.plan.cpu.images import ConvShape
from tilestitch.passes.plan.cpu.schedules import CpuConvSchedule, CpuDotConvSchedule
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.schedule.cpu.conv import choose_conv
from tilestitch.passes.schedule.cpu.facts import cpu_facts
from tilestitch.passes.schedule.cpu.open_images import open_conv

VNNI = TargetInfo(isa="avx512", dot="vpdpbusd")
SCHEDULE = CpuDotConvSchedule(1, 3, 2, 16, 2, 1, stage=True, spill=True, interleave=True)


def conv(
    channels: int, out: int, kernel: int = 1, size: tuple[int, int, int] = (2, 5, 7), groups: int = 1, stride: int = 1
) -> Graph:
    """A convolution, rounded to uint8, to which a residual was added."""
    graph = Graph("conv")
    x = graph.add_input("x", TensorType("uint8", (*size, channels)))
    random = np.random.default_rng(channels)
    w = random.integers(-128, 128, (kernel, kernel, channels // groups, out)).astype(np.int8)
    pads = (kernel // 2, kernel // 2)
    attrs = {"strides": (stride, stride), "before": pads, "after": pads, "dilations": (1, 1)}
    y = graph.emit("conv", x, graph.constant(w), out_dtype="int32", groups=groups, layout="NXC", **attrs)
    bias = graph.constant(random.integers(-5000, 5000, (out,)).astype(np.int32))
    scale = graph.constant(np.float32(60 / (11000 * np.sqrt(channels // groups) * kernel)))
    other = graph.add_input("other", TensorType("uint8", y.shape))
    total = graph.emit("mul", graph.emit("cast", graph.emit("add", y, bias), to="float32"), scale)
    total = graph.emit("round", graph.emit("add", total, graph.emit("cast", other, to="float32")))
    low, high = (graph.constant(np.float32(end)) for end in (0, 255))
    kept = graph.emit("minimum", graph.emit("maximum", total, low), high)
    graph.outputs = [graph.emit("cast", kept, to="uint8")]
    return graph


def launch_of(graph: Graph, schedule: CpuConvSchedule) -> KernelLaunch:
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=schedule))
    return launch


def check(graph: Graph, schedule: CpuConvSchedule) -> None:
    random = np.random.default_rng(1)
    feeds = {v.name: random.integers(0, 256, v.shape).astype(np.uint8) for v in graph.inputs}
    constants = {v.name: v.data for node in graph.nodes for v in node.inputs if v.data is not None}
    (y,) = run_launches([launch_of(graph, schedule)], {**feeds, **constants}, graph.outputs).values()
    (expected,) = evaluate(graph, feeds)
    assert np.mean((expected > 0) & (expected < 255)) > 0.1
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ({}, {}),
        ({}, {"stage": False, "rows_outer": True}),
        ({}, {"block_tiles": 5, "block_panels": 2}),  # tasks of several tiles and panels
        ({}, {"block_tiles": 5, "block_panels": 2, "rows_outer": True}),
        ({}, {"stage": False, "prefetch_next": True, "block_tiles": 3, "block_panels": 2}),
        ({"channels": 56}, {"rows": 2, "columns": 7, "vectors": 1, "block_tiles": 3}),  # tiles of two rows, and of one
        ({}, {"columns": 1}),
        ({"channels": 6}, {"columns": 2, "stage": True}),  # as many steps as pixels
        ({"kernel": 3, "channels": 3}, {"columns": 4, "block_tiles": 3}),  # steps go over the ends of pixels
        ({"kernel": 3, "channels": 20}, {"columns": 4, "block_tiles": 3, "block_panels": 2}),
        ({"kernel": 3, "stride": 2}, {}),
        ({"channels": 56, "groups": 2}, {"vectors": 1, "stage": False, "block_tiles": 2}),
        ({"groups": 2}, {"lanes": 8, "dot": "vpmaddwd"}),
        ({"size": (1, 1, 1)}, {}),
        ({"size": (3, 1, 11)}, {"columns": 4}),
    ],
)
def test_results_are_those_of_the_graph(shape: dict[str, Any], changes: dict[str, Any]) -> None:
    check(conv(**{"channels": 28, "out": 64, **shape}), replace(SCHEDULE, **changes))


@pytest.mark.parametrize(
    ("shape", "changes", "reason"),
    [
        ({}, {"spill": False}, "results are spilled"),
        ({"kernel": 3, "channels": 16}, {"stage": False}, "leaves no tap out"),
        ({"channels": 8}, {}, "2 steps of the reduction do not finish a tile of 3 pixels"),
        ({"out": 48}, {}, "48 channels are no whole panels of 32"),
        ({}, {"rows": 2}, "have all columns"),
    ],
)
def test_what_cannot_be_interleaved_is_refused(shape: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        launch_of(conv(**{"channels": 28, "out": 64, **shape}), replace(SCHEDULE, **changes))


def planned(graph: Graph, target: TargetInfo = VNNI) -> CpuDotConvSchedule:
    schedules = [group.schedule for group in make_plan(graph, PassContext(target)).groups]
    (schedule,) = (each for each in schedules if isinstance(each, CpuDotConvSchedule))
    return schedule


def test_where_epilogues_are_interleaved() -> None:
    assert planned(conv(64, 256)).interleave
    assert planned(conv(3, 64, 3)).interleave, "copied with its padding"
    assert not planned(conv(64, 256, 3)).interleave, "leaves taps out"
    assert not planned(conv(64, 40)).interleave, "no whole panels"
    assert not planned(conv(64, 256), TargetInfo(isa="avx2", dot="vpmaddwd")).interleave, "few registers"
    assert not planned(conv(64, 256), TargetInfo(isa="avx512", dot="vpmaddwd")).interleave, "pairs take no less time"


@pytest.mark.parametrize("name, interleaved", [("znver4", True), ("znver5", True), ("emeraldrapids", False)])
def test_epilogues_wait_where_their_ports_multiply(name: str, interleaved: bool) -> None:
    target = CpuBackend(parse_target(f"cpu:{name},-amx-tile"), 1).planned_for(1)
    assert TargetInfo.from_json(target.to_json()) == target
    assert planned(conv(64, 256), target).interleave == interleaved
    assert planned(conv(3, 64, 3), target).interleave == interleaved


def test_sums_stay_in_registers_among_epilogues() -> None:
    graph, cpu = conv(64, 256, size=(1, 56, 56)), parse_target("cpu:znver4")
    launch = launch_of(graph, planned(graph))
    text = str(_codegen(lower(launch.func, "kernel", cpu), cpu).inspect_source("asm"))
    blocks = re.split(r"^(\.LBB\w+):", text, flags=re.MULTILINE)[1:]
    parts = [re.split(rf"\sj\w+\s{label}$", body, flags=re.M) for label, body in zip(blocks[::2], blocks[1::2])]
    multiplying = [body for body, *rest in parts if rest and "vpdpbusd" in body]
    assert any("vcvtdq2ps" in body for body in multiplying), "an epilogue beside multiplications"
    assert all("%rsp" not in body for body in multiplying)


def test_the_model_is_told_that_epilogues_are_interleaved() -> None:
    """Of the same work, an epilogue beside multiplications takes less time."""

    def epilogue_share(schedule: CpuConvSchedule) -> float:
        graph = conv(64, 256)
        group, nodes = replace(cpu_group(graph), schedule=schedule), {node.name: node for node in graph.nodes}
        roles = roles_of(graph.nodes, graph.outputs)
        assert isinstance(roles, Roles)
        facts = cpu_facts(nodes, group, roles, parse_target("cpu:znver4").isa)
        (share,) = {a.share for part in facts.parts for a in part.arithmetic if a.unit == "alu"}
        return share

    schedule = planned(conv(64, 256))
    assert epilogue_share(schedule) > 1 == epilogue_share(replace(schedule, interleave=False))


@pytest.mark.parametrize("open_side", [0, 1])
def test_images_of_open_size_are_not_interleaved(open_side: int) -> None:
    isa, bytes_ = VNNI.core, {"x_dtype": "uint8", "w_dtype": "int8", "acc_dtype": "int32"}
    shape = ConvShape(1, 3, 64, (224, 224), (7, 7), (2, 2), (1, 1), ((3, 3), (3, 3)), **bytes_)
    chosen = choose_conv(shape, isa, 1)
    assert isinstance(chosen, CpuDotConvSchedule) and chosen.interleave
    spatial = [224, 224]
    spatial[open_side] = size_of(Symbol("size", 1, 4000))
    shape = replace(shape, spatial=tuple(spatial))
    schedule = open_conv(shape, chosen, isa, 1)
    assert isinstance(schedule, CpuDotConvSchedule) and not schedule.interleave
    assert not list(ConvPlan.of(shape, schedule).reasons())
