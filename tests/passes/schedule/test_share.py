"""Plans for a share of a GPU's multiprocessors: cut for it, and predicted to be no slower there than plans for all."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.codegen.kernel_harness import one_group
from tests.passes.schedule.parallel.test_alternatives import experts, matmul
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import DeviceError
from tilestitch.passes import PassContext, StitchPlan, make_plan
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.schedule.cuda.gemm import wgmma_schedules
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.schedule.device import device_of, multiprocessors_of
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name
from tilestitch.passes.schedule.makespan import plan_us

MODEL = AnalyticalModel()
WHOLE = TargetInfo("cuda", 1, "H200", ("sm_90a",), 132)


def share(multiprocessors: int) -> TargetInfo:
    return TargetInfo("cuda", 1, "H200", ("sm_90a",), multiprocessors, is_share=True)


def mlp(tokens: int, width: int, hidden: int, dtype: str = "float16") -> Graph:
    graph = Graph("mlp")
    x = graph.add_input("x", TensorType(dtype, (tokens, width)))
    up, down = (np.ones(shape, dtype) for shape in ((width, hidden), (hidden, width)))
    hidden_ = graph.emit("tanh", graph.emit("matmul", x, graph.constant(up)))
    graph.outputs = [graph.emit("matmul", hidden_, graph.constant(down))]
    return graph


def convolution(channels: int, size: int) -> Graph:
    graph = Graph("conv")
    x = graph.add_input("x", TensorType("float16", (1, channels, size, size)))
    w = graph.constant(np.ones((channels, channels, 3, 3), np.float16))
    attrs = {"strides": (1, 1), "before": (1, 1), "after": (1, 1), "dilations": (1, 1), "groups": 1, "layout": "NCX"}
    graph.outputs = [graph.emit("tanh", graph.emit("conv", x, w, **attrs))]
    return graph


def rows(count: int, length: int) -> Graph:
    graph = Graph("rows")
    x = graph.add_input("x", TensorType("float32", (count, length)))
    shifted = graph.emit("sub", x, graph.emit("reduce_max", x, axes=(1,), keepdims=True))
    powers = graph.emit("exp", shifted)
    graph.outputs = [graph.emit("div", powers, graph.emit("reduce_sum", powers, axes=(1,), keepdims=True))]
    return graph


def chain() -> Graph:
    graph = Graph("chain")
    x = graph.add_input("x", TensorType("float32", (200, 512)))
    graph.outputs = [matmul(graph, graph.emit("tanh", matmul(graph, x, 2048, 1)), 512, 2)]
    return graph


def planned(make: partial[Graph], target: TargetInfo) -> StitchPlan:
    return make_plan(make(), PassContext(target, options={"planner": "stitch", "search": True}, cost_model=MODEL))


def predicted_us(plan: StitchPlan, graph: Graph, target: TargetInfo) -> float:
    """What the plan takes on the machine of a target."""
    nodes, device = {node.name: node for node in graph.nodes}, device_of(target)
    facts = {group.name: group_facts(nodes, group, target) for group in plan.groups}
    found = dict(zip(facts, MODEL.predict(list(facts.values()), device), strict=True))
    return plan_us(plan, facts, {name: one.latency_us for name, one in found.items()}, device)


MODELS = {
    "mlp": partial(mlp, 512, 1024, 4096),
    "one token": partial(mlp, 1, 1024, 4096),
    "odd mlp": partial(mlp, 77, 520, 1304),
    "conv": partial(convolution, 128, 28),
    "rows": partial(rows, 64, 8192),
    "one row": partial(rows, 1, 1 << 18),
    "branches": partial(experts, 6, 64, 256, 2048),
    "chain": chain,
}


@pytest.mark.parametrize("multiprocessors", [8, 32])
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_for_the_share_is_no_slower_on_it_than_one_for_the_whole(name: str, multiprocessors: int) -> None:
    make, small = MODELS[name], share(multiprocessors)
    whole, mine = planned(make, WHOLE), planned(make, small)
    there, anew = predicted_us(whole, make(), small), predicted_us(mine, make(), small)
    assert anew <= there * (1 + 1e-9)
    assert predicted_us(whole, make(), WHOLE) <= anew, "the whole GPU is no slower than a share of it"


@pytest.mark.parametrize("name", ["mlp", "conv", "one row", "chain"])
def test_plans_differ_where_blocks_are_counted_by_multiprocessors(name: str) -> None:
    whole, mine = (planned(MODELS[name], target) for target in (WHOLE, share(8)))
    schedules = [[group.schedule for group in plan.groups] for plan in (whole, mine)]
    assert schedules[0] != schedules[1]


def test_fewer_multiprocessors_take_fewer_parts_of_a_reduction() -> None:
    """A GEMM of few tiles is cut along k until all multiprocessors have work."""

    def parts(target: TargetInfo) -> int:
        (group,) = planned(partial(_narrow, 64, 8192), target).groups
        assert isinstance(group.schedule, GemmSchedule), group.schedule
        return group.schedule.split_k

    assert parts(WHOLE) > parts(share(8))


def _narrow(m: int, k: int) -> Graph:
    graph = Graph("narrow")
    x = graph.add_input("x", TensorType("float16", (m, k)))
    graph.outputs = [graph.emit("matmul", x, graph.constant(np.ones((k, 64), np.float16)))]
    return graph


@pytest.mark.parametrize("multiprocessors", [1, 2, 3])
def test_blocks_that_walk_over_tiles_are_whole_clusters(multiprocessors: int) -> None:
    """One at least, so that any may be chosen; a single multiprocessor does not hold a cluster of two blocks."""
    graph, target = _narrow(512, 256), share(multiprocessors)
    gemm = gemm_of(AnchoredGroup.of(look_up(nodes_by_name(graph), one_group(graph))))
    assert gemm is not None
    schedules = list(wgmma_schedules(gemm, Gpu.of(target).device))
    assert schedules
    assert all(isinstance(one.tile, WgmmaTile) and one.blocks >= one.tile.cluster for one in schedules)


def test_what_a_share_has_of_the_gpu() -> None:
    whole, part = device_of(WHOLE), device_of(share(33))
    assert (part.sm_count, multiprocessors_of(share(33))) == (33, 33)
    assert part.peak_flops["float16"] == whole.peak_flops["float16"] // 4
    same = ("dram_bytes_per_second", "l2_bytes", "memory_bytes", "clock_hz", "shared_bytes_per_block", "name")
    assert [getattr(part, name) for name in same] == [getattr(whole, name) for name in same]
    assert device_of(share(132)) == whole


@pytest.mark.parametrize("multiprocessors", [0, 133])
def test_a_share_that_the_gpu_does_not_have_is_refused(multiprocessors: int) -> None:
    with pytest.raises(DeviceError, match=f"H200 has 132 multiprocessors, of which {multiprocessors} were asked for"):
        device_of(share(multiprocessors))


def test_a_plan_for_a_share_is_of_that_share_only() -> None:
    target = share(32)
    assert str(target) == "32 multiprocessors of H200 (sm_90a)"
    assert TargetInfo.from_json(target.to_json()) == target
    assert "is_share" not in WHOLE.to_json()
    assert target.why_not_on(target) is None
    smaller = TargetInfo("cuda", 1, "H200", ("sm_90a",), 32)
    for other in (WHOLE, smaller, share(24)):
        assert target.why_not_on(other) is not None, other
        assert other.why_not_on(target) is not None, other
