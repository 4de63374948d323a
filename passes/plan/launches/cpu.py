"""Launches of scheduled groups on a CPU: tasks, workspaces and accessed values, without generating code."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.plan.access.split_rows import pieces_of
from tilestitch.passes.plan.cpu.anchors import AnchoredSchedule, plan_of
from tilestitch.passes.plan.cpu.attention import AttentionPlan, attention_of
from tilestitch.passes.plan.cpu.conv import ConvPlan, ConvTransposePlan
from tilestitch.passes.plan.cpu.gemm import GemmPlan
from tilestitch.passes.plan.cpu.gemv import GemvPlan
from tilestitch.passes.plan.cpu.loops import LoopPlan
from tilestitch.passes.plan.cpu.opaque import OpaqueSchedule, ScatterPlan, opaque_plan
from tilestitch.passes.plan.cpu.rows import RowGroup, RowPlan
from tilestitch.passes.plan.cpu.schedules import (
    CpuAttentionSchedule,
    CpuLoopSchedule,
    CpuRowSchedule,
    CpuSplitRowSchedule,
)
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.group import Group, GroupKind
from tilestitch.passes.plan.index_checks import check_tasks, pending_checks, read_for
from tilestitch.passes.plan.launches.cuda.emitted import Argument, Emitted, classified, results_of
from tilestitch.passes.plan.launches.launch import ONE, Launch, if_any_result
from tilestitch.passes.plan.own_kernels import Temporary
from tilestitch.passes.plan.parts import Roles
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.view import GroupView, look_up


def cpu_launches(nodes: Mapping[str, Node], group: Group, roles: Roles | None = None) -> tuple[Launch, ...]:
    """Return the launches of a scheduled group, in order; none if its outputs have no elements.

    nodes: the graph's nodes by name. roles: of a single-part group, if already known. The schedule must be accepted by
    `schedule_check.why_not`.
    """
    results = results_of(nodes, group)
    return tuple(classified(launch, results, group.name) for launch in _of_group(nodes, group, roles))


def _of_group(nodes: Mapping[str, Node], group: Group, roles: Roles | None = None) -> Sequence[Emitted]:
    if group.stages:
        return _side_by_side([_of_group(nodes, part) for part in group.parts])
    view = look_up(nodes, group)
    if not view.stored:
        return ()
    checks = () if group.kind is GroupKind.OPAQUE else tuple(_checks(view))
    any_ = if_any_result(view)
    return tuple(replace(one, grid=(one.grid[0] * any_, 1, 1)) for one in (*checks, *_scheduled(view, group, roles)))


def _side_by_side(parts: Sequence[Sequence[Emitted]]) -> list[Emitted]:
    """Return the launches of independent groups: all their first launches as one list of tasks, then all second ones,
    and so on.
    """
    launches: list[Emitted] = []
    for number in range(max(map(len, parts), default=0)):
        together = [part[number] for part in parts if number < len(part)]
        launches += [replace(launch, beside=place > 0) for place, launch in enumerate(together)]
    return launches


def _launch(kind: str, tasks: int, arguments: Iterable[Argument], scratch_bytes: int = 0) -> Emitted:
    return Emitted(kind, (tasks, 1, 1), ONE, tuple(arguments), scratch_bytes=scratch_bytes)


def _checks(view: GroupView) -> Iterator[Emitted]:
    """Yield a check for each node whose indices are not known to be in range; scatters check theirs themselves."""
    for pending in pending_checks(view.nodes).values():
        yield _launch("check", check_tasks(pending), read_for(pending, view.inputs))


def _scheduled(view: GroupView, group: Group, roles: Roles | None) -> tuple[Emitted, ...]:
    schedule, everything = group.schedule, (*view.inputs, *view.stored)
    match schedule:
        case CpuLoopSchedule():
            return (_loops(view.stored[0].tensor_type.num_elements, schedule, everything),)
        case CpuRowSchedule():
            rows = RowGroup(view.nodes, roles or legal_roles(view), view.inputs, view.stored)
            return (_rows(rows, schedule, everything),)
        case CpuSplitRowSchedule():
            return _split_rows(view, roles or legal_roles(view), schedule)
        case CpuAttentionSchedule():
            attention = AttentionPlan(attention_of(AnchoredGroup.of(view, roles)), schedule)
            return (_launch("attention", attention.tasks, everything, attention.scratch_bytes),)
    assert view.anchor is not None
    if isinstance(schedule, OpaqueSchedule):
        return _opaque(view.anchor, schedule)
    assert isinstance(schedule, AnchoredSchedule), schedule
    return (_anchored(AnchoredGroup.of(view, roles), schedule, everything),)


def _loops(elements: int, schedule: CpuLoopSchedule, arguments: Iterable[Argument]) -> Emitted:
    return _launch("injective", LoopPlan(elements, schedule).tasks, arguments)


def _rows(group: RowGroup, schedule: CpuRowSchedule, arguments: Iterable[Argument]) -> Emitted:
    plan = RowPlan(group, schedule)
    return _launch("rowwise", plan.tasks, arguments, plan.scratch_bytes)


def _split_rows(view: GroupView, roles: Roles, schedule: CpuSplitRowSchedule) -> tuple[Emitted, ...]:
    rows = roles.rows
    assert rows is not None
    pieces, own = pieces_of(view, view.stored, rows, schedule.parts)

    def argument(value: Value) -> Argument:
        return own.get(value) or Temporary(f"{view.name}.{value.name}", value.tensor_type.nbytes)

    launches = []
    for (piece, its), each in zip(pieces, schedule.pieces, strict=True):
        arguments = [argument(v) for v in (*piece.inputs, *piece.outputs)]
        if isinstance(each, CpuRowSchedule):
            launches.append(_rows(RowGroup(piece.nodes, its, piece.inputs, piece.outputs), each, arguments))
        else:
            launches.append(_loops(piece.outputs[0].tensor_type.num_elements, each, arguments))
    return tuple(launches)


def _anchored(group: AnchoredGroup, schedule: AnchoredSchedule, arguments: Iterable[Argument]) -> Emitted:
    plan = plan_of(group, schedule)
    assert not isinstance(plan, str), plan
    match plan:
        case GemmPlan():
            kind = "matmul"
        case GemvPlan():
            kind = "gemv"
        case ConvPlan():
            kind = "conv"
        case ConvTransposePlan():
            kind = "conv_transpose"
        case _:
            kind = "window" if plan.shape.pools else "depthwise"
    return _launch(kind, plan.tasks, arguments, plan.scratch_bytes)


def _opaque(anchor: Node, schedule: OpaqueSchedule) -> tuple[Emitted, ...]:
    plan = opaque_plan(anchor, schedule)
    assert not isinstance(plan, str), plan
    if not isinstance(plan, ScatterPlan):
        return (_launch(anchor.op, plan.tasks, (*anchor.inputs, *anchor.outputs), plan.scratch_bytes),)
    (x, indices, updates), out = anchor.inputs, anchor.outputs[0]
    copy = _launch("copy", plan.copy_tasks, (x, out))
    return (copy, _launch(anchor.op, plan.tasks, (indices, updates, out))) if plan.tasks else (copy,)
