"""From a group of the plan to kernel launches: chooses the template and lists the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.groups import GroupView, roles_in, view_group
from tilestitch.compiler.ir.graph import Graph, Node, Value
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.cpu.anchors import AnchoredSchedule, plan_of
from tilestitch.passes.plan.cpu.attention import AttentionPlan, attention_of
from tilestitch.passes.plan.cpu.conv import ConvPlan, ConvTransposePlan
from tilestitch.passes.plan.cpu.gemm import GemmPlan, GemvPlan
from tilestitch.passes.plan.cpu.schedules import CpuAttentionSchedule
from tilestitch.passes.plan.cpu.window import WindowPlan
from tilestitch.passes.plan.roles import Roles, RowSpace
from tilestitch.passes.plan.schedule_check import why_not
from tilestitch.passes.plan.schedules import CpuRowSchedule
from tilestitch.passes.plan.split_rows import pieces_of

from .abi import KernelArg, KernelLaunch, TemporaryArg, ValueArg
from .attention import lower_attention
from .checks import lower_index_checks
from .contraction import lower_gemm, lower_gemv
from .convolution import lower_conv, lower_conv_transpose, lower_depthwise, lower_window
from .injective import emit_injective
from .rowplan import plan_rows
from .rowwise import emit_rowwise
from .scan import lower_cumulative
from .scatter import lower_scatter
from .sort import lower_top_k
from .surroundings import Operands
from .target import CpuTarget


def lower_group(graph: Graph, group: Group, target: CpuTarget) -> tuple[KernelLaunch, ...]:
    """The launches of a group, in order; none if its outputs have no elements.

    Raises KernelError, naming the ONNX nodes, for a group that no template fits.
    """
    if group.stages:
        return _side_by_side([lower_group(graph, part, target) for part in group.parts])
    view = view_group(graph, group)
    outputs = tuple(v for v in view.outputs if v.tensor_type.num_elements)
    if not outputs:
        return ()
    try:
        checks = () if group.kind is GroupKind.OPAQUE else lower_index_checks(view.nodes, view.inputs)
        return (*checks, *_template(view, group, outputs, target))
    except RecursionError:
        raise KernelError(
            f"group {group.name} nests {len(view.nodes)} nodes too deeply; compile with --planner none", view.origins
        ) from None


def _side_by_side(parts: Sequence[Sequence[KernelLaunch]]) -> tuple[KernelLaunch, ...]:
    """Launches of independent groups: all first ones are packed together, then all second ones, and so on."""
    launches: list[KernelLaunch] = []
    for number in range(max(map(len, parts), default=0)):
        together = [part[number] for part in parts if number < len(part)]
        launches += [replace(launch, packed=place > 0) for place, launch in enumerate(together)]
    return tuple(launches)


def _template(view: GroupView, group: Group, outputs: Sequence[Value], target: CpuTarget) -> tuple[KernelLaunch, ...]:
    kind, schedule, anchor = group.kind, group.schedule, view.anchor
    if kind is GroupKind.INJECTIVE:
        return _injective(view, outputs, target)
    if kind is GroupKind.OPAQUE and anchor is not None and anchor.op != "window_reduce":
        return _opaque(view, anchor, target)
    roles = roles_in(view)
    problem = "it has no schedule" if schedule is None else why_not(view, kind, roles, schedule)
    if problem is not None:
        raise KernelError(f"group {view.name}: {problem}; repair the plan or write it again", view.origins)
    assert schedule is not None
    if isinstance(schedule, CpuRowSchedule):
        return _rowwise(view, roles, outputs, target, schedule.parts)
    operands = Operands(view.nodes, roles, view.inputs, tuple(outputs))
    if isinstance(schedule, CpuAttentionSchedule):
        return (lower_attention(operands, AttentionPlan(attention_of(operands), schedule)),)
    if isinstance(schedule, AnchoredSchedule):
        return (_anchored(operands, schedule),)
    reason = f"its schedule of template {schedule.template} is for no kernel of a CPU"
    raise KernelError(f"group {view.name}: {reason}; write the plan again for this target", view.origins)


def _anchored(group: Operands, schedule: AnchoredSchedule) -> KernelLaunch:
    plan = plan_of(group, schedule)
    match plan:
        case GemmPlan():
            return lower_gemm(group, plan)
        case GemvPlan():
            return lower_gemv(group, plan)
        case ConvPlan():
            return lower_conv(group, plan)
        case ConvTransposePlan():
            return lower_conv_transpose(group, plan)
        case WindowPlan():
            return lower_window(group, plan) if plan.shape.pools else lower_depthwise(group, plan)
    raise AssertionError(plan)  # the schedule was checked


def _opaque(view: GroupView, anchor: Node, target: CpuTarget) -> tuple[KernelLaunch, ...]:
    if anchor.op == "cumulative":
        return (lower_cumulative(anchor, target.isa),)
    if anchor.op == "top_k":
        return (lower_top_k(anchor),)
    if anchor.op in ("scatter_elements", "scatter_nd"):
        return lower_scatter(anchor, target.isa)
    raise KernelError(f"group {view.name}: {anchor.op} has no kernel template; make it a host step", view.origins)


def _injective(view: GroupView, outputs: Sequence[Value], target: CpuTarget) -> tuple[KernelLaunch, ...]:
    func, tasks = emit_injective(view.nodes, view.inputs, outputs, target.isa)
    args = tuple(ValueArg(v.name) for v in (*view.inputs, *outputs))
    return (KernelLaunch("injective", func, tasks, args, view.origins),)


def _rowwise(
    view: GroupView, roles: Roles, outputs: Sequence[Value], target: CpuTarget, parts: int
) -> tuple[KernelLaunch, ...]:
    assert roles.rows is not None
    if parts > 1:
        return _rows_in_parts(view, outputs, roles.rows, parts, target)
    args = tuple(ValueArg(v.name) for v in (*view.inputs, *outputs))
    return (_row_launch(view.nodes, roles, view.inputs, outputs, args, view.origins, target),)


def _row_launch(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value],
    args: tuple[KernelArg, ...], origins: tuple[str, ...], target: CpuTarget,
) -> KernelLaunch:  # fmt: skip
    plan = plan_rows(nodes, roles, inputs, outputs, target.isa)
    func = emit_rowwise(plan, inputs, outputs)
    return KernelLaunch("rowwise", func, plan.loops.tasks, args, origins, plan.scratch_bytes)


def _rows_in_parts(
    view: GroupView, outputs: Sequence[Value], rows: RowSpace, parts: int, target: CpuTarget
) -> tuple[KernelLaunch, ...]:
    launches = []
    pieces, own = pieces_of(view, outputs, rows, parts)

    def argument(value: Value) -> KernelArg:
        if value in own:
            return ValueArg(own[value].name)
        return TemporaryArg(f"{view.name}.{value.name}", value.tensor_type.nbytes)

    for piece, roles in pieces:
        args = tuple(argument(v) for v in (*piece.inputs, *piece.outputs))
        if roles.kind is GroupKind.ROWWISE:
            launches.append(_row_launch(piece.nodes, roles, piece.inputs, piece.outputs, args, view.origins, target))
            continue
        func, tasks = emit_injective(piece.nodes, piece.inputs, piece.outputs, target.isa)
        launches.append(KernelLaunch("injective", func, tasks, args, view.origins))
    return tuple(launches)
