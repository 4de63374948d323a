"""The schedule of any group for a CPU, as far as it is not left to the templates."""

from __future__ import annotations

from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import CpuRowSchedule, Schedule
from tilestitch.passes.plan.view import GroupView

from .attention import choose_attention
from .rows import parts_of

ARG_REDUCTIONS = frozenset({"arg_max", "arg_min"})


def choose(view: GroupView, kind: GroupKind, threads: int) -> Schedule | None:
    """The schedule of a group of one part; None where the template decides, or nothing is launched."""
    if kind not in (GroupKind.ROWWISE, GroupKind.ATTENTION) or not view.stored:
        return None
    roles = roles_of(view.nodes, view.outputs, view.name)
    assert isinstance(roles, Roles), roles
    if roles.softmax is not None:
        return choose_attention(roles.softmax, threads)
    assert roles.rows is not None
    finds_place = any(node.op in ARG_REDUCTIONS for node in view.nodes)
    return CpuRowSchedule(1 if finds_place else parts_of(roles.rows))
