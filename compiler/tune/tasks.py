"""Tuning tasks: the kernels of a plan, those of one structure as one task, and other schedules for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilestitch.compiler.ir import Graph, Node
from tilestitch.cost_model.facts_json import digest_of
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.plan.launches.own import KernelsOf
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.schedule.cuda.alternatives import alternatives
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.schedule.launches import completed, in_order_of
from tilestitch.passes.schedule.structure import structure_of
from tilestitch.passes.schedule.variants import variants

SHARE = 0.002
"""Least fraction of the model's time for which a kernel is tuned."""


@dataclass(frozen=True)
class TuningTask:
    """Kernels of one structure, which get the same schedule; the first is measured. latency_us: of all together, in
    the model before tuning.
    """

    structure: str
    groups: tuple[Group, ...]
    latency_us: float

    @property
    def kernel(self) -> Group:
        return self.groups[0]


def tasks_of(graph: Graph, plan: StitchPlan, latencies_us: Mapping[str, float]) -> list[TuningTask]:
    """Return the tasks of a plan, the longest first. latencies_us: by the name of each group.

    Kernels without alternatives, of open sizes, of plug-ins, and those with less than `SHARE` of the time have none.
    """
    nodes = {node.name: node for node in graph.nodes}
    alike: dict[str, list[Group]] = {}
    for group in plan.groups:
        structure = structure_digest(nodes, group, plan.target) if may_be_tuned(group) else None
        if structure is not None:
            alike.setdefault(structure, []).append(group)
    least_us = SHARE * sum(latencies_us.values())
    tasks = [
        TuningTask(structure, tuple(groups), sum(latencies_us.get(group.name, 0.0) for group in groups))
        for structure, groups in alike.items()
    ]
    found = [task for task in tasks if task.latency_us >= least_us and neighbours(nodes, task.kernel, plan.target)]
    return sorted(found, key=lambda task: (-task.latency_us, task.structure))


def structure_digest(nodes: Mapping[str, Node], group: Group, target: TargetInfo) -> str | None:
    """Return the digest of what a group computes; None for one without a structure."""
    structure = structure_of(nodes, _bare(group), TargetInfo(target.name))
    return None if structure is None else digest_of(repr(structure.key))


def _bare(group: Group) -> Group:
    return replace(group, schedule=None, stages=tuple(tuple(map(_bare, stage)) for stage in group.stages))


def may_be_tuned(group: Group) -> bool:
    """Return whether a group has schedules of its own for known sizes."""
    parts = group.parts if group.stages else (group,)
    return group.cases is None and any(part.schedule is not None for part in parts)


def neighbours(nodes: Mapping[str, Node], group: Group, target: TargetInfo) -> list[Group]:
    """Return the group with other schedules, in a fixed order: on a CPU, each one step from its own in one of its
    parts; on a GPU, also those that the rules choose among.
    """
    if target.is_gpu:
        return alternatives(nodes, group, Gpu.of(target))
    if not group.stages:
        return [replace(group, schedule=other) for other in _other_schedules(nodes, group)]
    return list(_other_parts(nodes, group, target))


def _other_schedules(nodes: Mapping[str, Node], group: Group) -> Sequence[Schedule]:
    if group.schedule is None:
        return ()
    view = look_up(nodes, group)
    roles = roles_of(view.nodes, view.outputs, view.name)
    assert isinstance(roles, Roles), roles
    return variants(view, group.kind, roles, group.schedule)


def _other_parts(nodes: Mapping[str, Node], group: Group, target: TargetInfo) -> Iterator[Group]:
    for number, stage in enumerate(group.stages):
        for place, part in enumerate(stage):
            for other in neighbours(nodes, part, target):
                changed = (*stage[:place], other, *stage[place + 1 :])
                yield replace(group, stages=(*group.stages[:number], changed, *group.stages[number + 1 :]))


def with_schedules(graph: Graph, plan: StitchPlan, found: Mapping[str, Group], kernels_of: KernelsOf) -> StitchPlan:
    """Return the plan with the schedules of other groups, and its launches in the same order. found: a group of the
    same structure, by the name of each group that is changed; kernels_of: the kernels of plug-ins.
    """
    groups = tuple(_scheduled_as(group, found[group.name]) if group.name in found else group for group in plan.groups)
    changed = completed(replace(plan, groups=groups, launches=None, edges=None), graph, kernels_of)
    return in_order_of(changed, plan, graph) if plan.target.is_gpu else changed


def _scheduled_as(group: Group, other: Group) -> Group:
    stages = tuple(
        tuple(map(_scheduled_as, stage, others)) for stage, others in zip(group.stages, other.stages, strict=True)
    )
    return replace(group, schedule=other.schedule, stages=stages)
