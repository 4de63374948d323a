"""From a group of the plan to kernel launches: selects the template and lists the arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tilestitch.codegen.compute.requantised import keeping
from tilestitch.codegen.compute.sizes import kernels_over, symbols_among, where_present
from tilestitch.codegen.cpu.contraction.lower import lower_gemm, lower_gemv
from tilestitch.codegen.cpu.convolution.lower import lower_conv, lower_conv_transpose, lower_depthwise, lower_window
from tilestitch.codegen.cpu.loops.injective import emit_injective
from tilestitch.codegen.cpu.loops.rowwise import emit_rowwise
from tilestitch.codegen.cpu.opaque.checks import lower_index_checks
from tilestitch.codegen.cpu.opaque.found import lower_append, lower_compact, lower_tally
from tilestitch.codegen.cpu.opaque.regions import lower_roi_align
from tilestitch.codegen.cpu.opaque.scan import lower_cumulative
from tilestitch.codegen.cpu.opaque.scatter import lower_scatter
from tilestitch.codegen.cpu.opaque.sort import lower_order_rows, lower_top_k
from tilestitch.codegen.cpu.opaque.suppress import lower_suppress
from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.groups import GroupView, check_planned, members, roles_in, touched, view_group
from tilestitch.codegen.launch import SizesArg, piece_args
from tilestitch.compiler.ir.graph import Graph, Node, Value
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.access.split_rows import pieces_of
from tilestitch.passes.plan.cpu.anchors import AnchoredSchedule, plan_of
from tilestitch.passes.plan.cpu.attention import AttentionPlan, attention_of
from tilestitch.passes.plan.cpu.conv import ConvPlan, ConvTransposePlan
from tilestitch.passes.plan.cpu.gemm import GemmPlan
from tilestitch.passes.plan.cpu.gemv import GemvPlan
from tilestitch.passes.plan.cpu.loops import LoopPlan
from tilestitch.passes.plan.cpu.opaque import (
    AppendPlan,
    FoundPlan,
    OpaqueSchedule,
    OrderPlan,
    RegionPlan,
    ScanPlan,
    ScatterPlan,
    SortPlan,
    SuppressPlan,
    opaque_plan,
)
from tilestitch.passes.plan.cpu.rows import RowGroup, RowPlan
from tilestitch.passes.plan.cpu.schedules import (
    CpuAttentionSchedule,
    CpuLoopSchedule,
    CpuRowSchedule,
    CpuSplitRowSchedule,
)
from tilestitch.passes.plan.cpu.window import WindowPlan
from tilestitch.passes.plan.launches.cpu import cpu_launches
from tilestitch.passes.plan.launches.launch import Launch, if_any_result, needed_for_any
from tilestitch.passes.plan.roles import Roles
from tilestitch.passes.plan.schedule_check import why_not

from .abi import KernelArg, KernelLaunch, PackedArg, ValueArg
from .attention import lower_attention
from .surroundings import Operands

Packed: TypeAlias = Mapping[str, PackedArg]
"""Layouts of constants packed for other kernels, by name."""


def lower_group(graph: Graph, group: Group, packed: Packed | None = None) -> tuple[KernelLaunch, ...]:
    """Return the launches of a group, in order; none if its outputs have no elements. Element-wise and row-wise kernels
    read constants in the layouts `packed` for others, if given.

    Raises KernelError, naming the ONNX nodes, for a group that no template fits.
    """
    with keeping(frozenset(group.floats)):
        if not symbols_among([graph.node(name) for name in group.nodes]):
            return _checked(graph, group, _lowered(graph, group, packed or {}))
        with kernels_over(graph.symbols):
            launches = _lowered(graph, group, packed or {})
    return _checked(graph, group, tuple(replace(one, args=(*one.args, SizesArg())) for one in launches))


def _checked(graph: Graph, group: Group, launches: tuple[KernelLaunch, ...]) -> tuple[KernelLaunch, ...]:
    emitted = [_described(graph, group, launch) for launch in launches]
    check_planned(group, emitted, cpu_launches(members(graph, group), group))
    return launches


def _described(graph: Graph, group: Group, launch: KernelLaunch) -> Launch:
    """Return the emitted launch in the plan's form."""
    plain = Launch(launch.kind, (launch.tasks, 1, 1), scratch_bytes=launch.scratch_bytes, beside=launch.packed)
    return touched(graph, group, launch.args, plain)


def _lowered(graph: Graph, group: Group, packed: Packed) -> tuple[KernelLaunch, ...]:
    if group.stages:
        return _side_by_side([_lowered(graph, part, packed) for part in group.parts])
    view = view_group(graph, group)
    outputs = view.stored
    if not outputs:
        return ()
    try:
        with where_present(needed_for_any(view)):
            checks = () if group.kind is GroupKind.OPAQUE else lower_index_checks(view.nodes, view.inputs)
            launches = (*checks, *_template(view, group, outputs, packed))
        return tuple(replace(one, tasks=one.tasks * if_any_result(view)) for one in launches)
    except RecursionError:
        raise KernelError(
            f"group {group.name} nests {len(view.nodes)} nodes too deeply; compile with --planner none", view.origins
        ) from None


def _side_by_side(parts: Sequence[Sequence[KernelLaunch]]) -> tuple[KernelLaunch, ...]:
    """Return the launches of independent groups: all first ones packed together, then all second ones, and so on."""
    launches: list[KernelLaunch] = []
    for number in range(max(map(len, parts), default=0)):
        together = [part[number] for part in parts if number < len(part)]
        launches += [replace(launch, packed=place > 0) for place, launch in enumerate(together)]
    return tuple(launches)


def _template(view: GroupView, group: Group, outputs: Sequence[Value], packed: Packed) -> tuple[KernelLaunch, ...]:
    kind, schedule = group.kind, group.schedule
    roles = roles_in(view)
    problem = "it has no schedule" if schedule is None else why_not(view, kind, roles, schedule)
    if problem is not None:
        raise KernelError(f"group {view.name}: {problem}; repair the plan or write it again", view.origins)
    assert schedule is not None
    if isinstance(schedule, CpuLoopSchedule):
        args = _arguments(view.inputs, outputs, packed)
        return (_loops(view.nodes, view.inputs, outputs, schedule, view.origins, args, packed),)
    if isinstance(schedule, CpuRowSchedule):
        args = _arguments(view.inputs, outputs, packed)
        return (_rows(RowGroup(view.nodes, roles, view.inputs, tuple(outputs)), schedule, view.origins, args, packed),)
    if isinstance(schedule, CpuSplitRowSchedule):
        return _split_rows(view, roles, outputs, schedule)
    if isinstance(schedule, OpaqueSchedule):
        assert view.anchor is not None
        return _opaque(view.anchor, schedule)
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


def _opaque(anchor: Node, schedule: OpaqueSchedule) -> tuple[KernelLaunch, ...]:
    plan = opaque_plan(anchor, schedule)
    match plan:
        case SortPlan():
            return (lower_top_k(plan),)
        case ScanPlan():
            return (lower_cumulative(plan),)
        case ScatterPlan():
            return lower_scatter(plan)
        case SuppressPlan():
            return (lower_suppress(plan),)
        case RegionPlan():
            return (lower_roi_align(plan),)
        case AppendPlan():
            return (lower_append(plan),)
        case OrderPlan():
            return (lower_order_rows(plan),)
        case FoundPlan():
            return (lower_tally(plan) if anchor.op == "tally" else lower_compact(plan),)
    raise AssertionError(plan)  # the schedule was checked


def _loops(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], schedule: CpuLoopSchedule,
    origins: tuple[str, ...], args: tuple[KernelArg, ...], packed: Packed,
) -> KernelLaunch:  # fmt: skip
    plan = LoopPlan(outputs[0].tensor_type.num_elements, schedule)
    return KernelLaunch("injective", emit_injective(nodes, inputs, outputs, plan, packed), plan.tasks, args, origins)


def _rows(
    group: RowGroup, schedule: CpuRowSchedule, origins: tuple[str, ...], args: tuple[KernelArg, ...], packed: Packed
) -> KernelLaunch:
    plan = RowPlan(group, schedule)
    return KernelLaunch("rowwise", emit_rowwise(plan, packed), plan.tasks, args, origins, plan.scratch_bytes)


def _arguments(inputs: Sequence[Value], outputs: Sequence[Value], packed: Packed) -> tuple[KernelArg, ...]:
    return (*(packed.get(v.name, ValueArg(v.name)) for v in inputs), *(ValueArg(v.name) for v in outputs))


def _split_rows(
    view: GroupView, roles: Roles, outputs: Sequence[Value], schedule: CpuSplitRowSchedule
) -> tuple[KernelLaunch, ...]:
    assert roles.rows is not None
    launches = []
    pieces, own = pieces_of(view, outputs, roles.rows, schedule.parts)

    for (piece, its), each in zip(pieces, schedule.pieces, strict=True):
        args = piece_args((*piece.inputs, *piece.outputs), own, view.name)
        if isinstance(each, CpuRowSchedule):
            group = RowGroup(piece.nodes, its, piece.inputs, piece.outputs)
            launches.append(_rows(group, each, view.origins, args, {}))
        else:
            launches.append(_loops(piece.nodes, piece.inputs, piece.outputs, each, view.origins, args, {}))
    return tuple(launches)
