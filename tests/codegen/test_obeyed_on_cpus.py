"""Plans for CPUs edited by hand: code generation emits the schedule that it is given, or says why it cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.kernel_harness import cpu_group, interpret, run_launches, target
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes.plan.schedules import CpuAttentionSchedule, CpuRowSchedule, RowSchedule, Schedule


def total(rows: int = 3, columns: int = 60) -> Graph:
    graph = Graph("total")
    x = graph.add_input("x", TensorType("float32", (rows, columns)))
    graph.outputs = [graph.emit("reduce_sum", graph.emit("mul", x, x), axes=(1,), keepdims=True)]
    return graph


@pytest.mark.parametrize("parts", [1, 2, 5, 60])
def test_rows_are_cut_into_the_parts_of_the_plan(parts: int) -> None:
    graph = total()
    launches = lower_group(graph, replace(cpu_group(graph), schedule=CpuRowSchedule(parts)), target())
    assert (len(launches) > 1) == (parts > 1)
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 60)).astype(np.float32)}
    (value,) = graph.outputs
    found = run_launches(launches, feeds, graph.outputs)[value.name]
    np.testing.assert_allclose(found, interpret(graph, feeds)[value], rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (CpuRowSchedule(7), "60 elements over axes .1,. are not cut into 7 equal parts"),
        (CpuRowSchedule(0), "not cut into 0 equal parts"),
        (CpuAttentionSchedule(8), "template cpu_attention does not compute a group of kind rowwise"),
        (RowSchedule(4, 32, 1), "no kernel of a CPU"),
        (None, "has no schedule"),
    ],
)
def test_what_no_kernel_computes_is_refused(schedule: Schedule | None, reason: str) -> None:
    graph = total()
    with pytest.raises(KernelError, match=reason):
        lower_group(graph, replace(cpu_group(graph), schedule=schedule), target())
