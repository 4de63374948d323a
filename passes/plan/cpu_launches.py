"""How many launches a group becomes on a CPU, and how many tasks each has: what its schedule says."""

from __future__ import annotations

from dataclasses import dataclass

from .anchored import AnchoredGroup
from .cpu.anchors import AnchoredSchedule, plan_of
from .cpu.attention import AttentionPlan, attention_of
from .cpu.schedules import CpuAttentionSchedule
from .group import GroupKind
from .schedules import Schedule
from .view import GroupView


@dataclass(frozen=True)
class CpuLaunch:
    """`tasks` that threads draw, each with a workspace of `scratch_bytes`."""

    tasks: int
    scratch_bytes: int = 0


def cpu_launches(view: GroupView, kind: GroupKind, schedule: Schedule) -> tuple[CpuLaunch, ...]:
    """The launches of a group of one part, in order, without those that check indices; none if it stores no elements.

    The schedule is one that `schedule_check.why_not` has no objection to.
    """
    if not view.stored:
        return ()
    if isinstance(schedule, CpuAttentionSchedule):
        attention = AttentionPlan(attention_of(AnchoredGroup.of(view)), schedule)
        return (CpuLaunch(attention.tasks, attention.scratch_bytes),)
    if isinstance(schedule, AnchoredSchedule):
        plan = plan_of(AnchoredGroup.of(view), schedule)
        assert not isinstance(plan, str), plan
        return (CpuLaunch(plan.tasks, plan.scratch_bytes),)
    raise NotImplementedError(schedule.template)
