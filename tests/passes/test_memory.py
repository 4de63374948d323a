"""The memory plan: values that are needed at the same time, or that launches which run together need, lie apart."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes.contract import PassContext
from tilestitch.passes.plan import Buffer
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan
from tilestitch.passes.schedule.memory import WINDOW, plan_buffers

LAUNCHES = 4 * WINDOW


def wandering(seed: int) -> Graph:
    """A chain of kernels, some of which read a value from long before, of sizes that differ."""
    random_ = random.Random(seed)
    graph = Graph("g")
    values = [graph.add_input("x", TensorType("float32", (64,)))]
    for _ in range(LAUNCHES):
        far = values[-min(len(values), random_.choice((1, 2, 5, WINDOW, 2 * WINDOW)))]
        both = graph.emit("mul", values[-1], far)
        size = random_.choice((16, 64, 256))
        shown = graph.emit("broadcast_to", graph.emit("reduce_sum", both, axes=(0,), keepdims=True), shape=(size,))
        values.append(graph.emit("mul", shown, shown))
        if size != 64:
            values[-1] = graph.emit(
                "broadcast_to", graph.emit("reduce_max", values[-1], axes=(0,), keepdims=True), shape=(64,)
            )
            values[-1] = graph.emit("exp", values[-1])
    graph.outputs = [values[-1]]
    return graph


def share_memory(a: Buffer, b: Buffer) -> bool:
    return max(a.offset_bytes, b.offset_bytes) < min(a.offset_bytes + a.nbytes, b.offset_bytes + b.nbytes)


@pytest.mark.parametrize("seed", range(3))
def test_values_that_live_together_lie_apart_however_long_they_live(seed: int) -> None:
    graph = wandering(seed)
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2), options={"planner": "none"}))
    buffers = plan.buffers.buffers
    assert max(b.last - b.first for b in buffers) > WINDOW
    shared = [(a, b) for a, b in combinations(buffers, 2) if share_memory(a, b)]
    assert shared
    assert all(a.last < b.first or b.last < a.first for a, b in shared)


def test_branches_share_memory_only_far_apart_where_launches_run_together() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("float32", (64,)))
    branch_of: dict[str, int] = {}
    results = []
    for branch in range(LAUNCHES):
        value = x
        for op in ("exp", "sin", "tanh"):
            value = graph.emit(op, value)
            branch_of[value.name] = branch
        results.append(value)
    graph.outputs = results
    context = PassContext(TargetInfo("cpu", 2), options={"planner": "none"})
    plan = make_plan(graph, context)
    found = plan_buffers(graph, plan.groups, plan.host_groups, plan.segments, plan.buffers.aliases, window=WINDOW)
    shared = [sorted(pair, key=lambda b: b.first) for pair in combinations(found.buffers, 2) if share_memory(*pair)]
    assert shared
    assert all(branch_of[a.value] == branch_of[b.value] or b.first - a.last > WINDOW for a, b in shared)
    assert any(b.first - a.last < 2 * WINDOW for a, b in shared)
