"""How many launches a group becomes on a CPU, and how many tasks each has: what its schedule says."""

from __future__ import annotations

from dataclasses import dataclass

from tilestitch.compiler.ir import Kind, kind_of

from .anchored import AnchoredGroup
from .cpu.anchors import AnchoredSchedule, plan_of
from .cpu.attention import AttentionPlan, attention_of
from .cpu.checks import check_tasks
from .cpu.loops import LoopPlan
from .cpu.opaque import OpaqueSchedule, ScatterPlan, opaque_plan
from .cpu.rows import RowGroup, RowPlan
from .cpu.schedules import CpuAttentionSchedule, CpuLoopSchedule, CpuRowSchedule, CpuSchedule, CpuSplitRowSchedule
from .index_checks import pending_checks
from .parts import Roles
from .roles import roles_of
from .split_rows import pieces_of
from .view import GroupView


@dataclass(frozen=True)
class CpuLaunch:
    """`tasks` that threads draw, each with a workspace of `scratch_bytes`."""

    tasks: int
    scratch_bytes: int = 0


def cpu_launches(view: GroupView, schedule: CpuSchedule) -> tuple[CpuLaunch, ...]:
    """The launches of a group of one part, in order; none if it stores no elements.

    The schedule is one that `schedule_check.why_not` has no objection to. Indices are checked first, but scatters check
    theirs themselves.
    """
    if not view.stored:
        return ()
    alone = view.anchor is not None and kind_of(view.anchor.op) is Kind.OPAQUE
    pending = {} if alone else pending_checks(view.nodes)
    return (*(CpuLaunch(check_tasks(checks)) for checks in pending.values()), *_scheduled(view, schedule))


def _scheduled(view: GroupView, schedule: CpuSchedule) -> tuple[CpuLaunch, ...]:
    match schedule:
        case CpuLoopSchedule():
            return (_loops(view.stored[0].tensor_type.num_elements, schedule),)
        case CpuRowSchedule():
            return (_rows(RowGroup(view.nodes, _roles(view), view.inputs, view.stored), schedule),)
        case CpuSplitRowSchedule():
            return _split_rows(view, schedule)
        case CpuAttentionSchedule():
            attention = AttentionPlan(attention_of(AnchoredGroup.of(view)), schedule)
            return (CpuLaunch(attention.tasks, attention.scratch_bytes),)
    return _opaque(view, schedule) if isinstance(schedule, OpaqueSchedule) else (_anchored(view, schedule),)


def _roles(view: GroupView) -> Roles:
    roles = roles_of(view.nodes, view.outputs, view.name)
    assert isinstance(roles, Roles), roles
    return roles


def _loops(elements: int, schedule: CpuLoopSchedule) -> CpuLaunch:
    return CpuLaunch(LoopPlan(elements, schedule).tasks)


def _rows(group: RowGroup, schedule: CpuRowSchedule) -> CpuLaunch:
    plan = RowPlan(group, schedule)
    return CpuLaunch(plan.tasks, plan.scratch_bytes)


def _split_rows(view: GroupView, schedule: CpuSplitRowSchedule) -> tuple[CpuLaunch, ...]:
    rows = _roles(view).rows
    assert rows is not None
    pieces, _ = pieces_of(view, view.stored, rows, schedule.parts)
    return tuple(
        _rows(RowGroup(piece.nodes, own, piece.inputs, piece.outputs), each)
        if isinstance(each, CpuRowSchedule)
        else _loops(piece.outputs[0].tensor_type.num_elements, each)
        for (piece, own), each in zip(pieces, schedule.pieces, strict=True)
    )


def _anchored(view: GroupView, schedule: AnchoredSchedule) -> CpuLaunch:
    plan = plan_of(AnchoredGroup.of(view), schedule)
    assert not isinstance(plan, str), plan
    return CpuLaunch(plan.tasks, plan.scratch_bytes)


def _opaque(view: GroupView, schedule: OpaqueSchedule) -> tuple[CpuLaunch, ...]:
    assert view.anchor is not None
    plan = opaque_plan(view.anchor, schedule)
    assert not isinstance(plan, str), plan
    if not isinstance(plan, ScatterPlan):
        return (CpuLaunch(plan.tasks, plan.scratch_bytes),)
    copy = CpuLaunch(plan.copy_tasks)
    return (copy, CpuLaunch(plan.tasks)) if plan.tasks else (copy,)
