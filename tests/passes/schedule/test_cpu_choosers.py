"""What schedules of CPUs follow from, and their cycles: columns of an image, and where rows of an operand lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilestitch.passes.plan.cpu.conv import ConvPlan, ConvTransposeShape
from tilestitch.passes.plan.cpu.gemm import GemmPlan, GemmShape
from tilestitch.passes.plan.cpu.images import ConvShape
from tilestitch.passes.plan.cpu.isa import AVX2, AVX512, Isa, isa_named
from tilestitch.passes.plan.cpu.schedules import CpuDotGemmSchedule
from tilestitch.passes.plan.cpu.window import WindowPlan
from tilestitch.passes.schedule.cpu.conv import choose_conv, choose_conv_transpose
from tilestitch.passes.schedule.cpu.cycles import gemm_cycles
from tilestitch.passes.schedule.cpu.gemm import choose_gemm
from tilestitch.passes.schedule.cpu.tasks import choose_blocks
from tilestitch.passes.schedule.cpu.window import choose_window


@pytest.mark.parametrize(
    "columns, isa, form, lanes",
    [(56, AVX512, "line", 16), (15, AVX512, "line", 8), (7, AVX512, "line", 4), (7, AVX2, "line", 4),
     (8, AVX2, "line", 8), (3, AVX512, "channels", 1), (1, AVX512, "channels", 1)],
)  # fmt: skip
def test_short_rows_are_pooled_in_narrower_vectors(columns: int, isa: Isa, form: str, lanes: int) -> None:
    shape = ConvShape(
        1, 8, 8, (9, columns), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), 8, channels_last=False, pools=True
    )
    schedule = choose_window(shape, isa, 1)
    assert (schedule.form, schedule.lanes) == (form, lanes)
    assert not list(WindowPlan.of(shape, schedule).reasons())


@pytest.mark.parametrize("kernel, form, lanes", [(3, "across", 8), (9, "across", 4), (13, "channels", 1)])
def test_windows_that_are_no_pools_run_across_as_many_columns_as_lie_inside(kernel: int, form: str, lanes: int) -> None:
    pad = kernel // 2
    shape = ConvShape(1, 8, 8, (14, 14), (kernel,) * 2, (1, 1), (1, 1), ((pad, pad),) * 2, 8, channels_last=False)
    schedule = choose_window(shape, AVX512, 1)
    assert (schedule.form, schedule.lanes) == (form, lanes)


@pytest.mark.parametrize(
    "output, channels, isa, vectors, columns",
    [(64, 16, AVX512, 1, 8), (64, 64, AVX512, 2, 8), (9, 64, AVX512, 3, 5), (1, 512, AVX512, 8, 1),
     (64, 64, AVX2, 1, 8)],
)  # fmt: skip
def test_windows_of_many_taps_hold_sums_of_several_columns_in_half_of_the_registers(
    output: int, channels: int, isa: Isa, vectors: int, columns: int
) -> None:
    shape = ConvShape(1, channels, channels, (output + 63,), (64,), (1,), (1,), ((0, 0),), channels)
    schedule = choose_window(shape, isa, 1)
    assert (schedule.form, schedule.vectors, schedule.columns) == ("channels", vectors, columns)


@pytest.mark.parametrize("k, meet", [(1024, True), (3072, True), (512, False), (768, False), (1000, False)])
def test_rows_that_meet_in_a_set_of_the_cache_are_predicted_to_take_longer_than_copied(k: int, meet: bool) -> None:
    shape = GemmShape(128, 256, k)
    schedule = choose_gemm(shape, AVX512, 1)
    there, copied = (gemm_cycles(GemmPlan(shape, replace(schedule, stage_left=copy)), AVX512) for copy in (False, True))
    assert (copied < there) == schedule.stage_left == meet


@pytest.mark.parametrize(
    "columns, isa, lanes",
    [(8, AVX512, 8), (3, AVX512, 8), (1, AVX512, 8), (9, AVX512, 16), (24, AVX512, 16), (3, AVX2, 8)],
)
def test_columns_that_half_a_register_holds_are_multiplied_in_half_of_it(columns: int, isa: Isa, lanes: int) -> None:
    image = ConvShape(1, 16, columns, (12, 12), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), 1)
    phase = ConvTransposeShape(1, 16, columns, (12, 12), (24, 24), (4, 4), (2, 2), (1, 1), (1, 1))
    conv = choose_conv(image, isa, 1)
    assert choose_gemm(GemmShape(64, columns, 32), isa, 1).lanes == conv.lanes == lanes
    assert choose_conv_transpose(phase, isa, 1).lanes == lanes
    assert not list(ConvPlan(image, 2, conv).reasons())


def test_what_multiplies_groups_keeps_the_lanes_that_it_has() -> None:
    halves = isa_named("avx512", half_dot="vdpbf16ps")
    shape = GemmShape(64, 8, 32, packed=True, a_dtype="bfloat16", b_dtype="bfloat16")
    schedule = choose_gemm(shape, halves, 1)
    assert isinstance(schedule, CpuDotGemmSchedule) and schedule.lanes == 16


def test_few_rows_fit_in_a_cache_wherever_they_lie() -> None:
    shape = GemmShape(8, 256, 1024)
    assert not GemmPlan(shape, choose_gemm(shape, AVX512, 1)).rows_meet


@pytest.mark.parametrize("rows", [15, 16, 28, 48, 64, 128, 1000])
@pytest.mark.parametrize("threads", [1, 2])
def test_weights_that_no_cache_keeps_are_asked_for_and_read_by_few_tasks(rows: int, threads: int) -> None:
    shape = GemmShape(rows, 1024, 4096)
    schedule = choose_gemm(shape, AVX512, threads)
    assert schedule.prefetch_next != schedule.prefetch_ahead
    assert schedule.block_tiles > 1 or GemmPlan(shape, schedule).rows.parts == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("threads", [1, 16])
def test_tasks_of_a_result_that_is_cut_into_thousands_are_no_single_tiles(dtype: str, threads: int) -> None:
    schedule = choose_gemm(GemmShape(100_000, 50_000, 4096, b_dtype=dtype), AVX512, threads)
    assert schedule.block_tiles > 1 and schedule.block_panels > 1


@pytest.mark.parametrize("changes", [{"k_outer": False, "k_block": 4096, "block_tiles": 4}, {"k_block": 16}])
def test_what_is_read_again_and_sums_that_wait_count_where_latency_is_predicted(changes: dict[str, Any]) -> None:
    shape = GemmShape(512, 4096, 4096)
    schedule = choose_gemm(shape, AVX512, 1)
    assert schedule.k_outer
    others = replace(schedule, **changes)
    assert gemm_cycles(GemmPlan(shape, others), AVX512) > 1.1 * gemm_cycles(GemmPlan(shape, schedule), AVX512)


def test_the_last_task_counts_for_what_it_takes() -> None:
    """Five rows of tiles, of which three are the most: a task of three and one of two, not two of three."""
    cost = {3: 130.0, 2: 100.0, 1: 60.0}
    for threads in (1, 2):
        assert choose_blocks(5, 1, 1, threads, lambda tiles, panels: cost.get(tiles)) == (3, 1)
