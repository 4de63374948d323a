"""The schedule of any group for a CPU."""

from __future__ import annotations

from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.anchored import AnchoredGroup
from tilestitch.passes.plan.cpu.attention import attention_of
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import CpuRowSchedule, Schedule
from tilestitch.passes.plan.view import GroupView

from .attention import choose_attention
from .contraction import choose_anchored
from .rows import parts_of

ARG_REDUCTIONS = frozenset({"arg_max", "arg_min"})


def choose(view: GroupView, kind: GroupKind, isa: Isa, threads: int) -> Schedule | None:
    """The schedule of a group of one part; None where the template decides, or nothing is launched."""
    if not view.stored:
        return None
    windows = view.anchor is not None and view.anchor.op == "window_reduce"
    if kind is GroupKind.CONTRACTION or windows:
        return choose_anchored(AnchoredGroup.of(view), isa, threads)
    if kind is GroupKind.ATTENTION:
        return choose_attention(attention_of(AnchoredGroup.of(view)), isa, threads)
    if kind is not GroupKind.ROWWISE:
        return None
    roles = roles_of(view.nodes, view.outputs, view.name)
    assert isinstance(roles, Roles) and roles.rows is not None, roles
    finds_place = any(node.op in ARG_REDUCTIONS for node in view.nodes)
    return CpuRowSchedule(1 if finds_place else parts_of(roles.rows))
