"""Scheduling of all kernels of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tilestitch.compiler.ir import Graph, Node
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.launches.cuda.group import stitching_of
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.schedules import RowSchedule, Schedule, SplitRowSchedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up

from .cpu.choose import choose as choose_for_cpu
from .cuda.blocks import choose_blocks
from .cuda.choose import choose
from .cuda.gemm import choose_gemm, gemm_and_rows, with_bands
from .cuda.gpu import Gpu
from .cuda.rows import row_scheme
from .structure import Known, Structure, structure_of

Schedules: TypeAlias = tuple[Schedule | None, tuple[tuple["Schedules", ...], ...]]
"""The schedules of a group, and of the parts of its stages."""
_KNOWN: Known[Schedules] = Known()


def schedule_groups(
    graph: Graph, groups: Sequence[Group], target: TargetInfo, model: LatencyModel
) -> tuple[Group, ...]:
    """Return the groups with schedules for `target`, chosen by `model`, and with the schemes by which their threads
    communicate within rows. Parts of a stitched group have their own schedules.
    """
    by_name = {node.name: node for node in graph.nodes}
    scheduled = (schedule_group(by_name, group, target, model) for group in groups)
    return tuple(_with_schemes(by_name, group) for group in scheduled)


def without_schedule(group: Group) -> Group:
    """Return the group without schedules, for kernels of a plug-in."""
    stages = tuple(tuple(without_schedule(part) for part in stage) for stage in group.stages)
    return replace(group, stages=stages, schedule=None)


def apart_where_too_large(
    graph: Graph, groups: Sequence[Group], target: TargetInfo
) -> tuple[tuple[Group, ...], tuple[WhyNot, ...]]:
    """Return the scheduled groups, replacing those that cannot be a single launch with their parts, and the reasons."""
    by_name = {node.name: node for node in graph.nodes}
    kept: list[Group] = []
    refusals: list[WhyNot] = []
    for group in groups:
        joined = target.is_gpu and group.stages and group.tie not in ("band", "block")
        problem = stitching_of(by_name, group, Gpu.of(target).multiprocessors).why_not() if joined else None
        if problem is None:
            kept.append(group)
            continue
        refusals.append(WhyNot(group.name, "schedule.stitched", f"it would be no single launch: {problem}"))
        kept += group.parts
    return tuple(kept), tuple(refusals)


def schedule_group(
    by_name: Mapping[str, Node],
    group: Group,
    target: TargetInfo,
    model: LatencyModel,
    structure: Structure | None = None,
) -> Group:
    """Return a group with the schedule that `model` predicts to be fastest; `by_name` are the graph's nodes. structure:
    of the group, if known.
    """
    structure = structure or structure_of(by_name, group, target)
    if structure is None:
        return _scheduled(by_name, group, target, model)
    _, schedules = _KNOWN.of(structure, model, lambda: _schedules_of(_scheduled(by_name, group, target, model)))
    return _with(group, schedules)


def _schedules_of(group: Group) -> Schedules:
    return group.schedule, tuple(tuple(map(_schedules_of, stage)) for stage in group.stages)


def _with(group: Group, schedules: Schedules) -> Group:
    own, stages = schedules
    parts = tuple(tuple(map(_with, *stage)) for stage in zip(group.stages, stages, strict=True))
    return replace(group, schedule=own, stages=parts)


def _with_schemes(by_name: Mapping[str, Node], group: Group) -> Group:
    stages = tuple(tuple(_with_schemes(by_name, part) for part in stage) for stage in group.stages)
    within = {(s.producer, s.consumer): s for stage in stages for part in stage for s in part.stitches}
    if isinstance(group.schedule, RowSchedule | SplitRowSchedule):
        view = look_up(by_name, group)
        roles = legal_roles(view)
        assert roles.rows is not None, roles
        scheme = row_scheme(roles.rows, group.schedule)
        within = {(s.producer, s.consumer): replace(s, scheme=scheme) for s in group.stitches if s.scheme == "row"}
    stitches = tuple(within.get((s.producer, s.consumer), s) for s in group.stitches)
    return replace(group, stages=stages, stitches=stitches)


def _scheduled(by_name: Mapping[str, Node], group: Group, target: TargetInfo, model: LatencyModel) -> Group:
    if group.tie == "band":
        return _banded(by_name, group, Gpu.of(target), model)
    if group.tie == "block":
        return choose_blocks(by_name, group, Gpu.of(target), model)
    if group.stages:
        stages = tuple(tuple(schedule_group(by_name, part, target, model) for part in stage) for stage in group.stages)
        return replace(group, stages=stages)
    if target.is_gpu:
        return replace(group, schedule=choose(by_name, group, Gpu.of(target), model))
    return replace(group, schedule=choose_for_cpu(by_name, group, target, model))


def _banded(by_name: Mapping[str, Node], group: Group, gpu: Gpu, model: LatencyModel) -> Group:
    """Return the group of a GEMM and the rows after it in one launch, scheduled."""
    gemm, after = gemm_and_rows(by_name, group)
    return with_bands(group, gemm, choose_gemm(gemm, gpu, model, after), after, gpu.device)
