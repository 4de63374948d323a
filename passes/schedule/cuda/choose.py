"""The schedule of any group for a GPU."""

from __future__ import annotations

from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.view import GroupView

from .attention import choose_attention
from .elementwise import choose_elementwise
from .gemm import choose_contraction
from .gpu import Gpu
from .opaque import choose_opaque
from .rows import choose_rows


def choose(view: GroupView, kind: GroupKind, gpu: Gpu, model: LatencyModel) -> Schedule | None:
    """The schedule of a group of one part, where several are possible the one that `model` predicts to be fastest; None
    if it stores no elements, so that nothing is launched.
    """
    outputs = view.stored
    if not outputs:
        return None
    if kind is GroupKind.INJECTIVE:
        return choose_elementwise(view.nodes, view.inputs, outputs, gpu.device.sm_count)
    if kind is GroupKind.ROWWISE:
        roles = roles_of(view.nodes, view.outputs, view.name)
        assert isinstance(roles, Roles), roles
        return choose_rows(view, roles, gpu)
    if kind is GroupKind.CONTRACTION:
        return choose_contraction(AnchoredGroup.of(view), gpu, model)
    if kind is GroupKind.ATTENTION:
        return choose_attention(view, gpu, model)
    if kind is GroupKind.OPAQUE:
        assert view.anchor is not None
        return choose_opaque(view.anchor)
    return None
