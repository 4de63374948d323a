"""Weights of which pairs of neighbours are small enough for `vpmaddubsw`, which adds products in 16 bits: what it
multiplies is exact, and all else is left to `vpmaddwd`.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.kernel_harness import run_launches
from tests.codegen.test_dots import assembly
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import host_target, parse_target
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir import Graph, TensorType, reference
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.cpu.dots import largest_pair
from tilestitch.passes.plan.cpu.schedules import CpuDotConvSchedule, CpuDotGemmSchedule
from tilestitch.passes.planner import check_plan

AVX2 = TargetInfo(isa="avx2", dot="vpmaddwd")
here = pytest.mark.skipif(not host_target().has("avx2"), reason="this CPU has no AVX2")


def gemm(w: np.ndarray, rows: int = 5, trans_b: bool = False) -> Graph:
    graph = Graph("gemm")
    x = graph.add_input("x", TensorType("uint8", (rows, w.shape[-2])))
    stored = w.swapaxes(-1, -2).copy() if trans_b else w
    attrs = {"trans_b": True} if trans_b else {}
    graph.outputs = [graph.emit("matmul", x, graph.constant(stored), out_dtype="int32", **attrs)]
    return graph


def conv(w: np.ndarray, groups: int = 1, layout: str = "NXC", padding: int = 0) -> Graph:
    """w: [rows, columns, channels of a group, results]."""
    graph, channels = Graph("conv"), w.shape[2] * groups
    shape = (2, 7, 9, channels) if layout == "NXC" else (2, channels, 7, 9)
    x = graph.add_input("x", TensorType("uint8", shape))
    stored = w if layout == "NXC" else w.transpose(3, 2, 0, 1).copy()
    attrs = {
        "strides": (1, 1), "before": (padding,) * 2, "after": (padding,) * 2, "dilations": (1, 1), "groups": groups,
        "layout": layout,
    }  # fmt: skip
    graph.outputs = [graph.emit("conv", x, graph.constant(stored), out_dtype="int32", **attrs)]
    return graph


def dots(plan: StitchPlan) -> list[str]:
    schedules = [part.schedule for group in plan.groups for part in group.parts or (group,)]
    return [each.dot for each in schedules if isinstance(each, CpuDotGemmSchedule | CpuDotConvSchedule)]


def check_exact(graph: Graph, instruction: str) -> None:
    """On rows or images of 255, of this and 0, of any bytes, and of 0, in turns."""
    (node,) = graph.nodes
    x, w = node.inputs
    plan, random = make_plan(graph, PassContext(AVX2)), np.random.default_rng(0)
    assert dots(plan) == [instruction]
    each = (
        lambda n: np.full(n, 255),
        lambda n: random.choice([0, 255], n),
        lambda n: random.integers(0, 256, n),
        np.zeros,
    )
    data = np.stack([each[i % 4](x.shape[1:]) for i in range(x.shape[0])]).astype(np.uint8)
    launches = lower_group(graph, plan.groups[0])
    (y,) = run_launches(launches, {x.name: data, w.name: w.data}, graph.outputs, parse_target("cpu:x86-64-v3")).values()
    np.testing.assert_array_equal(y, reference(node.op)([data, w.data], node.attrs)[0])


def small(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Weights of 7 bits, half of them the largest and least."""
    random = np.random.default_rng(seed)
    return np.where(
        random.random(shape) < 0.5, random.choice([-64, 64], shape), random.integers(-64, 65, shape)
    ).astype(np.int8)


@pytest.mark.parametrize(
    ("pair", "largest"),
    [((64, 64), 128), ((127, 1), 128), ((-128, 0), 128), ((-128, 127), 128), ((-64, -64), 128), ((0, 127), 127),
     ((127, 2), 129), ((65, 64), 129), ((-128, -1), 129), ((-65, -64), 129), ((127, 127), 254), ((-128, -128), 256)],
)  # fmt: skip
@here
def test_the_worst_pairs(pair: tuple[int, int], largest: int) -> None:
    """In both places of a group of four."""
    w, instruction = np.zeros((12, 33), np.int8), "vpmaddubsw" if largest <= 128 else "vpmaddwd"
    for row, column in ((0, 0), (2, 17), (6, 32)):
        w[row : row + 2, column] = pair
        for graph in (gemm(w), gemm(w, trans_b=True), conv(w[None, None]), conv(w[None, None], layout="NCX")):
            assert largest_pair(graph.nodes[0]) == largest
    for graph in (gemm(w), conv(w[None, None])):
        check_exact(graph, instruction)


def test_only_pairs_that_one_sum_of_16_bits_has() -> None:
    """127 and 127 in the second and third place of a group are not added before 32 bits."""
    w = np.zeros((8, 3), np.int8)
    w[1:3] = 127
    assert largest_pair(gemm(w).nodes[0]) == largest_pair(conv(w[None, None]).nodes[0]) == 127
    assert largest_pair(conv(w[None, :, None][:, :7]).nodes[0]) == 254  # pixels of one channel, copied side by side
    w[:, 1] = [127, -128] * 4
    assert largest_pair(gemm(w).nodes[0]) == 128


@here
@pytest.mark.parametrize(("depth", "rows"), [(1, 5), (2, 1), (3, 23), (4, 5), (5, 1), (64, 23), (131, 7)])
def test_any_depth(depth: int, rows: int) -> None:
    check_exact(gemm(small((depth, 41)), rows), "vpmaddubsw")


@here
def test_a_single_step_is_no_pair() -> None:
    check_exact(gemm(np.array([[-128, 127, 0]], np.int8)), "vpmaddubsw")
    check_exact(conv(np.array([-128, 127, 0], np.int8).reshape(1, 1, 1, 3)), "vpmaddubsw")


@here
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 6, 16])
@pytest.mark.parametrize(("layout", "padding"), [("NXC", 0), ("NXC", 1), ("NCX", 1)])
def test_convolutions(channels: int, layout: str, padding: int) -> None:
    w = small((3, 3, channels, 20))
    check_exact(conv(w, layout=layout, padding=padding), "vpmaddubsw")
    w[1, 2, 0, 7], w[1, 1, -1, 7] = 65, 127  # neighbours if a group has channels of two taps
    instruction = (
        "vpmaddubsw" if channels in (4, 16, 2, 6) and w[1, 2, 1, 7] <= 63 and w[1, 1, -2, 7] <= 1 else "vpmaddwd"
    )
    check_exact(conv(w, layout=layout, padding=padding), instruction)


@here
def test_groups_of_channels() -> None:
    check_exact(conv(small((3, 3, 4, 24)), groups=3), "vpmaddubsw")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("cpu:x86-64-v3", r"vpmaddubsw\s.*ymm"), ("cpu:x86-64-v4", r"vpmaddubsw\s.*zmm"), ("cpu:znver4", "vpdpbusd"),
     ("cpu:alderlake", "vpdpbusd")],
)  # fmt: skip
def test_the_instruction_of_a_cpu(name: str, pattern: str) -> None:
    cpu, graph = parse_target(name), gemm(small((40, 50)))
    (group,) = make_plan(graph, PassContext(TargetInfo(isa=cpu.isa.name, dot=cpu.dot))).groups
    (launch,) = lower_group(graph, group)
    text = assembly(launch, cpu)
    assert re.search(pattern, text) and ("vpmaddubsw" in text) == ("vpmaddubsw" in pattern)


def test_whole_groups_are_read_where_they_lie() -> None:
    def staged(depth: int) -> bool:
        schedule = make_plan(gemm(small((depth, 50))), PassContext(AVX2)).groups[0].schedule
        assert isinstance(schedule, CpuDotGemmSchedule)
        return schedule.stage_left

    assert not staged(40) and staged(42)


@pytest.mark.parametrize("reverse", [False, True])
@here
def test_layers_that_differ_in_weights_alone_differ_in_instructions(reverse: bool) -> None:
    """Schedules of equal kernels are shared, and these differ in nothing else."""
    graph, weights = Graph("layers"), [small((40, 40)), np.full((40, 40), 127, np.int8)]
    inputs = [graph.add_input(name, TensorType("uint8", (6, 40))) for name in "xy"]
    graph.outputs = [
        graph.emit("matmul", x, graph.constant(w), out_dtype="int32")
        for x, w in zip(inputs, weights[::-1] if reverse else weights, strict=True)
    ]
    plan = make_plan(graph, PassContext(AVX2))
    assert dots(plan) == ["vpmaddubsw", "vpmaddwd"][:: -1 if reverse else 1]
    values = {x.name: np.full((6, 40), 255, np.uint8) for x in inputs}
    values |= {node.inputs[1].name: node.inputs[1].data for node in graph.nodes if node.inputs[1].data is not None}
    launches = [launch for group in plan.groups for launch in lower_group(graph, group)]
    found = run_launches(launches, values, graph.outputs)
    for node in graph.nodes:
        operands = [values[x.name] for x in node.inputs]
        np.testing.assert_array_equal(found[node.output.name], reference("matmul")(operands, node.attrs)[0])


@pytest.mark.parametrize("graph", [gemm(np.full((40, 50), 65, np.int8)), conv(np.full((3, 3, 8, 9), -65, np.int8))])
def test_plans_that_claim_it_for_larger_weights_are_refused(graph: Graph) -> None:
    plan = make_plan(graph, PassContext(AVX2))
    (group,) = plan.groups
    assert isinstance(group.schedule, CpuDotGemmSchedule | CpuDotConvSchedule)
    claimed = replace(group, schedule=replace(group.schedule, dot="vpmaddubsw"))
    reason = "pairs along the reduction sum to at most 128 of either sign"
    with pytest.raises(PlanError, match=reason):
        check_plan(replace(plan, groups=(claimed,)), graph, AVX2)
    with pytest.raises(KernelError, match=reason):
        lower_group(graph, claimed)


def test_plans_are_for_cpus_that_have_it() -> None:
    graph = gemm(small((40, 50)))
    plan = make_plan(graph, PassContext(AVX2))
    assert plan.target.dot == "vpmaddwd" and StitchPlan.from_json(plan.to_json()) == plan
    check_plan(plan, graph, AVX2)
    with pytest.raises(PlanError, match=r"needs the instruction vpmaddubsw, which cpu .avx512. lacks"):
        check_plan(replace(plan, target=TargetInfo(isa="avx512", dot="vpdpbusd")), graph)
    with pytest.raises(PlanError, match=r"kernels need the instruction vpmaddwd; cpu .avx2. has vpdpbusd"):
        check_plan(plan, graph, TargetInfo(isa="avx2", dot="vpdpbusd"))


def test_the_slower_one_is_for_small_weights_too() -> None:
    graph = gemm(small((40, 50)))
    (group,) = make_plan(graph, PassContext(AVX2)).groups
    schedule = group.schedule
    assert isinstance(schedule, CpuDotGemmSchedule)
    lower_group(graph, replace(group, schedule=replace(schedule, dot="vpmaddwd", stage_left=True)))
