"""The schedule of any group on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.protocol import LatencyModel, fastest
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.cpu.anchors import window_of
from tilestitch.passes.plan.cpu.attention import attention_of
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.cpu.operands import Matmul, conv_of, conv_transpose_of
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.schedule.device import device_of

from .attention import choose_attention
from .conv import choose_conv, choose_conv_transpose
from .facts import cpu_facts
from .gemm import choose_gemm, choose_gemv
from .loops import choose_loops
from .opaque import choose_opaque
from .rows import row_schedules
from .window import choose_window


def choose(nodes: Mapping[str, Node], group: Group, target: TargetInfo, model: LatencyModel) -> Schedule | None:
    """Return the schedule of a single-part group; None if it stores no elements, so that nothing is launched.

    `nodes` are the graph's nodes by name. `model` decides whether splitting few long rows pays.
    """
    view, isa, threads = look_up(nodes, group), target.core, target.threads
    outputs, anchor = view.stored, view.anchor
    if not outputs:
        return None
    if group.kind is GroupKind.INJECTIVE:
        return choose_loops(view.nodes, view.inputs, outputs, isa)
    if group.kind is GroupKind.ROWWISE:
        roles = roles_of(view.nodes, view.outputs, view.name)
        assert isinstance(roles, Roles), roles
        candidates = row_schedules(view, roles, isa)
        if len(candidates) == 1:
            return candidates[0]
        facts = [cpu_facts(nodes, replace(group, schedule=each), roles, isa) for each in candidates]
        return fastest(candidates, facts, device_of(target), model)
    if group.kind is GroupKind.ATTENTION:
        return choose_attention(attention_of(AnchoredGroup.of(view)), isa, threads)
    if group.kind is GroupKind.CONTRACTION or (anchor is not None and anchor.op == "window_reduce"):
        return _choose_anchored(AnchoredGroup.of(view), isa, threads)
    assert anchor is not None
    return choose_opaque(anchor, isa)


def _choose_anchored(group: AnchoredGroup, isa: Isa, threads: int) -> Schedule:
    """Return the schedule of a group around a matmul, a convolution or a window, with non-empty outputs."""
    window = window_of(group)
    if window is not None:
        return choose_window(window, isa, threads)
    if group.anchor.op == "conv":
        return choose_conv(conv_of(group), isa, threads)
    if group.anchor.op == "conv_transpose":
        return choose_conv_transpose(conv_transpose_of(group), isa, threads)
    matmul = Matmul(group)
    return choose_gemv(matmul.gemv, isa, threads) if matmul.streams else choose_gemm(matmul.gemm, isa, threads)
