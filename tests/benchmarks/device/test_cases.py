"""The smoke cases of the device queue have every kind of kernel that the compiler makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from benchmarks.device import bundle_pairs, open_cases, pair_models
from benchmarks.device.bundle_cases import CASES, VARIANTS, Family
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.plan.attention.tiles import AttentionMmaTile, AttentionSimtTile
from tilestitch.passes.plan.cpu.schedules import CpuSchedule
from tilestitch.passes.plan.gemm.tiles import MmaTile, OpenGemvTile, SimtTile, Tile, WgmmaTile
from tilestitch.passes.plan.launches.launch import ONE
from tilestitch.passes.plan.schedules import (
    OPERATORS,
    AttentionSchedule,
    ElementwiseSchedule,
    GemmSchedule,
    OpenAttentionSchedule,
    OpenElementwiseSchedule,
    OpenGemmSchedule,
    OpenRowSchedule,
    OperatorSchedule,
    RankSchedule,
    RowSchedule,
    ScanSchedule,
    ScatterSchedule,
    Schedule,
    SortSchedule,
    WindowSchedule,
)
from tilestitch.passes.plugins.testing import plan_of

KINDS = {
    "injective", "transpose", "rowwise", "packed", "stages", "gemv", "gemm_simt", "gemm_mma", "gemm_wgmma",
    "conv_direct", "attention_simt", "attention_mma", "join", "window", "cumulative", "top_k", "copy", "scatter_nd",
    "scatter_nd_claim", "scatter_elements", "scatter_elements_claim", "check", "tickets", "blocks",
}  # fmt: skip
"""Of launches."""
OPEN = {
    OpenAttentionSchedule, OpenElementwiseSchedule, OpenGemmSchedule, OpenRowSchedule, RankSchedule, OperatorSchedule,
    OpenGemvTile,
}  # fmt: skip
"""What only kernels over open dimensions have; the queue has cases of their own for these."""


@pytest.fixture(scope="module")
def plans() -> list[StitchPlan]:
    """Of the smoke cases, in float32 without tensor cores and in half floats."""
    return [
        plan
        for family in CASES.values()
        for name in family.smoke
        if VARIANTS[name].precision == "fp32"
        for plan in planned(family, name).walk()
    ]


def planned(family: Family, variant: str) -> StitchPlan:
    return plan_of(family.make(VARIANTS[variant].dtype), family.passes, target="cuda:h200", sync=family.sync)


def groups(plans: list[StitchPlan]) -> Iterator[Group]:
    """Kernels, and the parts of stitched ones."""
    for plan in plans:
        for group in plan.groups:
            yield from (group, *group.parts)


def test_every_kind_of_launch(plans: list[StitchPlan]) -> None:
    assert {launch.kind for plan in plans for launch in plan.launches or ()} == KINDS


def test_every_template_and_tile(plans: list[StitchPlan]) -> None:
    schedules = [group.schedule for group in groups(plans)]
    found = {type(schedule) for schedule in schedules}
    found |= {type(s.tile) for s in schedules if isinstance(s, (GemmSchedule, AttentionSchedule))}
    wanted = {*get_args(Schedule), *get_args(Tile), AttentionSimtTile, AttentionMmaTile}
    assert wanted - set(get_args(CpuSchedule)) - OPEN <= found


def compiled_open(case: open_cases.OpenCase) -> CompiledModel:
    return compile_model(case.model(), "emulator", donate=case.donate)


def test_kernels_over_open_dimensions_are_in_the_queue() -> None:
    small = [case for case in open_cases.CASES.values() if isinstance(case, open_cases.OpenCase)]
    plans = [one.plan for case in small for one in compiled_open(case).specialisations]
    groups = [case for plan in plans for each in plan.walk() for group in each.groups for case in group.by_case]
    tiles = {type(g.schedule.tile) for g in groups if isinstance(g.schedule, GemmSchedule)}
    assert {type(g.schedule) for g in groups} | tiles >= {*OPEN, ScanSchedule, ScatterSchedule, WindowSchedule}
    assert tiles == {SimtTile, MmaTile, OpenGemvTile}
    assert {launch.kind for plan in plans for each in plan.walk() for launch in each.launches or ()} >= {*OPERATORS}


FORMS: dict[str, Any] = {
    "split-K on the arithmetic units": lambda s: is_gemm(s, SimtTile) and s.split_k > 1,
    "split-K by mma": lambda s: is_gemm(s, MmaTile) and s.split_k > 1,
    "split-K by wgmma": lambda s: is_gemm(s, WgmmaTile) and s.split_k > 1,
    "keys cut into parts on the arithmetic units": lambda s: has_parts(s, AttentionSimtTile),
    "keys cut into parts on tensor cores": lambda s: has_parts(s, AttentionMmaTile),
    "operands of a concat": lambda s: isinstance(s, ElementwiseSchedule) and s.cuts,
    "rows shared by blocks": lambda s: isinstance(s, RowSchedule) and s.blocks_per_row > 1,
    "running sums by block": lambda s: isinstance(s, ScanSchedule) and s.by_block,
    "running sums by thread": lambda s: isinstance(s, ScanSchedule) and not s.by_block,
    "sorting in shared memory": lambda s: isinstance(s, SortSchedule) and s.in_shared,
    "sorting in global memory": lambda s: isinstance(s, SortSchedule) and not s.in_shared,
    "updates that claim their places": lambda s: isinstance(s, ScatterSchedule) and s.by_claims,
    "updates that meet no other": lambda s: isinstance(s, ScatterSchedule) and not s.by_claims,
}  # fmt: skip


def is_gemm(schedule: Schedule | None, tile: type) -> bool:
    return isinstance(schedule, GemmSchedule) and isinstance(schedule.tile, tile)


def has_parts(schedule: Schedule | None, tile: type) -> bool:
    return isinstance(schedule, AttentionSchedule) and isinstance(schedule.tile, tile) and schedule.split_keys > 1


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_template(form: str, plans: list[StitchPlan]) -> None:
    assert any(FORMS[form](group.schedule) for group in groups(plans))


def test_launches_that_are_more_than_a_grid_of_blocks(plans: list[StitchPlan]) -> None:
    launches = [launch for plan in plans for launch in plan.launches or ()]
    assert any(launch.cluster != ONE for launch in launches)
    assert any(launch.cooperative and launch.elastic for launch in launches)
    assert any(launch.cooperative and not launch.elastic for launch in launches)
    assert any(launch.shared_bytes > 48 * 1024 for launch in launches)


@pytest.mark.parametrize(
    ("name", "variant", "tile"),
    [("dense_norm", "float32", "simt"), ("dense_norm", "float16", "mma"), ("dense_norm_wide", "float16", "wgmma")],
)
def test_rows_after_gemms_of_every_kind_are_judged(name: str, variant: str, tile: str) -> None:
    (group,) = planned(CASES[name], variant).groups
    assert group.tie == "band"
    gemm = group.parts[0]
    assert isinstance(gemm.schedule, GemmSchedule) and gemm.schedule.tile.template == tile


@pytest.mark.parametrize(
    ("name", "variant", "tile"),
    [("block_weights_small", "float32", "simt"), ("block_weights_small", "float16", "mma"),
     ("block_weights_few", "float32", "gemv"), ("block_weights_bytes", "float16", "gemv"),
     ("small_floats_small", "e4m3", "mma"), ("small_floats_few", "e4m3", "gemv")],
)  # fmt: skip
def test_kernels_of_narrow_weights_are_judged(name: str, variant: str, tile: str) -> None:
    assert variant in CASES[name].smoke
    (group,) = planned(CASES[name], variant).groups
    assert isinstance(group.schedule, GemmSchedule) and group.schedule.tile.template == tile


@pytest.mark.parametrize("mlp", pair_models.MLPS)
def test_pairs_are_tied_in_every_way(mlp: str) -> None:
    """As the queue times them: the forms differ in what ties their kernels, and in nothing that they compute."""
    ties = {}
    for form, sync in pair_models.FORMS.items():
        plan = plan_of(bundle_pairs.onnx_of(mlp, 768), target="cuda:h200", sync=sync)
        ties[form] = {group.tie for group in plan.groups if group.stages and group.tie in ("tickets", "launches")}
    assert ties[pair_models.APART] == set()
    assert all(ties[form] == {"launches"} for form in ("pdl", "rows", "tiles"))
