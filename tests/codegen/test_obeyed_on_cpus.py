"""Plans for CPUs edited by hand: code generation emits the schedule that it is given, or says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.attention_graphs import Case, assert_close, attention, inputs_of
from tests.codegen.kernel_harness import cpu_group, interpret, run_launches, target
from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes import PassContext, PlanError, TargetInfo, check_plan, make_plan
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.cpu.schedules import (
    CpuAttentionSchedule,
    CpuConvSchedule,
    CpuConvTransposeSchedule,
    CpuGemmSchedule,
    CpuGemvSchedule,
    CpuLoopSchedule,
    CpuRowSchedule,
    CpuScanSchedule,
    CpuScatterSchedule,
    CpuSortSchedule,
    CpuSplitRowSchedule,
    CpuWindowSchedule,
)
from tilestitch.passes.plan.schedules import RowSchedule, Schedule


def launches_of(graph: Graph, group: Group, schedule: Schedule | None) -> Sequence[KernelLaunch]:
    return lower_group(graph, replace(group, schedule=schedule))


def check(graph: Graph, schedule: Schedule, rtol: float = 1e-5) -> Sequence[KernelLaunch]:
    """The launches of the whole graph with a schedule, after their results were compared with numpy."""
    launches = launches_of(graph, cpu_group(graph), schedule)
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}
    constants = {v.name: np.asarray(v.data) for v in graph.constants}
    found = run_launches(launches, {**feeds, **constants}, graph.outputs)
    for value in graph.outputs:
        np.testing.assert_allclose(found[value.name], interpret(graph, feeds)[value], rtol=rtol, atol=1e-5)
    return launches


def text(launch: KernelLaunch) -> str:
    return str(launch.func.script())


# -- rows --------------------------------------------------------------------------------------------------------------


def total(rows: int = 3, columns: int = 60) -> Graph:
    graph = Graph("total")
    x = graph.add_input("x", TensorType("float32", (rows, columns)))
    graph.outputs = [graph.emit("reduce_sum", graph.emit("mul", x, x), axes=(1,), keepdims=True)]
    return graph


def softmax(rows: int = 9, columns: int = 50, axis: int = 1) -> Graph:
    graph = Graph("softmax")
    x = graph.add_input("x", TensorType("float32", (rows, columns)))
    e = graph.emit("exp", graph.emit("sub", x, graph.emit("reduce_max", x, axes=(axis,), keepdims=True)))
    graph.outputs = [graph.emit("div", e, graph.emit("reduce_sum", e, axes=(axis,), keepdims=True))]
    return graph


ROWS = CpuRowSchedule((9, 50), (False, True), 8, 2, 2)


EXPONENTIAL = next(at for at, node in enumerate(softmax().nodes) if node.op == "exp")
"""The node whose value several passes of softmax need."""


@pytest.mark.parametrize(
    ("changes", "tasks", "scratch_bytes"),
    [
        ({}, 5, 0),
        ({"rows": 9}, 1, 0),
        ({"rows": 1, "lanes": 4, "vectors": 1}, 9, 0),
        ({"lanes": 32, "vectors": 4}, 5, 0),
        ({"lanes": 1, "vectors": 1}, 5, 0),
        ({"kept": (EXPONENTIAL,)}, 5, 256),
    ],
)
def test_another_schedule_of_rows_is_emitted_as_it_is(changes: dict[str, Any], tasks: int, scratch_bytes: int) -> None:
    (launch,) = check(softmax(), replace(ROWS, **changes))
    assert (launch.kind, launch.tasks, launch.scratch_bytes) == ("rowwise", tasks, scratch_bytes)


@pytest.mark.parametrize(("lanes", "vectors", "tasks"), [(4, 1, 7), (16, 2, 1), (1, 1, 25), (8, 4, 1)])
def test_neighbouring_rows_are_computed_together_as_the_plan_says(lanes: int, vectors: int, tasks: int) -> None:
    (launch,) = check(softmax(axis=0), CpuRowSchedule((9, 50), (True, False), lanes, vectors, 2))
    assert launch.tasks == tasks


def split(parts: int, **changes: Any) -> CpuSplitRowSchedule:
    """Three rows of 60 elements in parts: their sums, and the sums of these."""
    first = CpuRowSchedule((3, parts, 60 // parts), (False, False, True), 1, 1, 2)
    second = CpuRowSchedule((3, parts), (False, True), 1, 1, 3)
    return CpuSplitRowSchedule(parts, (replace(first, **changes), second, CpuLoopSchedule((3,), 1, 3, 1)))


@pytest.mark.parametrize("parts", [2, 5, 20])
def test_rows_are_cut_into_the_parts_of_the_plan(parts: int) -> None:
    launches = check(total(), split(parts))
    assert [launch.tasks for launch in launches] == [-(-3 * parts // 2), 1, 1]


ONE = CpuGemmSchedule(1, 1, 16, 1, 1, 1)


@pytest.mark.parametrize(
    ("graph", "schedule", "reason"),
    [
        (softmax(), replace(ROWS, extents=(450,), reduced=(True,)), "do not cover rows"),
        (softmax(), replace(ROWS, extents=(9, 49)), "do not cover rows"),
        (softmax(), replace(ROWS, extents=(9, 5, 10)), "do not cover rows"),
        (softmax(), replace(ROWS, extents=(9, 5, 10), reduced=(False, True, True)), "do not cover rows"),
        (softmax(), replace(ROWS, reduced=(True, False)), "do not cover rows"),
        (softmax(), replace(ROWS, extents=(), reduced=()), "do not cover rows"),
        (softmax(), replace(ROWS, lanes=5), "5 lanes"),
        (softmax(), replace(ROWS, lanes=64), "longer than the last dimension, 50"),
        (softmax(axis=0), CpuRowSchedule((9, 50), (True, False), 16, 4, 1), "longer than the last dimension, 50"),
        (softmax(), replace(ROWS, vectors=3), "3 vectors; their number is a power of two"),
        (softmax(), replace(ROWS, vectors=0), "0 vectors"),
        (softmax(), replace(ROWS, rows=0), "0 rows"),
        (softmax(), replace(ROWS, kept=(77,)), "node 77 of the group is not kept"),
        (softmax(), replace(ROWS, kept=(len(softmax().nodes) - 1,)), "is not kept"),
        (total(), split(7), "60 elements over axes .1,. are not cut into 7 equal parts"),
        (total(), split(1), "not cut into 1 equal parts"),
        (total(), split(2, rows=0), "0 rows"),
        (total(), split(2, rows=1 << 40), "rows is 1099511627776, not 0 to 1048576"),
        (total(), replace(split(2), pieces=split(2).pieces[:2]), "3 launches take as many schedules, not 2"),
        (total(), replace(split(2), pieces=split(2).pieces[::-1]), "a launch that is rowwise has a schedule of"),
        (total(), CpuAttentionSchedule(8, 8, ONE, ONE), "cpu_attention does not compute a group of kind rowwise"),
        (total(), RowSchedule(4, 32, 1), "no kernel of a CPU"),
        (total(), ONE, "template cpu_gemm does not compute a group of kind rowwise"),
        (total(), None, "has no schedule"),
    ],
)
def test_rows_that_no_kernel_computes_are_refused(graph: Graph, schedule: Schedule | None, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        launches_of(graph, cpu_group(graph), schedule)


def test_rows_in_which_places_are_looked_for_are_not_cut() -> None:
    graph = Graph("places")
    x = graph.add_input("x", TensorType("float32", (3, 60)))
    graph.outputs = [graph.emit("arg_max", x, axis=1, keepdims=True, select_last=False)]
    with pytest.raises(KernelError, match="places are looked for"):
        launches_of(graph, cpu_group(graph), split(2))


# -- element-wise work, data movement, sorting, sums, scatters ---------------------------------------------------------


def turned() -> Graph:
    graph = Graph("turned")
    x = graph.add_input("x", TensorType("float32", (33, 40)))
    graph.outputs = [graph.emit("neg", graph.emit("transpose", x, perm=(1, 0)))]
    return graph


def joined() -> Graph:
    graph = Graph("joined")
    parts = [graph.add_input(name, TensorType("float32", (3, size))) for name, size in (("x", 10), ("y", 22))]
    graph.outputs = [graph.emit("concat", *parts, axis=1)]
    return graph


LOOPS = CpuLoopSchedule((40, 33), 8, 33, 4)


@pytest.mark.parametrize(
    ("graph", "schedule", "tasks"),
    [
        (turned(), LOOPS, 10),
        (turned(), replace(LOOPS, lanes=1, rows=7), 6),
        (turned(), replace(LOOPS, extents=(1320,), chunk=100), 13),
        (turned(), replace(LOOPS, extents=(8, 5, 33), rows=40), 1),
        (turned(), replace(LOOPS, chunk=16, rows=1), 80),
        (turned(), replace(LOOPS, tiled=0, edge=16, chunk=16, rows=1), 6),
        (turned(), replace(LOOPS, cuts=(5, 6)), 10),
        (turned(), replace(LOOPS, branches=(0, 1, 17, 40)), 10),
        (turned(), replace(LOOPS, extents=(33, 40), order=(1, 0), chunk=40), 9),
        (turned(), replace(LOOPS, extents=(33, 40), order=(1, 0), chunk=40, cuts=(5, 6)), 9),
        (turned(), replace(LOOPS, order=(0, 1)), 10),
        (joined(), CpuLoopSchedule((3, 32), 8, 32, 1, cuts=(10,)), 3),
        (joined(), CpuLoopSchedule((96,), 16, 96, 1), 1),
        (joined(), CpuLoopSchedule((96,), 32, 48, 1), 2),
    ],
)
def test_other_loops_are_emitted_as_they_are(graph: Graph, schedule: CpuLoopSchedule, tasks: int) -> None:
    (launch,) = check(graph, schedule)
    assert (launch.kind, launch.tasks) == ("injective", tasks)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"extents": (40, 32)}, "have not 1320 elements"),
        ({"extents": ()}, "have not 1320 elements"),
        ({"lanes": 3}, "3 lanes"),
        ({"lanes": 0}, "0 lanes"),
        ({"chunk": 4}, "rows of 4 elements"),
        ({"chunk": 34}, "rows of 34 elements"),
        ({"rows": 0}, "0 rows of 33"),
        ({"cuts": (5,), "chunk": 16}, "computed whole"),
        ({"cuts": (5, 5)}, "do not rise"),
        ({"cuts": (33,)}, "do not rise"),
        ({"tiled": 1, "edge": 16}, "before the last one"),
        ({"edge": 16, "cuts": (5,)}, "without cuts"),
        ({"branches": (0, 39)}, "do not rise from 0 to 40"),
        ({"branches": (1, 40)}, "do not rise from 0 to 40"),
        ({"branches": (0, 40), "branch": 1}, "no outer one"),
        ({"branch": 1}, "branch is 1, but no rows branch"),
        ({"tiled": 1}, "tiled is 1, but there are no tiles"),
        ({"order": (0,)}, "does not name each of the 2 dimensions"),
        ({"order": (1, 1)}, "does not name each of the 2 dimensions"),
    ],
)
def test_loops_that_no_kernel_has_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        launches_of(turned(), cpu_group(turned()), replace(LOOPS, **changes))


def top(k: int = 5) -> Graph:
    graph = Graph("top")
    x = graph.add_input("x", TensorType("float32", (7, 30)))
    graph.outputs = graph.add("top_k", [x], {"k": k, "axis": 1, "largest": True}).outputs
    return graph


def running() -> Graph:
    graph = Graph("running")
    x = graph.add_input("x", TensorType("float32", (3, 9, 20)))
    attrs = {"axis": 1, "reducer": "sum", "exclusive": False, "reverse": False}
    graph.outputs = [graph.emit("cumulative", x, **attrs)]
    return graph


def scattered(op: str) -> Graph:
    graph = Graph(op)
    x = graph.add_input("x", TensorType("float32", (6, 48)))
    if op == "scatter_elements":
        places = graph.constant(np.array([[0] * 40, [5] * 40, [2] * 40]))
        updates = graph.add_input("u", TensorType("float32", (3, 40)))
        graph.outputs = [graph.emit(op, x, places, updates, axis=1, reduction="none")]
        return graph
    places = graph.constant(np.array([[4], [1]]))
    updates = graph.add_input("u", TensorType("float32", (2, 48)))
    graph.outputs = [graph.emit(op, x, places, updates, reduction="none")]
    return graph


@pytest.mark.parametrize(
    ("graph", "schedule", "tasks"),
    [
        (top(), CpuSortSchedule(2, True), [4]),
        (top(), CpuSortSchedule(2, False), [4]),
        (top(30), CpuSortSchedule(100, True), [1]),
        (running(), CpuScanSchedule(4, 2), [8]),
        (running(), CpuScanSchedule(16, 100), [1]),
        (running(), CpuScanSchedule(1, 7), [9]),
        (scattered("scatter_nd"), CpuScatterSchedule(8, 5, 24, 8), [8, 2]),
        (scattered("scatter_nd"), CpuScatterSchedule(1, 288, 7), [1, 7]),
        (scattered("scatter_elements"), CpuScatterSchedule(16, 9, 2), [2, 2]),
    ],
)
def test_other_tasks_of_a_node_alone_are_emitted_as_they_are(
    graph: Graph, schedule: Schedule, tasks: list[int]
) -> None:
    assert [launch.tasks for launch in check(graph, schedule)] == tasks


@pytest.mark.parametrize(
    ("graph", "schedule", "reason"),
    [
        (top(), CpuSortSchedule(0, True), "0 lines"),
        (top(), CpuScanSchedule(1, 1), "cpu_scan does not compute top_k"),
        (running(), CpuScanSchedule(32, 1), "20 neighbouring lines are no vector of 32"),
        (running(), CpuScanSchedule(3, 1), "3 lanes"),
        (running(), CpuScanSchedule(4, 0), "0 vectors of lines"),
        (running(), CpuScanSchedule(4, 1 << 31), "lines is 2147483648, not 0 to 1048576"),
        (scattered("scatter_nd"), CpuScatterSchedule(8, 0, 24), "copies 0 vectors"),
        (scattered("scatter_nd"), CpuScatterSchedule(8, 1, 0), "has 0 parts"),
        (scattered("scatter_nd"), CpuScatterSchedule(8, 1, 20, 8), "not whole vectors of 8"),
        (scattered("scatter_elements"), CpuScatterSchedule(8, 1, 1, 8), "one by one"),
        (running(), None, "has no schedule"),
    ],
)
def test_nodes_alone_that_no_kernel_computes_so_are_refused(
    graph: Graph, schedule: Schedule | None, reason: str
) -> None:
    with pytest.raises(KernelError, match=reason):
        launches_of(graph, cpu_group(graph), schedule)


# -- GEMMs -------------------------------------------------------------------------------------------------------------


def gemm(m: int = 30, n: int = 70, k: int = 40, *, constant: bool = True, gates: int = 1) -> Graph:
    """A matmul by a constant, or by an input; with gates, sums of so many ranges of columns."""
    graph = Graph("gemm")
    x = graph.add_input("x", TensorType("float32", (m, k)))
    if constant:
        w = graph.constant(np.random.default_rng(1).standard_normal((k, gates * n)).astype(np.float32))
    else:
        w = graph.add_input("w", TensorType("float32", (k, n)))
    result = graph.emit("matmul", x, w)
    if gates > 1:
        parts = [graph.emit("slice", result, starts=(0, i * n), sizes=(m, n), steps=(1, 1)) for i in range(gates)]
        result = graph.emit("add", graph.emit("tanh", parts[0]), parts[1])
    graph.outputs = [result]
    return graph


GEMM = CpuGemmSchedule(6, 2, 16, 2, 1, 40)


@pytest.mark.parametrize(
    ("changes", "tasks", "scratch_bytes"),
    [
        ({}, 9, 0),  # 5 tiles of 6 rows in blocks of 2, by 3 panels of 32 columns
        ({"rows": 8}, 6, 0),  # 4 tiles, none above 8 rows
        ({"rows": 8, "block_tiles": 1}, 12, 0),
        ({"vectors": 5, "block_tiles": 9}, 1, 0),
        ({"lanes": 8, "block_panels": 3}, 6, 0),
        ({"lanes": 4, "vectors": 3}, 18, 0),
        ({"k_block": 7}, 9, 12 * 32 * 4),  # sums of 12 rows wait
        ({"k_block": 7, "k_outer": True, "block_panels": 2}, 6, 12 * 2 * 32 * 4),  # of two panels
        ({"k_block": 7, "k_outer": True, "stage_left": True}, 9, 12 * 16 * 4 + 12 * 32 * 4),  # 7 of 40 steps copied
        ({"spill": True}, 9, 6 * 32 * 4),
        ({"stage_left": True}, 9, 12 * 48 * 4),  # 3 lines a row
        ({"widen_right": True}, 9, 40 * 32 * 4),
        ({"rows_outer": True, "block_panels": 2}, 6, 0),
        ({"prefetch_next": True}, 9, 0),
        ({"prefetch_ahead": True}, 9, 0),
    ],
)
def test_another_tile_or_task_of_a_gemm_is_emitted_as_it_is(
    changes: dict[str, Any], tasks: int, scratch_bytes: int
) -> None:
    (launch,) = check(gemm(), replace(GEMM, **changes))
    assert (launch.kind, launch.tasks, launch.scratch_bytes) == ("matmul", tasks, scratch_bytes)
    asks = bool(changes.get("prefetch_next") or changes.get("prefetch_ahead"))
    assert ("prefetch" in text(launch)) == asks


def test_lanes_of_vectors_are_those_of_the_plan() -> None:
    for lanes in (4, 8, 16):
        (launch,) = check(gemm(), replace(GEMM, lanes=lanes))
        assert f"T.vectorized({lanes})" in text(launch) or f"T.vectorized(T.int64({lanes}))" in text(launch)


@pytest.mark.parametrize("changes", [{}, {"rows": 4, "block_panels": 3}, {"k_block": 11}])
def test_run_time_operands_are_packed_by_tiles_of_the_plan(changes: dict[str, Any]) -> None:
    (launch,) = check(gemm(constant=False), replace(GEMM, **changes))
    assert launch.scratch_bytes >= 40 * 32 * 4


def test_gates_are_computed_by_tiles_of_the_plan() -> None:
    (launch,) = check(gemm(n=33, gates=2), replace(GEMM, spill=True, rows=5))
    assert launch.tasks == 6


@pytest.mark.parametrize(
    ("graph", "changes", "reason"),
    [
        (gemm(), {"rows": 0}, "0 x 2 vectors has not 1 to"),
        (gemm(), {"rows": 200}, "200 x 2 vectors has not 1 to"),
        (gemm(), {"lanes": 12}, "12 lanes are no vector"),
        (gemm(), {"lanes": 1}, "1 lanes are no vector"),
        (gemm(), {"lanes": 128}, "128 lanes are no vector"),
        (gemm(), {"block_tiles": 0}, "0 tiles by 1 panels"),
        (gemm(), {"block_tiles": 1 << 70}, "block_tiles is 1180591620717411303424, not 0 to 2147483647"),
        (gemm(), {"block_panels": 0}, "2 tiles by 0 panels"),
        (gemm(), {"k_block": 0}, "0 steps of the reduction"),
        (gemm(), {"k_block": 7, "rows_outer": True}, "one panel at a time"),
        (gemm(), {"k_outer": True}, "there is no other to be outermost"),
        (gemm(), {"k_block": 7, "k_outer": True, "rows_outer": True}, "one panel at a time"),
        (gemm(), {"k_block": 7, "k_outer": True, "widen_right": True}, "packed panels of floats"),
        (gemm(constant=False), {"k_block": 7, "k_outer": True}, "packed panels of floats"),
        (gemm(n=33, gates=2), {"spill": True, "k_block": 7, "k_outer": True}, "without gates"),
        (gemm(), {"widen_right": True, "rows_outer": True}, "cannot walk through all"),
        (gemm(constant=False), {"rows_outer": True}, "cannot walk through all"),
        (gemm(constant=False), {"widen_right": True}, "known at run time"),
        (gemm(constant=False), {"prefetch_next": True}, "known at run time"),
        (gemm(n=33, gates=2), {}, "gates of a cell meet in the workspace"),
        (gemm(n=33, gates=2), {"spill": True, "k_block": 7}, "without gates"),
        (gemm(n=33, gates=2), {"spill": True, "widen_right": True}, "several gates are not widened"),
    ],
)
def test_gemms_that_no_kernel_computes_are_refused(graph: Graph, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(KernelError, match=f"{reason}.*repair the plan or write it again"):
        launches_of(graph, cpu_group(graph), replace(GEMM, **changes))


@pytest.mark.parametrize(("shape", "left"), [((1, 90, 50), False), ((90, 1, 50), True)], ids=["row", "column"])
@pytest.mark.parametrize(
    ("schedule", "kind", "tasks"),
    [
        (CpuGemvSchedule(90, 16), "gemv", 1),
        (CpuGemvSchedule(32, 8, 4), "gemv", 3),
        (CpuGemvSchedule(7, 16, 3), "gemv", 13),
        (CpuGemmSchedule(1, 1, 16, 1, 1, 50), "matmul", None),
    ],
)
def test_a_row_or_column_is_computed_by_the_kernel_of_the_plan(
    shape: tuple[int, int, int], left: bool, schedule: Schedule, kind: str, tasks: int | None
) -> None:
    (launch,) = check(gemm(*shape, constant=False), schedule)
    assert launch.kind == kind and (tasks is None or launch.tasks == tasks)


@pytest.mark.parametrize(
    ("graph", "schedule", "reason"),
    [
        (gemm(), CpuGemvSchedule(30, 16), "only a matrix that is known at run time"),
        (gemm(1), CpuGemvSchedule(30, 16), "only a matrix that is known at run time"),
        (gemm(1, constant=False), CpuGemvSchedule(0, 16), "0 results"),
        (gemm(1, constant=False), CpuGemvSchedule(30, 16, 0), "0 x 1 vectors"),
        (gemm(1, constant=False), CpuGemvSchedule(30, 5), "5 lanes"),
        (gemm(), CpuConvSchedule(1, 4, 1, 16, 1, 1), "cpu_conv does not compute matmul"),
    ],
)
def test_other_kernels_of_a_matmul_are_refused(graph: Graph, schedule: Schedule, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        launches_of(graph, cpu_group(graph), schedule)


# -- convolutions ------------------------------------------------------------------------------------------------------


def conv(cin: int = 6, cout: int = 20, size: int = 9, *, groups: int = 1, pad: int = 1, constant: bool = True) -> Graph:
    """3x3, channels last."""
    graph = Graph("conv")
    x = graph.add_input("x", TensorType("float32", (1, size, size, cin)))
    shape = (3, 3, cin // groups, cout)
    if constant:
        w = graph.constant(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    else:
        w = graph.add_input("w", TensorType("float32", shape))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "before": (pad, pad), "after": (pad, pad), "groups": groups}
    graph.outputs = [graph.emit("neg", graph.emit("conv", x, w, layout="NXC", **attrs))]
    return graph


CONV = CpuConvSchedule(1, 5, 1, 16, 2, 1, stage=True)


@pytest.mark.parametrize(
    ("changes", "tasks"),
    [
        ({}, 10),  # 9 rows by twos, 2 panels
        ({"block_tiles": 9, "block_panels": 2}, 1),
        ({"rows": 3, "columns": 9, "block_tiles": 1}, 6),
        ({"rows": 2, "columns": 4}, 6),  # 5 parts of rows by twos
        ({"lanes": 4, "vectors": 5}, 5),
        ({"stage": False}, 10),
        ({"stage": False, "rows": 3, "columns": 9, "block_tiles": 1}, 6),
        ({"stage": False, "rows": 2, "columns": 4}, 6),
        ({"spill": True}, 10),
        ({"rows_outer": True, "block_panels": 2}, 5),
        ({"widen_right": True}, 10),
        ({"prefetch_next": True}, 10),
    ],
)
def test_another_tile_or_task_of_a_convolution_is_emitted_as_it_is(changes: dict[str, Any], tasks: int) -> None:
    (launch,) = check(conv(), replace(CONV, **changes))
    assert (launch.kind, launch.tasks) == ("conv", tasks)
    assert ("staged" in text(launch)) == changes.get("stage", True)
    assert ("prefetch" in text(launch)) == changes.get("prefetch_next", False)


@pytest.mark.parametrize(
    ("graph", "schedule", "reason"),
    [
        (conv(), replace(CONV, columns=0), "0 x 1 vectors"),
        (conv(), replace(CONV, rows=9, columns=40), "360 x 1 vectors"),
        (conv(), replace(CONV, block_tiles=0), "0 tiles by 1 panels"),
        (conv(), replace(CONV, widen_right=True, rows_outer=True), "cannot walk through all"),
        (conv(constant=False), replace(CONV, prefetch_next=True), "known at run time"),
        (conv(size=130), replace(CONV, stage=False, rows=2, columns=1), "taps at the border would be written out"),
        (conv(), CpuConvTransposeSchedule(4, 1, 16, 1), "cpu_conv_transpose does not compute conv"),
        (conv(), CpuWindowSchedule("columns", 16, 1, 4, 1, 16), "cpu_window does not compute conv"),
        (conv(), GEMM, "cpu_gemm does not compute conv"),
    ],
)
def test_convolutions_that_no_kernel_computes_are_refused(graph: Graph, schedule: Schedule, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        launches_of(graph, cpu_group(graph), schedule)


def transposed() -> Graph:
    graph = Graph("transposed")
    x = graph.add_input("x", TensorType("float32", (1, 5, 6, 8)))
    w = graph.constant(np.random.default_rng(1).standard_normal((3, 3, 8, 20)).astype(np.float32))
    attrs = {"strides": (2, 2), "dilations": (1, 1), "before": (1, 1), "after": (1, 1), "groups": 1}
    attrs["output_padding"] = (0, 0)
    graph.outputs = [graph.emit("conv_transpose", x, w, layout="NXC", **attrs)]
    return graph


def test_another_tile_or_task_of_a_transposed_convolution_is_emitted_as_it_is() -> None:
    (launch,) = check(transposed(), CpuConvTransposeSchedule(4, 1, 8, 2))
    assert (launch.kind, launch.tasks) == ("conv_transpose", 18)
    with pytest.raises(KernelError, match="0 panels"):
        launches_of(transposed(), cpu_group(transposed()), CpuConvTransposeSchedule(4, 1, 8, 0))


def pool(layout: str = "NXC", width: int = 20, channels: int = 20, far: int = 1) -> Graph:
    """3x3 maxima, whose taps are `far` columns from each other."""
    graph = Graph("pool")
    shape = (1, 9, width, channels) if layout == "NXC" else (1, channels, 9, width)
    x = graph.add_input("x", TensorType("float32", shape))
    attrs = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, far), "before": (1, far), "after": (1, far)}
    graph.outputs = [graph.emit("window_reduce", x, reducer="max", layout=layout, **attrs)]
    return graph


@pytest.mark.parametrize(
    ("layout", "schedule", "tasks"),
    [
        ("NXC", CpuWindowSchedule("columns", 8, 2, 4, 3, 16), 6),
        ("NXC", CpuWindowSchedule("columns", 4, 1, 7, 9, 4), 5),
        ("NXC", CpuWindowSchedule("channels", 16, 1, 1, 1, 32), 9),
        ("NXC", CpuWindowSchedule("channels", 8, 2, 6, 3, 16), 6),
        ("NCX", CpuWindowSchedule("channels", 4, 1, 9, 9, 20), 1),
        ("NXC", CpuWindowSchedule("across", 8, 1, 1, 2, 7), 15),
        ("NCX", CpuWindowSchedule("across", 8, 1, 1, 2, 7), 15),
        ("NCX", CpuWindowSchedule("across", 32, 1, 1, 9, 5), 4),
        ("NCX", CpuWindowSchedule("line", 4, 1, 1, 9, 5), 4),
        ("NCX", CpuWindowSchedule("line", 32, 1, 1, 9, 5), 4),
        ("NCX", CpuWindowSchedule("channels", 1, 1, 1, 9, 20), 1),
        ("NCX", CpuWindowSchedule("columns", 4, 2, 2, 9, 20), 1),
    ],
)
def test_another_form_of_windows_is_emitted_as_it_is(layout: str, schedule: Schedule, tasks: int) -> None:
    (launch,) = check(pool(layout), schedule)
    assert (launch.kind, launch.tasks) == ("window", tasks)


@pytest.mark.parametrize(
    ("graph", "schedule", "reason"),
    [
        (pool(), CpuWindowSchedule("magic", 16, 1, 1, 1, 16), "no windows of form 'magic'"),
        (pool(), CpuWindowSchedule("line", 16, 1, 1, 1, 16), "channels first goes line by line"),
        (pool("NCX"), CpuWindowSchedule("line", 1, 1, 1, 1, 16), "no vectors of 1"),
        (pool("NCX"), CpuWindowSchedule("across", 1, 1, 1, 1, 16), "no vectors of 1"),
        (pool("NCX"), CpuWindowSchedule("across", 8, 1, 2, 1, 16), "one at a time"),
        (pool(), CpuWindowSchedule("columns", 16, 1, 0, 1, 16), "0 columns of 1 vectors"),
        (pool(), CpuWindowSchedule("columns", 6, 1, 1, 1, 6), "6 lanes"),
        (pool(), CpuWindowSchedule("columns", 8, 1, 1, 0, 8), "0 rows of 8 channels"),
        (pool(), CpuWindowSchedule("columns", 8, 1, 1, 1, 12), "not whole steps of 8"),
        (pool(width=20_000, far=9000), CpuWindowSchedule("columns", 8, 1, 1, 9, 20), "steps would be written out"),
        (pool(), CONV, "cpu_conv does not compute window_reduce"),
    ],
)
def test_windows_that_no_kernel_computes_are_refused(graph: Graph, schedule: Schedule, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        launches_of(graph, cpu_group(graph), schedule)


def test_windows_that_are_hardly_alike_are_scheduled_in_loops() -> None:
    schedule = cpu_group(pool(width=20_000, far=15)).schedule
    assert isinstance(schedule, CpuWindowSchedule) and schedule.form == "columns"
    schedule = cpu_group(pool(width=20_000, far=9000)).schedule
    assert isinstance(schedule, CpuWindowSchedule) and schedule.form == "channels"


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        (CpuWindowSchedule("columns", 8, 1, 3, 2, 8), "depthwise"),
        (CpuWindowSchedule("channels", 4, 2, 1, 2, 8), "depthwise"),
        (CpuConvSchedule(1, 4, 1, 4, 2, 1, stage=True), "conv"),
        (CpuConvSchedule(1, 4, 1, 4, 2, 1), "conv"),
    ],
)
def test_depthwise_convolutions_are_windows_or_gemms_of_one_channel_as_the_plan_says(
    schedule: Schedule, kind: str
) -> None:
    (launch,) = check(conv(12, 12, groups=12), schedule)
    assert launch.kind == kind


# -- attention ---------------------------------------------------------------------------------------------------------

CASE = Case(heads=2, queries=35, keys=70, width=16, columns=24, mask="float")
SCORES, WEIGHED = CpuGemmSchedule(4, 2, 16, 9, 9, 16), CpuGemmSchedule(4, 2, 8, 9, 9, 70)


def attended(schedule: Schedule | None) -> tuple[Graph, Group]:
    graph = attention(CASE)
    (group,) = make_plan(graph, PassContext(TargetInfo("cpu", 2, isa=target().isa.name))).groups
    assert isinstance(group.schedule, CpuAttentionSchedule)
    return graph, replace(group, schedule=schedule)


@pytest.mark.parametrize(
    ("schedule", "tasks"),
    [
        (CpuAttentionSchedule(35, 35, SCORES, WEIGHED), 2),
        (CpuAttentionSchedule(10, 5, SCORES, WEIGHED), 8),
        (CpuAttentionSchedule(12, 7, replace(SCORES, rows=3, vectors=3), replace(WEIGHED, k_block=20)), 6),
        (CpuAttentionSchedule(1, 1, replace(SCORES, prefetch_ahead=True), replace(WEIGHED, spill=True)), 70),
    ],
)
def test_another_task_or_tile_of_attention_is_emitted_as_it_is(schedule: CpuAttentionSchedule, tasks: int) -> None:
    graph, group = attended(schedule)
    (launch,) = lower_group(graph, group)
    assert launch.tasks == tasks
    feeds = inputs_of(CASE)
    constants = {v.name: np.asarray(v.data) for v in graph.constants}
    (result,) = run_launches([launch], {**feeds, **constants}, graph.outputs).values()
    assert_close(result, CASE, feeds)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (CpuAttentionSchedule(0, 8, SCORES, WEIGHED), "0 queries"),
        (CpuAttentionSchedule(8, 0, SCORES, WEIGHED), "blocks of 0"),
        (CpuAttentionSchedule(8, 8, replace(SCORES, lanes=3), WEIGHED), "scores: 3 lanes"),
        (CpuAttentionSchedule(8, 8, SCORES, replace(WEIGHED, block_panels=1)), "weighed: a block is computed by one"),
        (CpuAttentionSchedule(8, 8, SCORES, replace(WEIGHED, widen_right=True)), "as wide as sums already"),
        (CpuAttentionSchedule(8, 8, replace(SCORES, k_block=5, k_outer=True), WEIGHED), "no reduction is outermost"),
        (CpuAttentionSchedule(8, 8, SCORES, replace(WEIGHED, k_block=5, k_outer=True)), "no reduction is outermost"),
        (CpuAttentionSchedule(8, 8, SCORES, replace(WEIGHED, k_block=9, rows_outer=True)), "weighed: sums that wait"),
        (GEMM, "does not compute a group of kind attention"),
        (None, "has no schedule"),
    ],
)
def test_attention_that_no_kernel_computes_is_refused(schedule: Schedule | None, reason: str) -> None:
    graph, group = attended(schedule)
    with pytest.raises(KernelError, match=reason):
        lower_group(graph, group)


# -- whole plans -------------------------------------------------------------------------------------------------------


def test_a_plan_edited_by_hand_is_checked_before_code_is_generated() -> None:
    graph = gemm()
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2)))
    (group,) = plan.groups
    for schedule, reason in ((replace(GEMM, rows=0), "0 x 2 vectors"), (CONV, "does not compute matmul")):
        with pytest.raises(PlanError, match=reason):
            check_plan(replace(plan, groups=(replace(group, schedule=schedule),)), graph)
