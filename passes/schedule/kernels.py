"""A schedule for every kernel of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.cpu.isa import isa_named
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.rows_after import WARP, RowsAfter
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.plan.launches.cuda.group import stitching_of
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up

from .cpu.choose import choose as choose_for_cpu
from .cuda.choose import choose
from .cuda.gemm import band_schedule, choose_gemm
from .cuda.gpu import Gpu


def schedule_groups(graph: Graph, groups: Sequence[Group], target: TargetInfo) -> tuple[Group, ...]:
    """The groups with schedules for `target`. A part of a stitched group has one of its own."""
    by_name = {node.name: node for node in graph.nodes}
    return tuple(schedule_group(by_name, group, target) for group in groups)


def apart_where_too_large(
    graph: Graph, groups: Sequence[Group], target: TargetInfo
) -> tuple[tuple[Group, ...], tuple[WhyNot, ...]]:
    """Scheduled groups, with the parts of those that no single launch can be as groups of their own, and why."""
    by_name = {node.name: node for node in graph.nodes}
    kept: list[Group] = []
    refusals: list[WhyNot] = []
    for group in groups:
        joined = target.is_gpu and group.stages and group.tie != "band"
        problem = stitching_of(by_name, group, Gpu.of(target).multiprocessors).why_not() if joined else None
        if problem is None:
            kept.append(group)
            continue
        refusals.append(WhyNot(group.name, "schedule.stitched", f"it would be no single launch: {problem}"))
        kept += group.parts
    return tuple(kept), tuple(refusals)


def schedule_group(by_name: Mapping[str, Node], group: Group, target: TargetInfo) -> Group:
    """A group with its schedule; `by_name` are the nodes of its graph."""
    if target.is_gpu:
        return _scheduled(by_name, group, Gpu.of(target))
    stages = tuple(tuple(schedule_group(by_name, part, target) for part in stage) for stage in group.stages)
    own = None if stages else choose_for_cpu(look_up(by_name, group), group.kind, isa_named(target.isa), target.threads)
    return replace(group, stages=stages, schedule=own)


def _banded(by_name: Mapping[str, Node], group: Group, gpu: Gpu) -> Group:
    """A GEMM and the rows after it in its launch."""
    first, rows = group.parts
    contraction, view = AnchoredGroup.of(look_up(by_name, first)), look_up(by_name, rows)
    after = RowsAfter.of(view, contraction.result.shape[-1])
    gemm = gemm_of(contraction)
    assert gemm is not None, "a convolution that is computed directly has no rows after it"
    chosen = choose_gemm(gemm, gpu, after)
    threads = WARP if isinstance(chosen.tile, WgmmaTile) else chosen.tile.threads
    parts = (replace(first, schedule=chosen),), (replace(rows, schedule=after.work(threads).schedule),)
    return replace(group, stages=parts, schedule=band_schedule(gemm, chosen, after, gpu.device))


def _scheduled(by_name: Mapping[str, Node], group: Group, gpu: Gpu) -> Group:
    if group.tie == "band":
        return _banded(by_name, group, gpu)
    if group.stages:
        stages = tuple(tuple(_scheduled(by_name, part, gpu) for part in stage) for stage in group.stages)
        return replace(group, stages=stages)
    return replace(group, schedule=choose(look_up(by_name, group), group.kind, gpu))
