"""Groups anchored at a contraction or a window, as scheduled for a CPU."""

from dataclasses import replace
from typing import TypeAlias

from tilestitch.passes.plan.gemm.anchored import AnchoredGroup

from .conv import ConvPlan, ConvTransposePlan
from .gemm import GemmPlan
from .gemv import GemvPlan
from .images import ConvShape
from .operands import Matmul, conv_of, conv_transpose_of, layout_of, pool_of
from .schedules import (
    CpuBlockGemmSchedule,
    CpuConvSchedule,
    CpuConvTransposeSchedule,
    CpuDotConvSchedule,
    CpuDotGemmSchedule,
    CpuGemmSchedule,
    CpuGemvSchedule,
    CpuWindowSchedule,
    CpuWinogradSchedule,
)
from .window import WindowPlan
from .winograd import WinogradPlan

AnchoredSchedule: TypeAlias = (
    CpuGemmSchedule
    | CpuDotGemmSchedule
    | CpuBlockGemmSchedule
    | CpuGemvSchedule
    | CpuConvSchedule
    | CpuDotConvSchedule
    | CpuWinogradSchedule
    | CpuConvTransposeSchedule
    | CpuWindowSchedule
)
AnchoredPlan: TypeAlias = GemmPlan | GemvPlan | ConvPlan | ConvTransposePlan | WindowPlan


def window_of(group: AnchoredGroup) -> ConvShape | None:
    """Return the shape of a depthwise convolution or of a pooling window; None for another group."""
    if group.anchor.op == "window_reduce":
        return pool_of(group)
    if group.anchor.op != "conv":
        return None
    shape = conv_of(group)
    if shape.groups != shape.in_channels or shape.groups == 1:
        return None
    return replace(shape, channels_last=layout_of(group.anchor).channels_last)


def plan_of(group: AnchoredGroup, schedule: AnchoredSchedule) -> AnchoredPlan | str:
    """Return the plan that follows from a schedule, or why no kernel computes the group so."""
    plan = _plan_of(group, schedule)
    if isinstance(plan, str):
        return plan
    return next(plan.reasons(), None) or plan


def _plan_of(group: AnchoredGroup, schedule: AnchoredSchedule) -> AnchoredPlan | str:
    op, window = group.anchor.op, window_of(group)
    match schedule:
        case CpuWindowSchedule() if window is not None:
            return WindowPlan.of(window, schedule)
        case CpuWinogradSchedule() if op == "conv":
            return WinogradPlan.of(conv_of(group), schedule)
        case CpuConvSchedule() if op == "conv":
            return ConvPlan.of(conv_of(group), schedule)
        case CpuConvTransposeSchedule() if op == "conv_transpose":
            return ConvTransposePlan(conv_transpose_of(group), schedule)
        case CpuGemmSchedule() if op in ("matmul", "block_matmul"):
            return GemmPlan(Matmul(group).gemm, schedule)
        case CpuGemvSchedule() if op == "matmul":
            matmul = Matmul(group)
            if not matmul.streams:
                return (
                    "only a matrix that is known at run time is read as it lies, times one row or column, without gates"
                )
            return GemvPlan(matmul.gemv, schedule)
    return f"template {schedule.template} does not compute {op}"
