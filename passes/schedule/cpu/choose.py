"""The schedule of any group for a CPU."""

from __future__ import annotations

from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.cpu.attention import attention_of
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.view import GroupView

from .attention import choose_attention
from .contraction import choose_anchored
from .loops import choose_loops
from .opaque import choose_opaque
from .rows import choose_rows


def choose(view: GroupView, kind: GroupKind, isa: Isa, threads: int) -> Schedule | None:
    """The schedule of a group of one part; None if it stores no elements, so that nothing is launched."""
    outputs, anchor = view.stored, view.anchor
    if not outputs:
        return None
    if kind is GroupKind.INJECTIVE:
        return choose_loops(view.nodes, view.inputs, outputs, isa)
    if kind is GroupKind.ROWWISE:
        roles = roles_of(view.nodes, view.outputs, view.name)
        assert isinstance(roles, Roles), roles
        return choose_rows(view, roles, isa)
    if kind is GroupKind.ATTENTION:
        return choose_attention(attention_of(AnchoredGroup.of(view)), isa, threads)
    if kind is GroupKind.CONTRACTION or (anchor is not None and anchor.op == "window_reduce"):
        return choose_anchored(AnchoredGroup.of(view), isa, threads)
    assert anchor is not None
    return choose_opaque(anchor, isa)
