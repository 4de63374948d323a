"""Schedules chosen at typical sizes, lifted to all sizes of a range."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias

from tilestitch.compiler.ir import Node, is_elementwise
from tilestitch.compiler.ir.errors import UndecidedError
from tilestitch.compiler.ir.sizes import Size, bounds_of, is_open
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.attention.check import why_not_attention
from tilestitch.passes.plan.cpu.anchors import window_of
from tilestitch.passes.plan.cpu.attention import AttentionPlan, attention_of
from tilestitch.passes.plan.cpu.gemm import GemmPlan, GemmShape
from tilestitch.passes.plan.cpu.isa import isa_named
from tilestitch.passes.plan.cpu.limits import LARGEST
from tilestitch.passes.plan.cpu.loops import LoopPlan, alternating
from tilestitch.passes.plan.cpu.opaque import MOST_INSERTED, ScanPlan, ScatterPlan, SortPlan
from tilestitch.passes.plan.cpu.operands import Matmul, conv_of, layout_of
from tilestitch.passes.plan.cpu.schedules import (
    CpuAppendSchedule,
    CpuAttentionSchedule,
    CpuBlockGemmSchedule,
    CpuConvSchedule,
    CpuConvTransposeSchedule,
    CpuFoundSchedule,
    CpuGemmSchedule,
    CpuGemvSchedule,
    CpuLoopSchedule,
    CpuOrderSchedule,
    CpuRegionSchedule,
    CpuRowSchedule,
    CpuScanSchedule,
    CpuScatterSchedule,
    CpuSortSchedule,
    CpuSplitRowSchedule,
    CpuSuppressSchedule,
    CpuTileGemmSchedule,
    CpuWindowSchedule,
    CpuWinogradSchedule,
)
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.check import why_not_scheduled
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedule_check import why_not
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    DirectSchedule,
    GemmSchedule,
    Schedule,
)
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import GroupView, look_up
from tilestitch.passes.schedule.cpu.gemm import with_few_rows
from tilestitch.passes.schedule.cpu.open_images import open_conv, open_window, open_winograd
from tilestitch.passes.schedule.cpu.rows import whole_rows
from tilestitch.passes.schedule.cuda.gpu import Gpu

from .check import why_not_images, why_not_launched, why_not_open
from .cuda import lifted_schedule
from .extents import is_of_open_size, joined

COPIED = 65536
"""Elements that a task copies one by one."""
LINES = 16
"""Lines that a task moves, if their length is open."""
MOVED = 16384
"""Elements that a task moves in vectors, if few are typical."""


def lifted(
    group: Group, typical: Mapping[str, Node], nodes: Mapping[str, Node], target: TargetInfo, model: LatencyModel
) -> Group | str:
    """Return a group that was scheduled among the `typical` nodes, for the open ones of the same names; or why it
    cannot be.
    """
    if not is_of_open_size(group, nodes):
        return group
    try:
        if group.stages:
            return _stages(group, typical, nodes, target, model)
        view, before = look_up(nodes, group), look_up(typical, group)
        roles = roles_of(view.nodes, view.outputs, view.name)
        if not isinstance(roles, Roles) or roles.kind is not group.kind:
            return f"its nodes form no such group at all sizes: {roles}"
        if group.schedule is None and view.stored:
            lacking = f"no kernel of a GPU computes {view.anchor.op if view.anchor else group.kind.value}"
            return lacking if target.is_gpu else "it has no elements at typical sizes, for which schedules are chosen"
        schedule = None
        if group.schedule is not None:
            schedule = _schedule(group.schedule, before, view, roles, target, model)
        if isinstance(schedule, str):
            return schedule
        result = replace(group, schedule=schedule)
        problem = why_not_open(view, schedule)
        if problem is None and schedule is not None:
            problem = _why_not(view, group, roles, schedule, target)
        problem = problem or why_not_launched(nodes, result, target, roles)
        if problem is not None:
            return problem
        return result
    except UndecidedError as error:
        return str(error)


def _why_not(view: GroupView, group: Group, roles: Roles, schedule: Schedule, target: TargetInfo) -> str | None:
    match schedule:
        case GemmSchedule() | DirectSchedule():
            return why_not_scheduled(AnchoredGroup.of(view, roles), schedule, Gpu.of(target).machine)
        case AttentionSchedule():
            return why_not_attention(AnchoredGroup.of(view, roles), schedule, Gpu.of(target).machine)
    return why_not(view, group.kind, roles, schedule)


def _stages(
    group: Group, typical: Mapping[str, Node], nodes: Mapping[str, Node], target: TargetInfo, model: LatencyModel
) -> Group | str:
    stages = []
    for stage in group.stages:
        parts = [lifted(part, typical, nodes, target, model) for part in stage]
        problem = next((part for part in parts if isinstance(part, str)), None)
        if problem is not None:
            return problem
        stages.append(tuple(part for part in parts if isinstance(part, Group)))
    return replace(group, stages=tuple(stages))


def _schedule(
    schedule: Schedule, typical: GroupView, view: GroupView, roles: Roles, target: TargetInfo, model: LatencyModel
) -> Schedule | str:
    if target.is_gpu:
        return lifted_schedule(schedule, typical, view, target, model)
    match schedule:
        case CpuLoopSchedule():
            loops = _loops(schedule, typical.stored[0].shape, view.stored[0].shape)
            if isinstance(loops, str) or _stays_in_place(view) or alternating(view.inputs, view.stored, loops)[1]:
                return loops
            return _in_known_lines(loops, view)
        case CpuRowSchedule() | CpuSplitRowSchedule():
            return _rows_of(schedule, typical, roles, target)
        case CpuGemmSchedule():
            return _gemm(schedule, typical, view, roles)
        case CpuGemvSchedule():
            return _gemv(schedule, view)
        case CpuAttentionSchedule():
            return _attention(schedule, typical, view)
        case CpuSortSchedule():
            return _sort(schedule, SortPlan(_anchor(view), schedule))
        case CpuScanSchedule():
            return _scan(schedule, ScanPlan(_anchor(view), schedule))
        case CpuScatterSchedule():
            return _scatter(schedule, ScatterPlan(_anchor(view), schedule))
        case (
            CpuSuppressSchedule() | CpuRegionSchedule() | CpuAppendSchedule() | CpuFoundSchedule() | CpuOrderSchedule()
        ):
            return schedule
        case CpuConvSchedule() | CpuWindowSchedule() | CpuConvTransposeSchedule():
            return _images(schedule, view, target)
    return f"kernels of template {schedule.template} are for known sizes only"


def _loops(schedule: CpuLoopSchedule, typical: Sequence[int], shape: Sequence[Size]) -> CpuLoopSchedule | str:
    """Lift a loop schedule. Cuts and branches, which save loads where operands differ, stay along dimensions of known
    size. Loops in an order of their own, unless they interleave a few rows, become one over all elements.
    """
    if schedule.order and (turned := _turned(schedule, typical, shape)) is not None:
        return turned
    if schedule.order:
        lanes, every = schedule.lanes, prod(schedule.extents)
        chunk = schedule.chunk * schedule.rows // lanes * lanes
        schedule = CpuLoopSchedule((every,), lanes, min(every, max(chunk, lanes)), 1)
    extents = joined(schedule.extents, typical, shape)
    if extents is None:
        return f"loops over {schedule.extents} are no dimensions of {tuple(typical)}, joined"
    whole = schedule.chunk == schedule.extents[-1]
    chunk = extents[-1] if whole else schedule.chunk
    cuts = () if is_open(extents[-1]) else schedule.cuts
    if is_open(extents[schedule.branch]):
        return replace(schedule, extents=extents, chunk=chunk, cuts=cuts, branch=0, branches=())
    return replace(schedule, extents=extents, chunk=chunk, cuts=cuts)


def _turned(schedule: CpuLoopSchedule, typical: Sequence[int], shape: Sequence[Size]) -> CpuLoopSchedule | None:
    """Return loops that interleave vectors of a few rows as `schedule` does, or None if it does not."""
    loops = LoopPlan(prod(schedule.extents), schedule)
    extents = joined(loops.in_place(schedule.extents), typical, shape)
    if loops.interleaved == 1 or extents is None:
        return None
    inner = extents[schedule.order[-1]]
    chunk = inner if schedule.chunk == schedule.extents[-1] else schedule.chunk
    return replace(schedule, extents=tuple(extents[d] for d in schedule.order), chunk=chunk, cuts=())


def _stays_in_place(view: GroupView) -> bool:
    """Return whether every result element depends only on elements at its own position, or on scalars."""
    shape = view.stored[0].shape
    return all(
        is_elementwise(node.op) and all(v.shape == shape or v.tensor_type.num_elements == 1 for v in node.inputs)
        for node in view.nodes
    )


def _in_known_lines(schedule: CpuLoopSchedule, view: GroupView) -> CpuLoopSchedule:
    """Return loops whose last dimension has known size, if the schedule's is open but ends with known ones that are not
    too short: positions in the others are then computed once per line. That takes quotients by open sizes; those by
    constants, for which the schedule was chosen, cost little. If they are too short, lines have one open dimension
    more, and no other one.
    """
    *outer, inner = schedule.extents
    if not is_open(inner) or schedule.edge:
        return schedule
    known, others = 1, list(view.stored[0].shape)
    while others and not is_open(others[-1]):
        known *= others.pop()
    line: Size = known if known >= schedule.lanes or not others else others.pop() * known
    joined: Size = 1
    while others and joined * line != inner:
        joined = others.pop() * joined
    if line == inner or joined * line != inner:
        return schedule
    elements = MOVED if is_open(schedule.chunk) else schedule.chunk * schedule.rows
    rows = max(1, elements // line) if not is_open(line) else schedule.rows if schedule.rows > 1 else LINES
    return replace(schedule, extents=(*outer, joined, line), chunk=line, rows=rows)


def _gemm(schedule: CpuGemmSchedule, before: GroupView, view: GroupView, roles: Roles) -> CpuGemmSchedule | str:
    """Lift a GEMM schedule. Open rows are split into tiles of the same height, the last one in pieces. A reduction with
    one pass at typical sizes has one at all sizes.
    """
    typical, shape = Matmul(AnchoredGroup.of(before)).gemm, Matmul(AnchoredGroup.of(view, roles)).gemm
    if isinstance(schedule, CpuTileGemmSchedule) and is_open(shape.m):
        schedule = replace(schedule, stage_left=True)  # the last row tile is partial
    if isinstance(schedule, CpuBlockGemmSchedule) and is_open(shape.m):
        schedule = with_few_rows(schedule, shape)
    return _one_pass(schedule, typical) if is_open(shape.k) else schedule


def _gemv(schedule: CpuGemvSchedule, view: GroupView) -> CpuGemvSchedule:
    """Lift a GEMV schedule: tasks are whole groups of rows, or columns, that are read simultaneously."""
    if not is_open(Matmul(AnchoredGroup.of(view)).gemv.rows):
        return schedule
    unit = schedule.lanes * schedule.streams
    return replace(schedule, block=-(-schedule.block // unit) * unit)


def _attention(schedule: CpuAttentionSchedule, before: GroupView, view: GroupView) -> CpuAttentionSchedule:
    """Lift an attention schedule: both GEMMs of a block take all keys at a time, however many there are."""
    typical, shape = (attention_of(AnchoredGroup.of(each)) for each in (before, view))
    if not is_open(shape.keys):
        return schedule
    _, weighed = AttentionPlan(typical, schedule).gemms(schedule.block)
    return replace(
        schedule, scores=replace(schedule.scores, block_panels=LARGEST),
        weighed=_one_pass(schedule.weighed, weighed.shape),
    )  # fmt: skip


def _one_pass(schedule: CpuGemmSchedule, typical: GemmShape) -> CpuGemmSchedule:
    steps = GemmPlan(typical, schedule).steps
    return schedule if schedule.k_block < steps else replace(schedule, k_block=LARGEST)


def _anchor(view: GroupView) -> Node:
    assert view.anchor is not None
    return view.anchor


def _sort(schedule: CpuSortSchedule, plan: SortPlan) -> CpuSortSchedule:
    """Lift a sort schedule: insertion is for a few best elements only; for any number of them, lines are sorted."""
    return replace(schedule, inserts=schedule.inserts and bounds_of(plan.k)[1] <= MOST_INSERTED)


def _scan(schedule: CpuScanSchedule, plan: ScanPlan) -> CpuScanSchedule:
    return schedule if bounds_of(plan.inner)[0] >= schedule.lanes else replace(schedule, lanes=1)


def _scatter(schedule: CpuScatterSchedule, plan: ScatterPlan) -> CpuScatterSchedule:
    """Lift a scatter schedule: elements are copied, or slices updated, one by one where there may be less than a vector
    of them.
    """
    copied = bounds_of(plan.node.inputs[0].tensor_type.num_elements)[0] >= schedule.copy_lanes
    vectors = schedule if copied else replace(schedule, copy_lanes=1, copy_vectors=COPIED)
    return replace(vectors, lanes=1) if is_open(plan.extent) else vectors


Images: TypeAlias = CpuConvSchedule | CpuWindowSchedule | CpuConvTransposeSchedule


def _images(schedule: Images, view: GroupView, target: TargetInfo) -> Images | str:
    """Lift an image schedule: an open batch adds tasks; height and width are split at run time."""
    problem = why_not_images(view)
    if problem is not None:
        return problem
    group = AnchoredGroup.of(view)
    _, sides, _ = layout_of(group.anchor).split(group.anchor.inputs[0].shape)
    if not any(map(is_open, sides)):
        return schedule
    isa = isa_named(target.isa)
    match schedule:
        case CpuWinogradSchedule():
            return open_winograd(conv_of(group), schedule, isa, target.threads)
        case CpuConvSchedule():
            return open_conv(conv_of(group), schedule, isa, target.threads)
        case CpuWindowSchedule():
            shape = window_of(group)
            assert shape is not None
            return open_window(shape, schedule, isa, target.threads)
    return schedule


def _rows_of(
    schedule: CpuRowSchedule | CpuSplitRowSchedule, typical: GroupView, roles: Roles, target: TargetInfo
) -> CpuRowSchedule | str:
    """Lift the schedule of a row-wise group, by which each task computes whole rows: their number is open."""
    before = roles_of(typical.nodes, typical.outputs, typical.name)
    assert isinstance(before, Roles) and before.rows is not None and roles.rows is not None
    whole = schedule if isinstance(schedule, CpuRowSchedule) else whole_rows(typical, before, target.core)
    return _rows(whole, before.rows.shape, roles.rows.shape)


def _rows(schedule: CpuRowSchedule, typical: Sequence[int], shape: Sequence[Size]) -> CpuRowSchedule | str:
    extents = joined(schedule.extents, typical, shape)
    if extents is None:
        return f"loops over {schedule.extents} are no dimensions of {tuple(typical)}, joined"
    return replace(schedule, extents=extents)
