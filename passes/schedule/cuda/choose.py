"""The schedule of any group on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.protocol import LatencyModel, fastest
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.view import GroupView, look_up

from .attention import choose_attention
from .elementwise import elementwise_schedules
from .facts import gpu_facts
from .gemm import choose_contraction
from .gpu import Gpu
from .opaque import choose_opaque
from .rows import row_schedules


def choose(nodes: Mapping[str, Node], group: Group, gpu: Gpu, model: LatencyModel) -> Schedule | None:
    """Return the schedule of a single-part group, the fastest by `model` if there are several; None if it stores no
    elements, so that nothing is launched. `nodes` are the graph's nodes by name.
    """
    view = look_up(nodes, group)
    if not view.stored:
        return None
    if group.kind is GroupKind.CONTRACTION:
        return choose_contraction(AnchoredGroup.of(view), gpu, model)
    if group.kind is GroupKind.ATTENTION:
        return choose_attention(view, gpu, model)
    if group.kind is GroupKind.OPAQUE:
        assert view.anchor is not None
        return choose_opaque(view.anchor, view.inputs, gpu.device.sm_count)
    candidates = vector_schedules(view, group.kind, gpu)
    if len(candidates) == 1:
        return candidates[0]
    scheduled = (replace(group, schedule=each) for each in candidates)
    facts = [gpu_facts(nodes, each, legal_roles(view), gpu.multiprocessors) for each in scheduled]
    return fastest(candidates, facts, gpu.device, model)


def vector_schedules(view: GroupView, kind: GroupKind, gpu: Gpu) -> Sequence[Schedule]:
    """Return the candidate schedules of a row-wise or an element-wise group with non-empty outputs."""
    if kind is GroupKind.ROWWISE:
        return row_schedules(view, legal_roles(view), gpu)
    return elementwise_schedules(view.nodes, view.inputs, view.stored, gpu.device.sm_count)
