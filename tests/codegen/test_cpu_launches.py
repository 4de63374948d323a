"""What the plan says of launches on a CPU is what code generation emits: their number, tasks and workspace.

Schedules that are chosen are ones that the plan's check accepts.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from tests.mixed_graphs import mixed_graphs
from tests.networks import bert, gpt2, residual_block
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.compiler.frontend.importer import import_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes import PassContext, TargetInfo, check_plan, make_plan, run_pipeline
from tilestitch.passes.plan.cpu.isa import ISAS
from tilestitch.passes.plan.cpu.schedules import CpuRowSchedule


def check(graph: Graph, isa: str, threads: int, planner: str = "stitch") -> int:
    """Compare every group of a plan; the number of launches."""
    context = PassContext(TargetInfo("cpu", threads, isa=isa), {"planner": planner})
    graph = run_pipeline(graph, context)
    plan = make_plan(graph, context)
    check_plan(plan, graph, context.target)
    assert plan.launches is not None
    emitted = [launch for group in plan.groups for launch in lower_group(graph, group)]
    planned = [launch for group in plan.groups for launch in plan.launches if launch.group == group.name]
    assert [(one.kind, one.grid[0], one.scratch_bytes, one.beside) for one in planned] == [
        (one.kind, one.tasks, one.scratch_bytes, one.packed) for one in emitted
    ]
    return len(emitted)


@given(
    graph=mixed_graphs(), isa=st.sampled_from(sorted(ISAS)), threads=st.sampled_from((1, 2, 64)),
    planner=st.sampled_from(("none", "stitch")),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_launches_of_any_graph_are_those_that_its_plan_says(graph: Graph, isa: str, threads: int, planner: str) -> None:
    check(graph, isa, threads, planner)


@pytest.mark.parametrize("isa", sorted(ISAS))
@pytest.mark.parametrize("model", [bert(), gpt2(), residual_block()], ids=["bert", "gpt2", "residual_block"])
def test_launches_of_networks_are_those_that_their_plans_say(model: ModelProto, isa: str) -> None:
    assert check(import_model(model).graph, isa, 4) >= 4


def test_equal_groups_have_equal_schedules_whatever_their_names() -> None:
    """So that they share kernels."""
    graph = Graph("layers")
    x = graph.add_input("x", TensorType("float32", (64, 64)))
    for axis in (1, 0, 1):
        e = graph.emit("exp", graph.emit("sub", x, graph.emit("reduce_max", x, axes=(axis,), keepdims=True)))
        x = graph.emit("div", e, graph.emit("reduce_sum", e, axes=(axis,), keepdims=True))
    graph.outputs = [x]
    first, _, last = make_plan(graph, PassContext(TargetInfo("cpu", 2))).groups
    assert first.nodes != last.nodes and first.schedule == last.schedule
    assert isinstance(first.schedule, CpuRowSchedule) and first.schedule.kept
