"""From a group of the plan to CUDA launches, by the template of its schedule."""

from contextlib import nullcontext
from dataclasses import replace

from tilestitch.codegen.compute.requantised import keeping
from tilestitch.codegen.compute.sizes import counting_in_32_bits, kernels_over, symbols_among, where_present
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.blocks import lower_blocks
from tilestitch.codegen.cuda.elementwise.injective import lower_injective, value_args
from tilestitch.codegen.cuda.elementwise.transpose import lower_transpose
from tilestitch.codegen.cuda.opaque.checks import lower_index_checks
from tilestitch.codegen.cuda.opaque.found import lower_append, lower_compact, lower_tally
from tilestitch.codegen.cuda.opaque.regions import lower_roi_align
from tilestitch.codegen.cuda.opaque.scan import lower_cumulative
from tilestitch.codegen.cuda.opaque.scatter import lower_scatter
from tilestitch.codegen.cuda.opaque.sort import lower_order_rows, lower_ranks, lower_top_k
from tilestitch.codegen.cuda.opaque.suppress import lower_suppress
from tilestitch.codegen.cuda.opaque.window import lower_window
from tilestitch.codegen.cuda.rows.bands import BandRows
from tilestitch.codegen.cuda.rows.rows import lower_rowwise
from tilestitch.codegen.cuda.stitched import lower_stitched, private
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.codegen.cuda.tickets import TicketPart, lower_tickets
from tilestitch.codegen.cuda.tied import TiedPart, lower_tied
from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.groups import GroupView, check_planned, members, roles_in, touched, view_group
from tilestitch.codegen.launch import SizesArg
from tilestitch.compiler.ir.graph import Graph, Node
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.access.positions import are_narrow, counted, to_check
from tilestitch.passes.plan.gemm.check import why_no_band
from tilestitch.passes.plan.launches.cuda.group import (
    blocking_of,
    cuda_launches,
    grid_if_any,
    stitching_of,
    ticketing_of,
    tying_of,
)
from tilestitch.passes.plan.launches.launch import Launch, needed_for_any
from tilestitch.passes.plan.roles import Roles
from tilestitch.passes.plan.schedule_check import why_not
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    BandSchedule,
    DirectSchedule,
    ElementwiseSchedule,
    GemmSchedule,
    LaunchesSchedule,
    OperatorSchedule,
    RankSchedule,
    RowSchedule,
    ScanSchedule,
    ScatterSchedule,
    Schedule,
    SortSchedule,
    SplitRowSchedule,
    TicketSchedule,
    TransposeSchedule,
    WindowSchedule,
)
from tilestitch.passes.plan.sync.grid import grids_of, walks


def lower_group(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    """Return the launches of a group, in order; none if its outputs have no elements.

    Raises KernelError, naming the ONNX nodes, for a group that no template fits.
    """
    with keeping(frozenset(group.floats)):
        return _checked(graph, group, target, _at_sizes(graph, group, target))


def _at_sizes(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    if not symbols_among([graph.node(name) for name in group.nodes]):
        return _lowered(graph, group, target)
    view = view_group(graph, group)
    counts = counted(view.nodes, view.inputs, view.stored, scores=group.kind is GroupKind.ATTENTION)
    narrow = are_narrow(counts)
    with kernels_over(graph.symbols), counting_in_32_bits(counts) if narrow else nullcontext():
        launches = _lowered(graph, group, target)
    limited = to_check(counts) if narrow else ()
    open_launches = (replace(one, args=(*one.args, SizesArg()), limited=limited) for one in launches)
    return tuple(open_launches)


def _checked(
    graph: Graph, group: Group, target: CudaTarget, launches: tuple[CudaLaunch, ...]
) -> tuple[CudaLaunch, ...]:
    planned = cuda_launches(members(graph, group), group, target.multiprocessors)
    check_planned(group, [_described(graph, group, launch) for launch in launches], planned)
    return launches


def _lowered(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    if group.tie == "band":
        return _banded(graph, group, target)
    if group.tie == "tickets":
        return _ticketed(graph, group, target)
    if group.tie == "block":
        return (_blocked(graph, group, target),)
    if group.tie == "launches":
        return _tied(graph, group, target)
    if group.stages:
        return _stitched(graph, group, target)
    view = view_group(graph, group)
    if not view.stored:
        return ()
    with where_present(needed_for_any(view)):
        checks = () if group.kind is GroupKind.OPAQUE else lower_index_checks(view.nodes, view.inputs)
        launches = (*checks, *_template(view, group, target))
    return tuple(replace(one, grid=grid_if_any(view, one.grid)) for one in launches)


def _described(graph: Graph, group: Group, launch: CudaLaunch) -> Launch:
    """Return the emitted launch in the plan's form."""
    plain = Launch(
        launch.kind, launch.grid, launch.block, cluster=launch.cluster, shared_bytes=launch.shared_bytes,
        static_shared_bytes=launch.static_shared_bytes, cooperative=launch.cooperative, elastic=launch.elastic,
        overlaps=launch.overlaps,
    )  # fmt: skip
    return touched(graph, group, launch.args, plain)


def _stitched(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    """Return the launches of a stitched group. Index checks run before; they belong to the first stage."""
    checks: list[CudaLaunch] = []
    problem = stitching_of(members(graph, group), group, target.multiprocessors).why_not()
    if problem is not None:
        raise KernelError(f"group {group.name} is no single launch: {problem}; write the plan again", group.origins)
    stages: list[list[CudaLaunch]] = []
    inner: dict[str, int] = {}
    for stage in group.stages:
        stages.append([])
        for part in stage:
            view = view_group(graph, part)
            inner.update((v.name, v.tensor_type.nbytes) for v in view.stored if v.name not in group.outputs)
            if view.stored:
                checks += lower_index_checks(view.nodes, view.inputs)
                stages[-1] += _template(view, part, target)
    stages = [stage for stage in stages if stage]
    origins = view_group(graph, group).origins
    return (*checks, lower_stitched(stages, inner, origins, target)) if stages else tuple(checks)


def _blocked(graph: Graph, group: Group, target: CudaTarget) -> CudaLaunch:
    view = view_group(graph, group)
    found = blocking_of(members(graph, group), group)
    problem = found if isinstance(found, str) else found[0].why_not(found[1], target.device.shared_bytes_per_block)
    if isinstance(found, str) or problem is not None:
        raise KernelError(f"group {group.name} is no single launch: {problem}; write the plan again", group.origins)
    return lower_blocks(*found, view.origins)


def _ticketed(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    schedule = group.schedule
    if not isinstance(schedule, TicketSchedule):
        raise KernelError(f"group {group.name} has no schedule of its tickets; write the plan again", group.origins)
    problem = ticketing_of(members(graph, group), group).why_not(target.device.shared_bytes_per_block)
    if problem is not None:
        raise KernelError(f"group {group.name} is no single launch: {problem}; write the plan again", group.origins)
    parts: list[TicketPart] = []
    inner: dict[str, int] = {}
    for part in group.parts:
        view = view_group(graph, part)
        inner.update((v.name, v.tensor_type.nbytes) for v in view.stored if v.name not in group.outputs)
        checks = () if part.kind is GroupKind.OPAQUE else lower_index_checks(view.nodes, view.inputs)
        launches = _template(view, part, target)
        grids = grids_of(view, part.schedule, [launch.grid[0] for launch in launches])
        parts.append(TicketPart(launches, grids, frozenset(v.name for v in view.stored), checks))
    return (lower_tickets(parts, schedule, inner, view_group(graph, group).origins),)


def _tied(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    """Return the launches of a tied group. Index checks run before; they belong to the first stage."""
    schedule = group.schedule
    if not isinstance(schedule, LaunchesSchedule):
        raise KernelError(f"group {group.name} has no schedule of what its tiles wait for; write the plan again")
    problem = tying_of(members(graph, group), group).why_not(target.capability)
    if problem is not None:
        raise KernelError(f"group {group.name}: {problem}; write the plan again", group.origins)
    checks: list[CudaLaunch] = []
    parts: list[TiedPart] = []
    inner: dict[str, int] = {}
    for part in group.parts:
        view = view_group(graph, part)
        inner.update((v.name, v.tensor_type.nbytes) for v in view.stored if v.name not in group.outputs)
        checks += lower_index_checks(view.nodes, view.inputs)
        (launch,) = _template(view, part, target)
        (grid,) = grids_of(view, part.schedule, [launch.grid[0]])
        parts.append(TiedPart(launch, grid, frozenset(v.name for v in view.stored), walks(part.schedule)))
    return (*checks, *lower_tied(parts, schedule, inner))


def _banded(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    from tilestitch.codegen.cuda.gemm.contraction import lower_contraction

    views = [view_group(graph, part) for part in group.parts]
    (gemm, after), schedules = views, [part.schedule for part in group.parts]
    if not (isinstance(schedules[0], GemmSchedule) and isinstance(schedules[1], RowSchedule)):
        raise KernelError(f"group {group.name}: its parts are no GEMM and rows by their schedules", group.origins)
    if not isinstance(group.schedule, BandSchedule):
        raise KernelError(f"group {group.name} has no schedule of its bands; write the plan again", group.origins)
    assert gemm.anchor is not None
    rows = BandRows.scheduled(after, gemm.anchor.output.shape[-1], group.schedule, schedules[1])
    problem = why_no_band(rows, schedules[0], schedules[1], group.schedule)
    if problem is not None:
        raise KernelError(f"group {group.name}: {problem}; repair the plan or write it again", group.origins)
    stored = {v.name: v.tensor_type.nbytes for v in (*gemm.outputs, *after.outputs)}
    inner = {name: nbytes for name, nbytes in stored.items() if name not in group.outputs}
    checks = lower_index_checks(gemm.nodes, gemm.inputs)
    launches = lower_contraction(gemm, schedules[0], target, rows)
    origins = view_group(graph, group).origins
    return (*checks, *(replace(private(launch, inner), origins=origins) for launch in launches))


def _template(view: GroupView, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    """Return the launches of a group of one part, by its schedule."""
    outputs, schedule = view.stored, group.schedule
    if isinstance(schedule, GemmSchedule | DirectSchedule):
        from tilestitch.codegen.cuda.gemm.contraction import lower_contraction

        return lower_contraction(view, schedule, target)
    if group.kind is GroupKind.ATTENTION:
        from tilestitch.codegen.cuda.attention.lower import lower_attention

        if schedule is not None and not isinstance(schedule, AttentionSchedule):
            reason = f"template {schedule.template} does not compute attention"
            raise KernelError(f"group {view.name}: {reason}; write the plan again", view.origins)
        return lower_attention(view, schedule, target)
    roles = roles_in(view)
    _check(view, group, roles)
    args = value_args(view.inputs, outputs)
    match schedule:
        case ElementwiseSchedule():
            return (lower_injective(view.inputs, outputs, schedule, args, view.origins),)
        case TransposeSchedule():
            return (lower_transpose(schedule, view.inputs, outputs, args, view.origins),)
        case RowSchedule() | SplitRowSchedule():
            return lower_rowwise(view, roles, outputs, schedule)
        case WindowSchedule():
            return (lower_window(view, roles, outputs, schedule),)
    assert view.anchor is not None
    return _opaque(view.anchor, schedule)


_OPERATORS = {
    "roi_align": lower_roi_align, "append": lower_append, "tally": lower_tally, "compact": lower_compact,
    "order_rows": lower_order_rows,
}  # fmt: skip


def _opaque(anchor: Node, schedule: Schedule | None) -> tuple[CudaLaunch, ...]:
    """Return the launches of an operator with a template of its own."""
    match schedule:
        case ScanSchedule():
            return (lower_cumulative(anchor, schedule),)
        case SortSchedule():
            return (lower_top_k(anchor, schedule),)
        case RankSchedule():
            return (lower_ranks(anchor, schedule),)
        case ScatterSchedule():
            return lower_scatter(anchor, schedule)
        case OperatorSchedule() if anchor.op == "suppress":
            return lower_suppress(anchor, schedule)
        case OperatorSchedule():
            return (_OPERATORS[anchor.op](anchor, schedule),)
    raise AssertionError(schedule)


def _check(view: GroupView, group: Group, roles: Roles) -> None:
    """Raise KernelError unless the group's schedule can be emitted."""
    anchor = f" around {view.anchor.op}" if view.anchor is not None else ""
    problem = "it has no schedule" if group.schedule is None else why_not(view, group.kind, roles, group.schedule)
    if problem is not None:
        raise KernelError(f"group {view.name}{anchor}: {problem}; repair the plan or write it again", view.origins)
