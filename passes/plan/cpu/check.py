"""Whether a CPU kernel can be emitted as scheduled."""

from collections.abc import Iterator

from tilestitch.passes.plan.access.split_rows import Piece, split_reasons
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.group import GroupKind
from tilestitch.passes.plan.parts import ARG_REDUCTIONS, Roles
from tilestitch.passes.plan.view import GroupView

from .anchors import AnchoredSchedule, plan_of
from .attention import AttentionPlan, attention_of
from .limits import size_reasons
from .loops import LoopPlan
from .opaque import OpaqueSchedule, opaque_plan
from .rows import RowGroup, RowPlan
from .schedules import CpuAttentionSchedule, CpuLoopSchedule, CpuRowSchedule, CpuSchedule, CpuSplitRowSchedule


def cpu_reasons(view: GroupView, kind: GroupKind, roles: Roles, schedule: CpuSchedule) -> Iterator[str]:
    """Yield why a non-empty group cannot be computed as scheduled."""
    beyond = [reason for one in _with_pieces(schedule) for reason in size_reasons(one)]
    if beyond:
        yield from beyond
        return
    match schedule:
        case CpuLoopSchedule() if kind is GroupKind.INJECTIVE:
            yield from LoopPlan(view.stored[0].tensor_type.num_elements, schedule).reasons()
        case CpuRowSchedule() if kind is GroupKind.ROWWISE:
            yield from RowPlan(RowGroup(view.nodes, roles, view.inputs, view.stored), schedule).reasons()
        case CpuSplitRowSchedule() if kind is GroupKind.ROWWISE:
            yield from _split_rows(view, roles, schedule)
        case CpuAttentionSchedule() if kind is GroupKind.ATTENTION:
            yield from AttentionPlan(attention_of(AnchoredGroup.of(view, roles)), schedule).reasons()
        case _ if isinstance(schedule, AnchoredSchedule) and (kind is GroupKind.CONTRACTION or _has_windows(view)):
            plan = plan_of(AnchoredGroup.of(view, roles), schedule)
            if isinstance(plan, str):
                yield plan
        case _ if isinstance(schedule, OpaqueSchedule) and kind is GroupKind.OPAQUE:
            assert view.anchor is not None
            alone = opaque_plan(view.anchor, schedule)
            if isinstance(alone, str):
                yield alone
        case _:
            yield f"template {schedule.template} does not compute a group of kind {kind.value}"


def _with_pieces(schedule: CpuSchedule) -> Iterator[CpuSchedule]:
    yield schedule
    if isinstance(schedule, CpuSplitRowSchedule):
        yield from schedule.pieces
    if isinstance(schedule, CpuAttentionSchedule):
        yield from (schedule.scores, schedule.weighed)


def _has_windows(view: GroupView) -> bool:
    return view.anchor is not None and view.anchor.op == "window_reduce"


def _split_rows(view: GroupView, roles: Roles, schedule: CpuSplitRowSchedule) -> Iterator[str]:
    if any(node.op in ARG_REDUCTIONS for node in view.nodes):
        yield "rows in which places are looked for are not cut"
        return
    yield from split_reasons(view, roles, schedule, CpuRowSchedule, _piece)


def _piece(piece: Piece, roles: Roles, schedule: CpuRowSchedule | CpuLoopSchedule) -> Iterator[str]:
    if isinstance(schedule, CpuRowSchedule):
        return RowPlan(RowGroup(piece.nodes, roles, piece.inputs, piece.outputs), schedule).reasons()
    return LoopPlan(piece.outputs[0].tensor_type.num_elements, schedule).reasons()
