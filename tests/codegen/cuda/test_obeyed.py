"""Plans edited by hand: code generation emits the schedule that it is given, or says why it cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.attention_graphs import Case, attention
from tests.codegen.cuda.contraction_harness import check, run
from tests.codegen.cuda.cuda_harness import scheduled, target
from tests.codegen.kernel_harness import interpret, one_group
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes import PassContext, PlanError, check_plan, make_plan
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.attention.tiles import AttentionMmaTile, AttentionSimtTile
from tilestitch.passes.plan.gemm.tiles import GemvTile, MmaTile, SimtTile, WgmmaTile
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    DirectSchedule,
    ElementwiseSchedule,
    GemmSchedule,
    OpenAttentionSchedule,
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
        (ElementwiseSchedule(256, 1, 1, 1), "cut_axis is 1, but nothing is cut"),
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


# -- GEMMs -------------------------------------------------------------------------------------------------------------


def gemm(m: int = 70, n: int = 80, k: int = 256, dtype: str = "float32") -> Graph:
    graph = Graph("gemm")
    x, w = graph.add_input("x", TensorType(dtype, (m, k))), graph.add_input("w", TensorType(dtype, (k, n)))
    graph.outputs = [graph.emit("tanh", graph.emit("matmul", x, w))]
    return graph


@pytest.mark.parametrize(
    ("dtype", "tile", "split_k", "grid", "threads", "kind"),
    [
        ("float32", SimtTile(64, 64, 16, 4, 4), 1, 4, 256, "gemm_simt"),
        ("float32", SimtTile(32, 32, 64, 4, 8, slices=8), 4, 36, 256, "gemm_simt"),
        ("float16", MmaTile(64, 64, 32, 2, 2, stages=3), 2, 8, 128, "gemm_mma"),
        ("float16", MmaTile(128, 64, 32, 2, 2), 1, 2, 128, "gemm_mma"),
    ],
)
def test_another_tile_or_split_k_is_emitted_as_it_is(
    dtype: str, tile: SimtTile | MmaTile, split_k: int, grid: int, threads: int, kind: str
) -> None:
    graph = gemm(dtype=dtype)
    group = replace(one_group(graph), schedule=GemmSchedule(tile, split_k))
    (launch,) = check(graph, lower_group(graph, group, target()))
    assert (launch.grid, launch.threads, launch.kind) == ((grid, 1, 1), threads, kind)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (GemmSchedule(MmaTile(64, 64, 32, 2, 2)), "float32 must not be rounded to TF32"),
        (GemmSchedule(WgmmaTile(64, 64, 1, False, 4), blocks=2), "not sm_90a alone"),
        (GemmSchedule(SimtTile(64, 64, 16, 3, 4)), "do not fill a tile"),
        (GemmSchedule(SimtTile(128, 128, 32, 8, 8)), "bytes of shared memory"),
        (GemmSchedule(SimtTile(64, 64, 16, 4, 4), split_k=0), "0 parts of the reduction"),
        (GemmSchedule(SimtTile(64, 64, 16, 4, 4), split_k=17), "split_k is 17: 16 steps .* cut into 16 parts"),
        (GemmSchedule(SimtTile(64, 64, 16, 4, 4), split_k=7), "split_k is 7: 16 steps .* cut into 6 parts"),
        (GemmSchedule(SimtTile(64, 64, 16, 4, 4), split_k=1 << 62), "split_k is 4611686018427387904"),
        (GemmSchedule(SimtTile(64, 64, 16, 4, 4), tile_rows=3), "tile_rows is 3: there are 2 rows of tiles"),
        (GemmSchedule(SimtTile(64, 64, 16, 4, 4), blocks=7), "only blocks of wgmma walk over tiles"),
        (GemmSchedule(GemvTile(8, 16, 512, True)), "gemv has at most 8 rows, not 70"),
        (DirectSchedule(128), "not computed directly"),
        (RowSchedule(4, 32, 4), "does not compute a group of kind contraction"),
    ],
)
def test_gemms_that_no_kernel_computes_are_refused(schedule: Schedule, reason: str) -> None:
    graph = gemm()
    with pytest.raises(KernelError, match=reason):
        lower_group(graph, replace(one_group(graph), schedule=schedule), target())


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (GemmSchedule(WgmmaTile(64, 512, 1, False, 2), blocks=1), "256 sums of 512 columns"),
        (GemmSchedule(WgmmaTile(256, 256, 1, False, 3), blocks=1), "512 sums of 256 columns"),
        (GemmSchedule(WgmmaTile(192, 64, 3, False, 3), blocks=1), "3 warpgroups share a tile"),
        (GemmSchedule(WgmmaTile(128, 64, 2, True, 3), blocks=1), "2 warpgroups share a tile"),
        (GemmSchedule(WgmmaTile(0, 64, 1, False, 3), blocks=1), "0 rows are not shared"),
        (GemmSchedule(WgmmaTile(64, 0, 1, False, 3), blocks=1), "0 columns are not shared"),
        (GemmSchedule(WgmmaTile(64, 64, 1, False, 3), blocks=9), "9 blocks walk over 4 tiles"),
        (GemmSchedule(WgmmaTile(64, 64, 1, False, 3), split_k=3, blocks=1), "split_k is 3: 4 steps .* 2 parts"),
        (GemmSchedule(WgmmaTile(64, 64, 1, False, 3), blocks=1, tile_rows=9), "tile_rows is 9: there are 2 rows"),
        (GemmSchedule(WgmmaTile(64, 64, 1, False, 3), split_k=2, blocks=2**31 - 1), "blocks walk over 8 tiles"),
        (GemmSchedule(MmaTile(0, 64, 32, 2, 2)), "do not share a tile of 0 x 64"),
        (GemmSchedule(MmaTile(64, 0, 32, 2, 2)), "do not share a tile of 64 x 0"),
    ],
)
def test_tiles_that_no_tensor_core_computes_are_refused(schedule: GemmSchedule, reason: str) -> None:
    graph, hopper = gemm(128, 128, dtype="float16"), target("cuda:sm_90a")
    with pytest.raises(KernelError, match=reason):
        lower_group(graph, replace(one_group(graph), schedule=schedule), hopper)


def test_a_plan_edited_by_hand_is_checked_before_code_is_generated() -> None:
    graph = gemm()
    plan = make_plan(graph, PassContext(target().planned_for))
    (group,) = plan.groups
    for schedule, reason in (
        (GemmSchedule(SimtTile(128, 128, 32, 8, 8)), "bytes of shared memory"),
        (WindowSchedule(256), "does not compute"),
    ):
        with pytest.raises(PlanError, match=reason):
            check_plan(replace(plan, groups=(replace(group, schedule=schedule),)), graph)


# -- attention ---------------------------------------------------------------------------------------------------------

CASE = Case(heads=2, queries=35, keys=70, width=16, columns=16)


def attended(schedule: Schedule | None) -> tuple[Graph, Group]:
    graph = attention(CASE)
    (group,) = make_plan(graph, PassContext(target().planned_for)).groups
    assert isinstance(group.schedule, AttentionSchedule)
    return graph, replace(group, schedule=schedule)


@pytest.mark.parametrize(
    ("schedule", "grid", "threads"),
    [
        (AttentionSchedule(AttentionSimtTile(32, 32, 16, 16, 4)), 4, 128),
        (AttentionSchedule(AttentionSimtTile(16, 16, 16, 16, 4), split_keys=2), 12, 64),
        (AttentionSchedule(AttentionSimtTile(8, 64, 16, 16, 4, 2)), 10, 64),
    ],
)
def test_another_tile_of_attention_is_emitted_as_it_is(schedule: AttentionSchedule, grid: int, threads: int) -> None:
    graph, group = attended(schedule)
    launches = lower_group(graph, group, target())
    assert (launches[0].grid, launches[0].threads) == ((grid, 1, 1), threads)
    assert len(launches) == (2 if schedule.split_keys > 1 else 1)
    check(graph, launches)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (AttentionSchedule(AttentionMmaTile(4, 32, 16, 16)), "do not compute attention of float32"),
        (AttentionSchedule(AttentionSimtTile(32, 32, 24, 16, 4)), "another width than 16"),
        (AttentionSchedule(AttentionSimtTile(20, 32, 16, 16, 4)), "do not fill a tile"),
        (AttentionSchedule(AttentionSimtTile(64, 32, 16, 16, 4, 8)), "sums of eight rows"),
        (AttentionSchedule(AttentionSimtTile(32, 8192, 16, 16, 4)), "bytes of shared memory"),
        (AttentionSchedule(AttentionSimtTile(32, 32, 16, 16, 4), 0), "cut into 0 parts"),
        (AttentionSchedule(AttentionSimtTile(32, 32, 16, 16, 4), 4), "split_keys is 4: 3 tiles of keys .* 3 parts"),
        (AttentionSchedule(AttentionSimtTile(32, 16, 16, 16, 4), 4), "split_keys is 4: 5 tiles of keys .* 3 parts"),
        (OpenAttentionSchedule(AttentionSimtTile(32, 32, 16, 16, 4), 2), "split_keys is 2; .* so it is 1"),
        (OpenAttentionSchedule(AttentionSimtTile(32, 32, 16, 16, 4), 1, 64, 0), "least_steps is 0; .* at least one"),
        (OpenAttentionSchedule(AttentionSimtTile(32, 32, 16, 16, 4), 1, 40), "of 40 rows are no whole tiles of 32"),
        (OpenAttentionSchedule(AttentionSimtTile(32, 32, 16, 16, 4), 1, 1 << 27), "or too many"),
        (OpenAttentionSchedule(AttentionSimtTile(32, 32, 16, 16, 4), 1, -32), "-32 rows .* or too many or few"),
        (WindowSchedule(256), "does not compute attention"),
        (None, "it was not scheduled"),
    ],
)
def test_attention_that_no_kernel_computes_is_refused(schedule: Schedule | None, reason: str) -> None:
    graph, group = attended(schedule)
    with pytest.raises(KernelError, match=reason):
        lower_group(graph, group, target())
