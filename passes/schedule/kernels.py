"""A schedule for every kernel of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up

from .cuda.choose import choose
from .cuda.gpu import Gpu


def schedule_groups(graph: Graph, groups: Sequence[Group], target: TargetInfo) -> tuple[Group, ...]:
    """The groups with schedules for `target`. A part of a stitched group has one of its own."""
    by_name = {node.name: node for node in graph.nodes}
    return tuple(schedule_group(by_name, group, target) for group in groups)


def schedule_group(by_name: Mapping[str, Node], group: Group, target: TargetInfo) -> Group:
    """A group with its schedule; `by_name` are the nodes of its graph."""
    if not target.name.startswith("cuda"):
        return group
    return _scheduled(by_name, group, Gpu.of(target))


def _scheduled(by_name: Mapping[str, Node], group: Group, gpu: Gpu) -> Group:
    if group.stages:
        stages = tuple(tuple(_scheduled(by_name, part, gpu) for part in stage) for stage in group.stages)
        return replace(group, stages=stages)
    return replace(group, schedule=choose(look_up(by_name, group), group.kind, gpu))
