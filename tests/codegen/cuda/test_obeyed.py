"""Plans edited by hand: code generation emits the schedule that it is given, or says why it cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.cuda.contraction_harness import run
from tests.codegen.cuda.cuda_harness import scheduled, target
from tests.codegen.kernel_harness import interpret, one_group
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes.plan.schedules import (
    ElementwiseSchedule,
    RowSchedule,
    Schedule,
    TransposeSchedule,
    WindowSchedule,
)


def softmax(rows: int = 7, columns: int = 48) -> Graph:
    graph = Graph("softmax")
    x = graph.add_input("x", TensorType("float32", (rows, columns)))
    e = graph.emit("exp", graph.emit("sub", x, graph.emit("reduce_max", x, axes=(1,), keepdims=True)))
    graph.outputs = [graph.emit("div", e, graph.emit("reduce_sum", e, axes=(1,), keepdims=True))]
    return graph


def transposed(rows: int = 33, columns: int = 40) -> Graph:
    graph = Graph("transposed")
    x = graph.add_input("x", TensorType("float32", (rows, columns)))
    graph.outputs = [graph.emit("neg", graph.emit("transpose", x, perm=(1, 0)))]
    return graph


def check_with(graph: Graph, schedule: Schedule) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block of the only launch, whose results are compared with numpy."""
    group = replace(one_group(graph), schedule=schedule)
    (launch,) = lower_group(graph, group, target())
    feeds = {v.name: np.random.default_rng(0).standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}
    found = run((launch,), feeds, graph.outputs)
    for value in graph.outputs:
        np.testing.assert_allclose(found[value.name], interpret(graph, feeds)[value], rtol=1e-5, atol=1e-6)
    return launch.grid, launch.block


@pytest.mark.parametrize(
    ("schedule", "grid", "block"),
    [
        (RowSchedule(4, 4, 8), 1, (4, 8, 1)),
        (RowSchedule(4, 32, 1), 7, (32, 1, 1)),
        (RowSchedule(1, 64, 1), 7, (64, 1, 1)),
        (RowSchedule(2, 2, 3), 3, (2, 3, 1)),
        (RowSchedule(1, 1, 5), 2, (1, 5, 1)),
    ],
)
def test_another_row_schedule_is_emitted_as_it_is(
    schedule: RowSchedule, grid: int, block: tuple[int, int, int]
) -> None:
    assert check_with(softmax(), schedule) == ((grid, 1, 1), block)


@pytest.mark.parametrize(
    ("schedule", "grid", "block"),
    [
        (ElementwiseSchedule(64, 1), (21, 1, 1), (64, 1, 1)),
        (ElementwiseSchedule(32, 1, 4), (11, 1, 1), (32, 1, 1)),
        (TransposeSchedule(0), (4, 1, 1), (256, 1, 1)),
        (TransposeSchedule(0, 16, 4), (9, 1, 1), (64, 1, 1)),
    ],
)
def test_another_elementwise_schedule_is_emitted_as_it_is(
    schedule: Schedule, grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    assert check_with(transposed(), schedule) == (grid, block)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (RowSchedule(1, 64, 2), "the only ones of a block"),
        (RowSchedule(1, 48, 1), "whole warps"),
        (RowSchedule(1, 12, 1), "power of two"),
        (RowSchedule(5, 4, 1), "5 lanes do not divide the 48"),
        (RowSchedule(0, 4, 1), "0 lanes"),
        (RowSchedule(1, 32, 33), "1 to 1024 threads, not 1056"),
        (RowSchedule(1, 4, 2, 2), "has 2 rows, not one"),
        (ElementwiseSchedule(256, 1), "does not compute a group of kind rowwise"),
    ],
)
def test_rows_that_no_kernel_computes_are_refused(schedule: Schedule, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        lower_group(softmax(), replace(one_group(softmax()), schedule=schedule), target())


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (ElementwiseSchedule(256, 4), "4 lanes do not divide the 33"),
        (ElementwiseSchedule(256, 1, 0), "0 vectors"),
        (ElementwiseSchedule(256, 1, 1, 0, (5, 5)), "do not rise"),
        (ElementwiseSchedule(256, 1, 1, 2, (5,)), "no axis 2"),
        (ElementwiseSchedule(2000, 1), "1 to 1024 threads"),
        (TransposeSchedule(1), "no operand runs along axis 1"),
        (TransposeSchedule(0, 32, 5), "5 lines at a time do not divide"),
        (TransposeSchedule(0, 0, 0), "0 lines"),
        (TransposeSchedule(0, 128, 8), "bytes of shared memory"),
    ],
)
def test_elementwise_work_that_no_kernel_computes_is_refused(schedule: Schedule, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        lower_group(transposed(), replace(one_group(transposed()), schedule=schedule), target())


def test_a_schedule_of_another_template_is_refused() -> None:
    group = replace(one_group(softmax()), schedule=WindowSchedule(256))
    with pytest.raises(KernelError, match="template window"):
        lower_group(softmax(), group, target())


def test_a_group_without_a_schedule_is_refused() -> None:
    with pytest.raises(KernelError, match="has no schedule"):
        lower_group(softmax(), one_group(softmax()), target())


def test_tiles_along_an_axis_that_no_operand_runs_along_are_refused() -> None:
    graph = Graph("same")
    x = graph.add_input("x", TensorType("float32", (33, 40)))
    graph.outputs = [graph.emit("neg", x)]
    with pytest.raises(KernelError, match="no operand runs along axis 0"):
        lower_group(graph, replace(one_group(graph), schedule=TransposeSchedule(0)), target())


def test_the_planner_schedules_what_it_is_told_of_the_device() -> None:
    graph = softmax(4000, 4096)
    large, small = (scheduled(graph, one_group(graph), name).schedule for name in ("cuda:h200", "cuda:t4"))
    assert isinstance(large, RowSchedule) and isinstance(small, RowSchedule)
