"""From a group of the plan to kernel launches: chooses the template and lists the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.groups import GroupView, roles_in, view_group
from tilestitch.compiler.ir.graph import Graph, Node, Value
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.roles import Roles, RowSpace
from tilestitch.passes.plan.schedule_check import why_not
from tilestitch.passes.plan.schedules import CpuAttentionSchedule, CpuRowSchedule
from tilestitch.passes.plan.split_rows import pieces_of

from .abi import KernelArg, KernelLaunch, TemporaryArg, ValueArg
from .attention import lower_attention
from .checks import lower_index_checks
from .contraction import lower_contraction
from .convolution import lower_window
from .injective import emit_injective
from .rowplan import plan_rows
from .rowwise import emit_rowwise
from .scan import lower_cumulative
from .scatter import lower_scatter
from .sort import lower_top_k
from .target import CpuTarget


def lower_group(graph: Graph, group: Group, target: CpuTarget, threads: int = 4) -> tuple[KernelLaunch, ...]:
    """The launches of a group, in order; none if its outputs have no elements.

    Raises KernelError, naming the ONNX nodes, for a group that no template fits.
    """
    if group.stages:
        return _side_by_side([lower_group(graph, part, target, threads) for part in group.parts])
    view = view_group(graph, group)
    outputs = tuple(v for v in view.outputs if v.tensor_type.num_elements)
    if not outputs:
        return ()
    try:
        checks = () if group.kind is GroupKind.OPAQUE else lower_index_checks(view.nodes, view.inputs)
        return (*checks, *_template(view, group, outputs, target, threads))
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


def _template(
    view: GroupView, group: Group, outputs: Sequence[Value], target: CpuTarget, threads: int
) -> tuple[KernelLaunch, ...]:
    kind, schedule = group.kind, group.schedule
    if kind is GroupKind.INJECTIVE:
        return _injective(view, outputs, target)
    if kind in (GroupKind.ROWWISE, GroupKind.ATTENTION):
        roles = roles_in(view)
        problem = "it has no schedule" if schedule is None else why_not(view, kind, roles, schedule)
        if problem is not None:
            raise KernelError(f"group {view.name}: {problem}; repair the plan or write it again", view.origins)
        if isinstance(schedule, CpuAttentionSchedule):
            return (lower_attention(view.nodes, roles, view.inputs, outputs, target.isa, threads, schedule),)
        if isinstance(schedule, CpuRowSchedule):
            return _rowwise(view, roles, outputs, target, schedule.parts)
        reason = f"its schedule of template {schedule.template} is for no kernel of a CPU" if schedule else ""
        raise KernelError(f"group {view.name}: {reason}; write the plan again for this target", view.origins)
    if kind is GroupKind.CONTRACTION:
        return (lower_contraction(view.nodes, roles_in(view), view.inputs, outputs, target.isa, threads),)
    return _opaque(view, outputs, target, threads)


def _opaque(view: GroupView, outputs: Sequence[Value], target: CpuTarget, threads: int) -> tuple[KernelLaunch, ...]:
    anchor = view.anchor
    assert anchor is not None
    if anchor.op == "window_reduce":
        return (lower_window(view.nodes, roles_in(view), view.inputs, outputs, target.isa, threads),)
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
