"""Schedules of groups around a contraction or a window on a CPU."""

from __future__ import annotations

from tilestitch.passes.plan.cpu.anchors import window_of
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.cpu.operands import Matmul, conv_of, conv_transpose_of
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.schedules import Schedule

from .conv import choose_conv, choose_conv_transpose
from .gemm import choose_gemm, choose_gemv
from .window import choose_window


def choose_anchored(group: AnchoredGroup, isa: Isa, threads: int) -> Schedule:
    """Return the schedule of a group around a matmul, a convolution or a window, with non-empty outputs."""
    window = window_of(group)
    if window is not None:
        return choose_window(window, isa, threads)
    if group.anchor.op == "conv":
        return choose_conv(conv_of(group), isa, threads)
    if group.anchor.op == "conv_transpose":
        return choose_conv_transpose(conv_transpose_of(group), isa, threads)
    matmul = Matmul(group)
    return choose_gemv(matmul.gemv, isa, threads) if matmul.streams else choose_gemm(matmul.gemm, isa, threads)
