"""Facts about a scheduled group on a CPU: its launches as in the plan, and the work of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, log, log2, prod
from typing import Any

from tilestitch.compiler.ir import Kind, Node, Value, kind_of
from tilestitch.compiler.ir.accesses import walk_over
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.cost_model.counts import EXPENSIVE_OPERATIONS
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Part, Traffic, Unit, kernel_of
from tilestitch.passes.plan.access.split_rows import pieces_of
from tilestitch.passes.plan.attention.operands import of_each_key
from tilestitch.passes.plan.cpu.anchors import AnchoredPlan, AnchoredSchedule, plan_of
from tilestitch.passes.plan.cpu.attention import AttentionPlan, attention_of
from tilestitch.passes.plan.cpu.conv import ConvPlan, ConvTransposePlan
from tilestitch.passes.plan.cpu.gemm import GemmPlan
from tilestitch.passes.plan.cpu.gemv import GemvPlan
from tilestitch.passes.plan.cpu.isa import TILE_BYTES_A_CYCLE, Isa
from tilestitch.passes.plan.cpu.loops import LoopPlan, alternating, lying_across
from tilestitch.passes.plan.cpu.opaque import (
    AppendPlan,
    FoundPlan,
    OpaquePlan,
    OpaqueSchedule,
    OrderPlan,
    RegionPlan,
    ScanPlan,
    ScatterPlan,
    SortPlan,
    SuppressPlan,
    opaque_plan,
)
from tilestitch.passes.plan.cpu.operands import Matmul, layout_of
from tilestitch.passes.plan.cpu.rows import RowGroup, RowPlan
from tilestitch.passes.plan.cpu.schedules import (
    CpuAttentionSchedule,
    CpuLoopSchedule,
    CpuRowSchedule,
    CpuSchedule,
    CpuSplitRowSchedule,
)
from tilestitch.passes.plan.cpu.window import WindowPlan
from tilestitch.passes.plan.cpu.winograd import WinogradPlan
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.group import Group, GroupKind
from tilestitch.passes.plan.index_checks import pending_checks, read_for
from tilestitch.passes.plan.launches.cpu import cpu_launches
from tilestitch.passes.plan.roles import Roles
from tilestitch.passes.plan.view import GroupView, look_up
from tilestitch.passes.schedule.evaluations import evaluations, windows_of
from tilestitch.passes.schedule.work import arithmetic_of, before, read_again, sides_of, work_of

from .choices import choices_of
from .cycles import attention_cycles, conv_cycles, conv_transpose_cycles, gemm_cycles, window_cycles
from .rows import row_walk
from .scalars import STRIDED, apart, apart_along, apart_steps, scalars

UNSTAGED: Mapping[Unit, int] = {"fma": 1, "alu": 1, "special": EXPENSIVE_OPERATIONS}
"""Scalar steps of operations computed within a tile."""
INTERLEAVED_CYCLES = 0.7
"""Fraction of an epilogue's cycles that remains where it is interleaved with multiplications."""
COUNTED = {
    "gathers": frozenset({"gather", "gather_nd", "gather_elements"}), "divisions": frozenset({"div", "mod", "fmod"}),
    "selects": frozenset({"select"}), "casts": frozenset({"cast"}), "concats": frozenset({"concat", "pad"}),
}  # fmt: skip


def cpu_facts(nodes: Mapping[str, Node], group: Group, roles: Roles, isa: Isa, work: Part | None = None) -> KernelFacts:
    """Return the facts of a scheduled single-part group; `nodes` are the graph's nodes by name. `work`: its `work_of`,
    if already known.
    """
    view = look_up(nodes, group)
    launches = () if group.schedule is None else cpu_launches(nodes, group, roles)
    if not launches:
        return kernel_of(work_of(view.nodes, view.outputs, roles))
    checks = () if group.kind is GroupKind.OPAQUE else tuple(_checks(view, roles))
    parts = (*checks, *_scheduled(view, group, roles, isa, work))
    return kernel_of(*(
        replace(part, tasks=launch.blocks, shared_bytes=launch.scratch_bytes)
        for part, launch in zip(parts, launches, strict=True)
    ))  # fmt: skip


def _checks(view: GroupView, roles: Roles) -> Iterator[Part]:
    """Yield a part for each launch that checks indices before use."""
    for pending in pending_checks(view.nodes).values():
        reads = tuple(_whole(value) for value in read_for(pending, view.inputs))
        compared = Arithmetic("alu", "int64", 2 * sum(check.count for check in pending))
        yield Part(roles.kind.value, "int64", reads, arithmetic=(compared,), elements=pending[0].count)


def _whole(value: Value) -> Traffic:
    nbytes = value.tensor_type.nbytes
    return Traffic(value.name, nbytes, nbytes, "weight" if value.is_constant else "activation")


def _scheduled(view: GroupView, group: Group, roles: Roles, isa: Isa, work: Part | None) -> Sequence[Part]:
    schedule = group.schedule
    match schedule:
        case CpuLoopSchedule():
            return (_loops(view.nodes, view.inputs, view.outputs, roles, schedule),)
        case CpuRowSchedule():
            return (_rows(RowGroup(view.nodes, roles, view.inputs, view.stored), schedule),)
        case CpuSplitRowSchedule():
            return tuple(_pieces(view, roles, schedule))
        case CpuAttentionSchedule():
            return (_attention(view, roles, AttentionPlan(attention_of(AnchoredGroup.of(view, roles)), schedule), isa),)
    assert view.anchor is not None
    if isinstance(schedule, OpaqueSchedule):
        opaque = opaque_plan(view.anchor, schedule)
        assert not isinstance(opaque, str), opaque
        return _opaque(work_of(view.nodes, view.outputs, roles), opaque, isa)
    assert isinstance(schedule, AnchoredSchedule), schedule
    plan = plan_of(AnchoredGroup.of(view, roles), schedule)
    assert not isinstance(plan, str), plan
    return (_anchored(view, roles, plan, isa, work),)


def _loops(
    nodes: Sequence[Node], inputs: Sequence[Value], stored: Sequence[Value], roles: Roles, schedule: CpuLoopSchedule
) -> Part:
    """Return the part of loops; a concat costs nothing, as each of its operands has its own loop."""
    counts = evaluations(nodes, stored, roles)
    work = work_of(nodes, stored, roles, counts=counts)
    cut = bool(schedule.cuts or schedule.branches)
    known = scalars((node for node in nodes if not (cut and node.op == "concat")), counts, work.dtype)
    picked, strided = apart(inputs, stored, schedule)
    if len(stored) == 1 and LoopPlan(prod(schedule.extents), schedule).interleaved > 1:
        strided -= 1
    strided -= len(alternating(inputs, stored, schedule)[1] or lying_across(inputs, stored, schedule))
    arithmetic = (*work.arithmetic, *known, *apart_steps(picked, strided, nodes, counts, schedule, work.dtype))
    work = replace(work, arithmetic=arithmetic, lanes=schedule.lanes)
    return _chosen(nodes, work, schedule, picked=ceil(picked), strided=ceil(strided))


def _chosen(nodes: Sequence[Node], part: Part, schedule: CpuSchedule, **shape: Any) -> Part:
    """Return the part with features for models: its template, the choices and their shape, and the number of nodes of
    some kinds.
    """
    counts = {name: sum(node.op in ops for node in nodes) for name, ops in COUNTED.items()}
    counts["views"] = sum(kind_of(node.op) is Kind.VIEW for node in nodes)
    choices = choices_of(nodes=len(nodes), **counts, schedule=schedule, **shape)
    return replace(part, template=schedule.template, choices=choices)


# -- rows --------------------------------------------------------------------------------------------------------------


def _rows(group: RowGroup, schedule: CpuRowSchedule) -> Part:
    """Return the part of row-wise work; what several passes over a row need is computed or read by each, unless
    kept.
    """
    computed = RowPlan(group, schedule).computed
    work = work_of(group.nodes, group.outputs, group.roles, computed)
    counts = {o: o.tensor_type.num_elements * computed.get(o, 1) for node in group.nodes for o in node.outputs}
    picked, strided = apart_along(len(schedule.extents) - 1, row_walk(group, schedule.extents).accesses)
    steps = apart_steps(picked, strided, group.nodes, counts, schedule, work.dtype)
    arithmetic = (*work.arithmetic, *scalars(group.nodes, counts, work.dtype), *steps)
    work = replace(work, arithmetic=arithmetic, lanes=schedule.lanes)
    return _chosen(group.nodes, work, schedule, computed=sum(computed.values()))


def _pieces(view: GroupView, roles: Roles, schedule: CpuSplitRowSchedule) -> Iterator[Part]:
    assert roles.rows is not None
    pieces, own = pieces_of(view, view.stored, roles.rows, schedule.parts)
    names = {value.name: mine.name for value, mine in own.items()}

    def named(traffic: Traffic) -> Traffic:
        name = names.get(traffic.value)
        return replace(traffic, value=name) if name else _temporary(view, traffic)

    for (piece, its), each in zip(pieces, schedule.pieces, strict=True):
        if isinstance(each, CpuRowSchedule):
            part = _rows(RowGroup(piece.nodes, its, piece.inputs, piece.outputs), each)
        else:
            part = _loops(piece.nodes, piece.inputs, piece.outputs, its, each)
        yield replace(part, reads=tuple(map(named, part.reads)), writes=tuple(map(named, part.writes)))


def _temporary(view: GroupView, traffic: Traffic) -> Traffic:
    return replace(traffic, value=f"{view.name}.{traffic.value}", role="temporary")


# -- contractions and windows ------------------------------------------------------------------------------------------


def _anchored(view: GroupView, roles: Roles, plan: AnchoredPlan, isa: Isa, work: Part | None) -> Part:
    assert roles.anchor is not None
    return _tiled(view, roles, roles.anchor.inputs[:2], _again(plan), _cycles(plan, isa), plan, isa, work)


def _attention(view: GroupView, roles: Roles, plan: AttentionPlan, isa: Isa) -> Part:
    assert roles.anchor is not None and roles.softmax is not None
    operands = roles.softmax.key, roles.anchor.inputs[1]
    part = _tiled(view, roles, operands, (plan.parts, plan.parts), attention_cycles(plan, isa), plan, isa)
    counts = evaluations(view.nodes, view.outputs, roles)
    products = (a for a in part.arithmetic if a.unit in ("fma", "mma"))
    nodes, dtype = of_each_key(roles), plan.shape.acc_dtype
    others = (a for a in arithmetic_of(nodes, counts, dtype) if a.unit != "fma")
    return replace(part, arithmetic=(*products, *others, *scalars(nodes, counts, dtype)))


def _again(plan: AnchoredPlan) -> tuple[int, int]:
    """Return how many tasks read the same part of each operand."""
    match plan:
        case GemmPlan():
            return plan.n_blocks, plan.m_blocks
        case GemvPlan():
            return (plan.blocks, 1) if plan.shape.rows == 1 else (1, plan.blocks)
        case ConvPlan():
            return plan.n_blocks, plan.y_blocks * plan.shape.batch * prod(plan.outer)
        case ConvTransposePlan():
            return plan.n_blocks, plan.shape.batch * prod(plan.shape.output[:-1])
    return 1, plan.tasks // plan.channel_blocks


def _cycles(plan: AnchoredPlan, isa: Isa) -> float:
    """Return the cycles of one core for all multiply-adds (comparisons, where windows are pooled); 0 stands for those
    of whole vectors.
    """
    match plan:
        case GemmPlan():
            return gemm_cycles(plan, isa)
        case GemvPlan():
            return 0.0
        case ConvPlan():
            return conv_cycles(plan, isa)
        case ConvTransposePlan():
            return conv_transpose_cycles(plan, isa)
    return window_cycles(plan, isa)


def _multiplied(plan: AnchoredPlan | AttentionPlan) -> str:
    """Return the dtype that is multiplied: sums of groups of integers are wider."""
    plan = plan.second if isinstance(plan, AttentionPlan) else plan
    dot = plan.dot if isinstance(plan, GemmPlan | ConvPlan) else None
    return plan.shape.acc_dtype if dot is None else dot.right


def _neighbours(plan: AnchoredPlan | AttentionPlan) -> int:
    plan = plan.second if isinstance(plan, AttentionPlan) else plan
    return plan.neighbours if isinstance(plan, GemmPlan | ConvPlan) else 1


def _multiplies_tiles(plan: AnchoredPlan | AttentionPlan) -> bool:
    plan = plan.second if isinstance(plan, AttentionPlan) else plan
    return isinstance(plan, GemmPlan | ConvPlan) and plan.multiplies_tiles


def _most_a_cycle(plan: AnchoredPlan | AttentionPlan, lanes: int, isa: Isa) -> float:
    """Return the most multiply-adds per cycle of a core."""
    if _multiplies_tiles(plan):
        return TILE_BYTES_A_CYCLE / storage_bytes(_multiplied(plan))
    return min(lanes, isa.lanes(plan.shape.acc_dtype)) * _neighbours(plan) * isa.fma_ports


def _tiled(
    view: GroupView, roles: Roles, operands: Sequence[Value], again: tuple[int, int], cycles: float,
    plan: AnchoredPlan | AttentionPlan, isa: Isa, work: Part | None = None,
) -> Part:  # fmt: skip
    work, dtype = work or work_of(view.nodes, view.outputs, roles), _multiplied(plan)
    lanes = plan.schedule.scores.lanes if isinstance(plan, AttentionPlan) else plan.schedule.lanes
    unit: Unit = "alu" if roles.anchor is not None and roles.anchor.op == "window_reduce" else "fma"
    tiles = _multiplies_tiles(plan)
    most = cycles * _most_a_cycle(plan, lanes, isa)
    saved = plan.saved if isinstance(plan, WinogradPlan) else 1.0
    share = min(1.0, saved * work.operations(unit) / most) if most else 1.0

    grouped = _neighbours(plan) > 1
    beside = 1 / INTERLEAVED_CYCLES if isinstance(plan, ConvPlan) and plan.interleaves else 1.0

    def scheduled(a: Arithmetic) -> Arithmetic:
        if a.unit != unit:
            return replace(a, dtype=plan.shape.acc_dtype, share=a.share * beside) if grouped else a
        operations = ceil(a.operations * saved)
        return replace(a, unit="mma" if tiles else unit, dtype=dtype, share=share, operations=operations)

    reads = read_again(work.reads, sides_of(view.nodes, operands), again)
    prologue: Iterable[Arithmetic] = ()
    if isinstance(plan, GemmPlan):
        prologue = _prologue(view, roles, plan, work.dtype)
    elif isinstance(plan, WindowPlan | ConvPlan):
        prologue = _image_prologue(view, roles, plan, work.dtype)
    elif isinstance(plan, GemvPlan):
        prologue = _matrix_prologue(view, roles, work.dtype)
    arithmetic = (*map(scheduled, work.arithmetic), *prologue)
    work = replace(work, reads=reads, arithmetic=arithmetic, lanes=lanes * _neighbours(plan))
    return _chosen(view.nodes, work, plan.schedule, shape=plan.shape)


def _prologue(view: GroupView, roles: Roles, plan: GemmPlan, dtype: str) -> Iterator[Arithmetic]:
    """Yield the prologue work on the left operand of a GEMM beyond the first time: each task that copies its rows
    repeats it; and its non-vectorised part. Where rows are not copied, each tile computes its elements one by one.
    """
    assert roles.anchor is not None
    if roles.anchor.inputs[0].producer not in view.nodes:
        return
    nodes, counts = before(view.nodes, roles.anchor), evaluations(view.nodes, view.outputs, roles)
    if not plan.schedule.stage_left:
        of_tiles = {value: count * plan.panels for value, count in counts.items()}
        steps = sum(each.operations * UNSTAGED[each.unit] for each in arithmetic_of(nodes, of_tiles, dtype))
        yield from (Arithmetic("scalar", dtype, count) for count in (steps,) if count)
        return
    again = {value: count * (plan.n_blocks - 1) for value, count in counts.items()}
    yield from arithmetic_of(nodes, again, dtype)
    yield from scalars(nodes, {value: count * plan.n_blocks for value, count in counts.items()}, dtype)


def _matrix_prologue(view: GroupView, roles: Roles, dtype: str) -> Iterator[Arithmetic]:
    """Yield the non-vectorised prologue work on the matrix of a GEMV: each element once, in vectors along memory."""
    assert roles.anchor is not None
    matmul = Matmul(AnchoredGroup.of(view, roles))
    matrix = matmul.operands[1 if matmul.by_row else 0]
    if matrix.producer not in view.nodes:
        return
    read = (access for access in walk_over(matrix.shape, view.inputs, [matrix]).accesses if access.value is not matrix)
    _, strided = apart_along(len(matrix.shape) - 1, read)
    steps = int(prod(matrix.shape) * STRIDED * strided)
    yield from (Arithmetic("scalar", dtype, count) for count in (steps,) if count)
    yield from scalars(before(view.nodes, roles.anchor), evaluations(view.nodes, view.outputs, roles), dtype)


def _image_prologue(view: GroupView, roles: Roles, plan: WindowPlan | ConvPlan, dtype: str) -> Iterator[Arithmetic]:
    """Yield the non-vectorised prologue work on an image: repeated for each tap of each window that does not copy
    it.
    """
    assert roles.anchor is not None
    x = roles.anchor.inputs[0]
    if x.producer not in view.nodes:
        return
    if isinstance(plan, WindowPlan):
        again, over_channels = 1.0, plan.over_channels
    else:
        again = plan.n_blocks / windows_of(roles.anchor) if plan.schedule.stage else float(plan.panels)
        over_channels = plan.shape.channels_last
    nodes, evaluated = before(view.nodes, roles.anchor), evaluations(view.nodes, view.outputs, roles)
    counts = {value: count * again for value, count in evaluated.items()}
    columns, channels = (-2, -1) if layout_of(roles.anchor).channels_last else (-1, 1)
    inputs = [value for value in view.inputs if any(value in node.inputs for node in nodes)]
    read = (access for access in walk_over(x.shape, inputs, [x]).accesses if access.value is not x)
    picked, strided = apart_along(channels if over_channels else columns, read)
    steps = int(counts[x] * (picked + STRIDED * strided))
    yield from (Arithmetic("scalar", dtype, count) for count in (steps,) if count)
    if over_channels:
        yield from scalars(nodes, counts, dtype)


# -- the rest ----------------------------------------------------------------------------------------------------------


RADIX_STEPS = 8
"""Elements that a sort by four bytes counts and moves, for each element."""
ROW_COMPARED = 4
"""Expected elements that a comparison of two rows examines, at most, before they differ."""


def _opaque(work: Part, plan: OpaquePlan, isa: Isa) -> Sequence[Part]:
    match plan:
        case SortPlan():
            sorts = (Arithmetic("alu", work.dtype, _comparisons(plan)),)
            work = replace(work, arithmetic=sorts, lanes=1)
            return (_chosen((plan.node,), work, plan.schedule, size=plan.size, k=plan.k),)
        case ScanPlan():
            # Each addition depends on the previous one.
            chained = tuple(replace(a, share=1 / isa.fma_latency) for a in work.arithmetic)
            work = replace(work, arithmetic=chained, lanes=plan.schedule.lanes)
            return (_chosen((plan.node,), work, plan.schedule),)
        case SuppressPlan():
            pairs = plan.tasks * plan.boxes * max(1, ceil(log2(max(1, plan.boxes))))
            return (replace(work, arithmetic=(Arithmetic("alu", "float32", pairs),), lanes=1),)
        case OrderPlan():
            pairs = plan.rows * max(1, ceil(log2(max(1, plan.rows)))) * min(plan.length, ROW_COMPARED)
            return (replace(work, arithmetic=(Arithmetic("alu", work.dtype, pairs),), lanes=1),)
        case RegionPlan() | FoundPlan():
            return (work,)
        case AppendPlan():
            x = plan.node.inputs[0].tensor_type
            return (replace(work, writes=(Traffic(plan.node.output.name, x.nbytes, x.nbytes),)),)
    return [_chosen((plan.node,), part, plan.schedule) for part in _scatter(work, plan)]


def _comparisons(plan: SortPlan) -> int:
    """Return the comparisons: elements of lines are compared with the last of the best, into which better ones are
    sorted.
    """
    gathered = 1 + log(max(1.0, plan.size / max(1, plan.k)))
    if plan.schedule.inserts:
        return plan.lines * (plan.size + int(plan.k * gathered * plan.k / 2))
    return plan.lines * (plan.size + int(gathered * RADIX_STEPS * plan.capacity))


def _scatter(work: Part, plan: ScatterPlan) -> Sequence[Part]:
    """Return a part for the launch that copies, and one for the launch that applies the updates, if there are any."""
    x, _, updates = (value.name for value in plan.node.inputs)
    copied, applied = (plan.node.inputs[place].tensor_type for place in (0, 2))
    copy = replace(
        work, reads=tuple(t for t in work.reads if t.value == x), lanes=plan.schedule.copy_lanes,
        arithmetic=(Arithmetic("alu", work.dtype, copied.num_elements),),
    )  # fmt: skip
    if not plan.tasks:
        return (copy,)
    update = replace(
        work, reads=tuple(t for t in work.reads if t.value != x or t.value == updates), lanes=plan.schedule.lanes,
        writes=(Traffic(plan.node.output.name, applied.nbytes, min(applied.nbytes, copied.nbytes)),),
        arithmetic=(Arithmetic("alu", work.dtype, applied.num_elements),),
    )  # fmt: skip
    return copy, update
