"""The launches of a group on a GPU, derived from its schedule alone: what code generation must emit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.rows_after import RowsAfter
from tilestitch.passes.plan.group import Group, GroupKind
from tilestitch.passes.plan.launches.cuda.attention import attention
from tilestitch.passes.plan.launches.cuda.blocks import Blocking
from tilestitch.passes.plan.launches.cuda.emitted import Emitted, classified, results_of
from tilestitch.passes.plan.launches.cuda.gemm import Rows, contraction
from tilestitch.passes.plan.launches.cuda.opaque import (
    checks,
    operator,
    ranks,
    scan,
    scatter,
    sort,
    window,
)
from tilestitch.passes.plan.launches.cuda.rows import elementwise, rowwise, split_rows, transpose
from tilestitch.passes.plan.launches.cuda.stitched import Stitching, Ticketing, Tying, private
from tilestitch.passes.plan.launches.launch import Launch, if_any_result
from tilestitch.passes.plan.own_kernels import Dim3
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    BandSchedule,
    BlockSchedule,
    DirectSchedule,
    ElementwiseSchedule,
    GemmSchedule,
    LaunchesSchedule,
    OpaqueSchedule,
    OperatorSchedule,
    RankSchedule,
    RowSchedule,
    ScanSchedule,
    ScatterSchedule,
    SortSchedule,
    SplitRowSchedule,
    TicketSchedule,
    TransposeSchedule,
    WindowSchedule,
)
from tilestitch.passes.plan.view import GroupView, look_up

Nodes: TypeAlias = Mapping[str, Node]


def cuda_launches(nodes: Nodes, group: Group, multiprocessors: int) -> tuple[Launch, ...]:
    """Return the launches of a scheduled group, in order; none if its outputs have no elements.

    nodes: the graph's nodes by name. multiprocessors: of the smallest GPU that must run them. Raises PlanError for a
    stitched group that is no single launch.
    """
    if group.tie == "band":
        launches = _banded(nodes, group)
    elif group.tie == "tickets":
        launches = _ticketed(nodes, group)
    elif group.tie == "block":
        launches = _blocked(nodes, group)
    elif group.tie == "launches":
        launches = _tied(nodes, group)
    elif group.stages:
        launches = _stitched(nodes, group, multiprocessors)
    else:
        view = look_up(nodes, group)
        launches = (*_checks(view, group), *of_part(view, group)) if view.stored else ()
        launches = tuple(replace(one, grid=grid_if_any(view, one.grid)) for one in launches)
    results = results_of(nodes, group)
    return tuple(classified(launch, results, group.name) for launch in launches)


def _checks(view: GroupView, group: Group) -> tuple[Emitted, ...]:
    return () if group.kind is GroupKind.OPAQUE else tuple(checks(view.nodes, view.inputs))


def grid_if_any(view: GroupView, grid: Dim3) -> Dim3:
    """Return the grid of a single-part group: without blocks where the group's stored values have no elements."""
    return grid[0] * if_any_result(view), grid[1], grid[2]


def stitching_of(nodes: Nodes, group: Group, multiprocessors: int) -> Stitching:
    """Return the parts of a stitched group as launches of their own."""
    views = {part.name: look_up(nodes, part) for part in group.parts}
    stages = [[of_part(views[part.name], part) for part in stage if views[part.name].stored] for stage in group.stages]
    stored = {v for view in views.values() for v in view.stored}
    inner = frozenset(v for v in stored if v.name not in group.outputs)
    return Stitching([stage for stage in stages if stage], inner, multiprocessors)


def _stitched(nodes: Nodes, group: Group, multiprocessors: int) -> tuple[Emitted, ...]:
    stitching = stitching_of(nodes, group, multiprocessors)
    views = [look_up(nodes, part) for part in group.parts]
    before = tuple(launch for view in views if view.stored for launch in checks(view.nodes, view.inputs))
    if not stitching.stages:
        return before
    problem = stitching.why_not()
    if problem is not None:
        raise PlanError(f"group {group.name} is no single launch: {problem}; write the plan again")
    return (*before, stitching.launch())


def ticketing_of(nodes: Nodes, group: Group) -> Ticketing:
    """Return the parts of a group whose blocks draw tiles, as launches of their own."""
    parts, inner = _parts_and_inner(nodes, group)
    return Ticketing(parts, [_checks(look_up(nodes, part), part) for part in group.parts], inner)


def tying_of(nodes: Nodes, group: Group) -> Tying:
    """Return the parts of a group with launches whose blocks wait for tiles of others."""
    return Tying(*_parts_and_inner(nodes, group))


def _parts_and_inner(nodes: Nodes, group: Group) -> tuple[list[tuple[Emitted, ...]], frozenset[Value]]:
    views = {part.name: look_up(nodes, part) for part in group.parts}
    parts = [of_part(views[part.name], part) for part in group.parts]
    stored = {v for view in views.values() for v in view.stored}
    return parts, frozenset(v for v in stored if v.name not in group.outputs)


def _tied(nodes: Nodes, group: Group) -> tuple[Emitted, ...]:
    if not isinstance(group.schedule, LaunchesSchedule):
        raise PlanError(f"group {group.name} has no schedule of what its tiles wait for; write the plan again")
    before = tuple(launch for part in group.parts for launch in _checks(look_up(nodes, part), part))
    return (*before, *tying_of(nodes, group).launches(group.schedule))


def _ticketed(nodes: Nodes, group: Group) -> tuple[Emitted, ...]:
    if not isinstance(group.schedule, TicketSchedule):
        raise PlanError(f"group {group.name} has no schedule of its tickets; write the plan again")
    return (ticketing_of(nodes, group).launch(group.schedule),)


def blocking_of(nodes: Nodes, group: Group) -> tuple[Blocking, BlockSchedule] | str:
    """Return the parts of a group tied by blocks, restricted to slabs as scheduled; or why that is impossible."""
    if not isinstance(group.schedule, BlockSchedule):
        return "it has no schedule of its slabs"
    found = Blocking.of(nodes, group, group.schedule.axes)
    return found if isinstance(found, str) else (found, group.schedule)


def _blocked(nodes: Nodes, group: Group) -> tuple[Emitted, ...]:
    found = blocking_of(nodes, group)
    if isinstance(found, str):
        raise PlanError(f"group {group.name} is no single launch: {found}; write the plan again")
    blocking, schedule = found
    return (blocking.launch(schedule),)


def _banded(nodes: Nodes, group: Group) -> tuple[Emitted, ...]:
    gemm, rows = (look_up(nodes, part) for part in group.parts)
    schedules = [part.schedule for part in group.parts]
    if not (isinstance(schedules[0], GemmSchedule) and isinstance(schedules[1], RowSchedule)):
        raise PlanError(f"group {group.name}: its parts are no GEMM and rows by their schedules; write the plan again")
    if not isinstance(group.schedule, BandSchedule):
        raise PlanError(f"group {group.name} has no schedule of its bands; write the plan again")
    assert gemm.anchor is not None, "a band is of a GEMM"
    after = RowsAfter.of(rows, gemm.anchor.output.shape[-1])
    launch = contraction(AnchoredGroup.of(gemm), schedules[0], Rows(after, group.schedule, schedules[1]))
    inner = frozenset(v for v in (*gemm.outputs, *rows.outputs) if v.name not in group.outputs)
    launch = replace(launch, arguments=tuple(private(arg, inner) for arg in launch.arguments))
    return (*checks(gemm.nodes, gemm.inputs), launch)


def of_part(view: GroupView, group: Group) -> tuple[Emitted, ...]:
    """Return the launches of a single-part group with non-empty outputs, without its index checks."""
    schedule, outputs = group.schedule, view.stored
    if schedule is None and group.kind is GroupKind.ATTENTION:
        raise PlanError(f"group {group.name}: no tile of attention fits this GPU; compile with --planner injective")
    if isinstance(schedule, OpaqueSchedule) and view.anchor is not None:
        return _opaque(view, view.anchor, schedule)
    match schedule:
        case GemmSchedule() | DirectSchedule():
            return (contraction(AnchoredGroup.of(view), schedule),)
        case AttentionSchedule():
            return attention(AnchoredGroup.of(view), schedule)
        case ElementwiseSchedule():
            return (elementwise(view.inputs, outputs, schedule),)
        case TransposeSchedule():
            return (transpose(view.inputs, outputs, schedule),)
        case RowSchedule():
            return (rowwise(view.nodes, legal_roles(view), view.inputs, outputs, (*view.inputs, *outputs), schedule),)
        case SplitRowSchedule():
            return split_rows(view, legal_roles(view), outputs, schedule)
    given = "none" if schedule is None else f"one of template {schedule.template}"
    raise PlanError(f"group {group.name} needs a schedule for a GPU, and has {given}; write the plan again")


def _opaque(view: GroupView, anchor: Node, schedule: OpaqueSchedule) -> tuple[Emitted, ...]:
    match schedule:
        case WindowSchedule():
            return (window(view, schedule),)
        case ScanSchedule():
            return (scan(anchor, schedule),)
        case SortSchedule():
            return (sort(anchor, schedule),)
        case RankSchedule():
            return (ranks(anchor, schedule),)
        case ScatterSchedule():
            return scatter(anchor, schedule)
        case OperatorSchedule():
            return operator(anchor, schedule)
