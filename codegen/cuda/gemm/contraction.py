"""Contraction groups on CUDA: matmuls as GEMMs; convolutions are in `conv`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.gemm.conv import lower_conv
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm, Operand
from tilestitch.codegen.cuda.gemm.lower import lower_gemm
from tilestitch.codegen.cuda.rows.bands import BandRows
from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.groups import GroupView, roles_in
from tilestitch.codegen.launch import PackedArg
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.access.packed import PackedLayout, packed_layouts
from tilestitch.passes.plan.access.strided import Strided
from tilestitch.passes.plan.gemm.check import Machine, why_not_scheduled
from tilestitch.passes.plan.gemm.contractions import matmul_gemm, shares_right
from tilestitch.passes.plan.gemm.units import units_of
from tilestitch.passes.plan.parts import MOST_GATES
from tilestitch.passes.plan.schedules import DirectSchedule, GemmSchedule


def lower_contraction(
    view: GroupView, schedule: GemmSchedule | DirectSchedule, target: CudaTarget, after: BandRows | None = None
) -> tuple[CudaLaunch, ...]:
    """Return the launches of a contraction group whose result has elements, in order.

    after: a row-wise group that follows in the same launch, band by band. Raises KernelError for a schedule that no
    kernel has for this contraction.
    """
    group = anchored(view, target)
    problem = why_not_scheduled(group, schedule, machine_of(target))
    if problem is not None:
        raise KernelError(f"group {view.name}: {problem}; repair the plan or write it again", view.origins)
    group = replace(group, after=after)
    if group.is_matmul:
        assert isinstance(schedule, GemmSchedule)
        return lower_gemm(group, indexed_matmul(group), schedule)
    return lower_conv(group, schedule)


def machine_of(target: CudaTarget) -> Machine:
    """Return what the kernels of a target may use."""
    return Machine(target.name, target.capability, target.specific, target.device.shared_bytes_per_block)


def anchored(view: GroupView, target: CudaTarget) -> Anchored:
    """Return a contraction group with its constants in the layout that its kernels want."""
    roles = roles_in(view)
    units = units_of(roles)
    if units is not None and units.gates > MOST_GATES:
        reason = f"{units.gates} gates, kernels for GPUs at most {MOST_GATES}"
        raise KernelError(f"group {view.name} has {reason}; plan the graph again", view.origins)
    group = Anchored(view.nodes, roles, view.inputs, view.stored, target)
    return replace(group, packed=packed_weights(group))


def indexed_matmul(group: Anchored) -> IndexedGemm:
    """Return a matmul node as a GEMM."""
    left, right, *_ = group.anchor.inputs
    trans_a, trans_b = bool(group.anchor.attrs.get("trans_a")), bool(group.anchor.attrs.get("trans_b"))
    *batch, m, _ = group.result.shape
    shared = shares_right(group.anchor)

    def at(value: Value, transposed: bool, lead: Sequence[Expr], row: Expr, column: Expr) -> tuple[Expr, ...]:
        own = lead[len(lead) - (len(value.shape) - 2) :] if len(value.shape) > 2 else ()
        return (*own, *((column, row) if transposed else (row, column)))

    def place(number: Expr, row: Expr) -> tuple[Expr, ...]:
        """Return batch indices and row within the result."""
        return unravel(row, (*batch, m)) if shared else (*unravel(number, batch), row)

    def index_a(number: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
        *lead, local = place(number, row)
        return at(left, trans_a, lead, local, column)

    def index_b(number: Expr, column: Expr, row: Expr) -> tuple[Expr, ...]:
        lead = (0,) * len(batch) if shared else unravel(number, batch)
        return at(right, trans_b, lead, row, column)

    gemm = matmul_gemm(group, group.layouts)
    assert gemm.gated is None or right in group.packed, "columns of gates lie in their own order"
    return IndexedGemm.of(
        gemm, Operand.of(gemm.a, index_a), Operand.of(gemm.b, index_b),
        lambda number, row, column: (*place(number, row), column),
    )  # fmt: skip


def packed_weights(group: Anchored) -> dict[Value, tuple[PackedArg, Strided]]:
    """Return the anchor's weights as packed arguments and their layouts; nothing if they stay unpacked."""
    trans_b = bool(group.anchor.attrs.get("trans_b"))
    return {
        value: (PackedArg(value.name, layout.key, _Arrange(layout, trans_b)), layout.memory)
        for value, layout in packed_layouts(group).items()
    }


class _Arrange:
    """Function that puts a constant into a layout."""

    def __init__(self, layout: PackedLayout, trans_b: bool) -> None:
        self.layout, self.trans_b = layout, trans_b

    def __call__(self, data: Any) -> Any:
        layout = self.layout
        if layout.codes is not None:
            return layout.codes.arrange(data)
        if layout.units is None:
            return np.ascontiguousarray(np.moveaxis(data, -1, layout.rows_at))
        matrix = layout.units.arrange(data.T if self.trans_b else data)
        return np.ascontiguousarray(matrix.T if layout.along_k else matrix)
