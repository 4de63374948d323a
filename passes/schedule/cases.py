"""What the schedules of a group must have in common so that a run can select one of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from tilestitch.compiler.ir import Node
from tilestitch.compiler.ir.sizes import bounds_of, symbols_of
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.cases import Case
from tilestitch.passes.plan.cpu.anchors import AnchoredSchedule, plan_of
from tilestitch.passes.plan.cpu.conv import ConvPlan, ConvTransposePlan
from tilestitch.passes.plan.cpu.gemm import GemmPlan
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.partition import partitioned
from tilestitch.passes.plan.launches.cpu import cpu_launches
from tilestitch.passes.plan.launches.cuda.group import cuda_launches
from tilestitch.passes.plan.launches.launch import Launch
from tilestitch.passes.plan.parts import Roles
from tilestitch.passes.plan.schedules import GemmSchedule, OpenGemmSchedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up

from .cuda.gpu import Gpu


def why_not_cases(nodes: Mapping[str, Node], group: Group, target: TargetInfo) -> str | None:
    """Return why the cases of a group of the `nodes` form no decision table; None if they do. Each schedule must be
    legal for the group.
    """
    cases = group.cases
    assert cases is not None
    if group.stages:
        return "it has stages, and cases"
    problem = cases.why_not()
    if problem is not None:
        return problem
    if group.schedule not in [case.schedule for case in cases.cases]:
        return "its schedule, that at typical sizes, is that of none of its cases"
    used = (v for name in group.nodes for v in (*nodes[name].inputs, *nodes[name].outputs))
    known = symbols_of(size for value in used for size in value.shape)
    if not symbols_of([cases.size]) <= known:
        return f"its cases depend on {cases.size}, but its values do not"
    problem = why_not_kept(nodes, group)
    if problem is not None:
        return problem
    first, *others = (Shared.of(nodes, each, target) for each in group.by_case)
    return next((p for other in others if (p := why_not_shared(first, other))), None)


def why_not_kept(nodes: Mapping[str, Node], group: Group) -> str | None:
    """Return why partial sums of a GEMM over open rows may not fit the memory for them; None if they do."""
    cases = (Case(0, None, group.schedule),) if group.schedule is not None else ()
    for case in cases if group.cases is None else group.cases.cases:
        schedule, high = case.schedule, case.high
        if not isinstance(schedule, OpenGemmSchedule) or schedule.split_k == 1:
            continue
        gemm = gemm_of(AnchoredGroup.of(look_up(nodes, group)))
        assert gemm is not None
        if group.cases is not None and group.cases.size != gemm.m:
            return f"split_k is {schedule.split_k}, but its cases depend on {group.cases.size} and not on its rows"
        rows = bounds_of(gemm.m)[1] if high is None else high - 1
        elements, counters = kept_of(gemm, schedule, rows)
        if elements > schedule.kept_elements or counters > schedule.counters:
            return (
                f"{rows} rows in {schedule.split_k} parts need {elements} kept_elements and {counters} counters, and "
                f"there are {schedule.kept_elements} and {schedule.counters}"
            )
    return None


def kept_of(gemm: Gemm, schedule: GemmSchedule, rows: int) -> tuple[int, int]:
    """Return the partial sums of a GEMM with so many rows, and its tiles, each of which has a counter."""
    own, partition = partitioned(replace(gemm, m=rows), schedule)
    return partition.parts * own.elements, partition.blocks // partition.parts


@dataclass(frozen=True)
class Shared:
    """The parts of a scheduled group that are visible outside. packing: the layout of a constant operand, where it
    depends on the schedule.
    """

    launches: tuple[Launch, ...]
    packing: Hashable

    @staticmethod
    def of(nodes: Mapping[str, Node], group: Group, target: TargetInfo, roles: Roles | None = None) -> Shared:
        """Return those of a group. `roles`: of a single-part group, if already known."""
        return Shared(launches_on(nodes, group, target, roles), _packing(nodes, group, roles))


def why_not_shared(one: Shared, other: Shared) -> str | None:
    """Return why two schedules of a group cannot be cases of one table: they have different numbers of launches, or
    different arguments; None if they can.
    """
    if len(one.launches) != len(other.launches):
        return f"its cases have {len(one.launches)} launches and {len(other.launches)}"
    for first, second in zip(one.launches, other.launches, strict=True):
        if _touched(first) != _touched(second):
            return f"its cases {first.kind} and {second.kind} work on other memory"
        if first.beside:
            return f"its case {first.kind} runs beside another launch"
    if one.packing != other.packing:
        return "its cases read constants in different layouts"
    return None


def launches_on(
    nodes: Mapping[str, Node], group: Group, target: TargetInfo, roles: Roles | None = None
) -> tuple[Launch, ...]:
    """Return the launches of a group on a target. `roles`: of a single-part group, if already known."""
    if target.is_gpu:
        return cuda_launches(nodes, group, Gpu.of(target).multiprocessors)
    return cpu_launches(nodes, group, roles)


def _touched(launch: Launch) -> Launch:
    """Return the parts of a launch that must be equal: launch graphs, and the order of launches, depend on them."""
    kept = Launch("", (1, 1, 1))
    return replace(
        launch, kind=kept.kind, grid=kept.grid, block=kept.block, shared_bytes=0, static_shared_bytes=0, scratch_bytes=0
    )


def _packing(nodes: Mapping[str, Node], group: Group, roles: Roles | None) -> Hashable:
    if not isinstance(group.schedule, AnchoredSchedule):
        return None
    plan = plan_of(AnchoredGroup.of(look_up(nodes, group), roles), group.schedule)
    match plan:
        case GemmPlan():
            return ("matmul", plan.packing(plan.shape.batch * plan.shape.gates)) if plan.shape.packed else None
        case ConvPlan() | ConvTransposePlan():
            return (type(plan).__name__, plan.packing) if plan.shape.packed else None
    return type(group.schedule).__name__
