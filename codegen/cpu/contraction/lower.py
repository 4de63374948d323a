"""Groups around a matmul, with prologue and epilogue."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.contraction.block_dots import BlockDotEmitter
from tilestitch.codegen.cpu.contraction.block_planes import BlockPlaneEmitter
from tilestitch.codegen.cpu.contraction.blocks import BlockEmitter
from tilestitch.codegen.cpu.contraction.gemm import GemmEmitter, emit_gemm
from tilestitch.codegen.cpu.contraction.gemv import emit_gemv
from tilestitch.codegen.cpu.contraction.matrix_tiles import TileTaskEmitter
from tilestitch.codegen.cpu.contraction.outer import OuterEmitter
from tilestitch.codegen.cpu.contraction.panels import LoadedOperand, Operand, PackedOperand
from tilestitch.codegen.cpu.surroundings import Operands, Surroundings
from tilestitch.codegen.launch import Places
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.cpu.gemm import GemmPlan
from tilestitch.passes.plan.cpu.gemv import GemvPlan
from tilestitch.passes.plan.cpu.operands import Matmul
from tilestitch.passes.plan.cpu.packing import BlockPacking, Packing


@dataclass(frozen=True)
class _Elements(Matmul):
    """Positions of the elements of a matmul's operands and results."""

    def place(self, batch_index: Expr, row: Expr) -> tuple[Expr, ...]:
        """Return batch indices and row within the result."""
        batch, m, *_ = self.extents
        return unravel(row, (*batch, m)) if self.shared else (*unravel(batch_index, batch), row)

    def group_of(self, around: Surroundings, batch_index: Expr) -> Expr:
        """Return the group of a batch element's packed matrix, or the gate's whose number is given."""
        if self.chosen is not None:
            index = T.bind(T.cast(around.load(self.chosen, (batch_index,)), "int64"))
            return T.Select(index < 0, index + self.operands[1].shape[0], index)
        return 0 if self.shared and self.gemm.gates == 1 else batch_index

    def load_a(self, around: Surroundings, batch_index: Expr, row: Expr, column: Expr) -> Expr:
        (left, _), (batch, _, _, k) = self.operands, self.extents
        if left in around.flat and self.shared and not self.transposed[0] and left.shape[:-2] == batch:
            return from_storage(around.flat[left][row * k + column], left.dtype)
        *lead, local = self.place(batch_index, row)
        return _element(around, left, self.transposed[0], lead, local, column)

    def load_b(self, around: Surroundings, batch_index: Expr, row: Expr, column: Expr) -> Expr:
        batch = self.extents[0]
        lead = (0,) * len(batch) if self.shared else unravel(batch_index, batch)
        return _element(around, self.operands[1], self.transposed[1], lead, row, column)

    def finish(self, around: Surroundings, batch_index: Expr, row: Expr, column: Expr, *values: Expr) -> None:
        around.finish((*self.place(batch_index, row), column), *values)


def _element(around: Surroundings, value: Value, transposed: bool, at: Sequence[Expr], row: Expr, column: Expr) -> Expr:
    lead = at[len(at) - (len(value.shape) - 2) :] if len(value.shape) > 2 else ()
    return around.load(value, (*lead, *((column, row) if transposed else (row, column))))


def lower_gemm(group: Operands, plan: GemmPlan) -> KernelLaunch:
    """Return the launch of a matmul group, in register tiles."""
    matmul, shape = _Elements(group), plan.shape
    trans_b = matmul.transposed[1]
    groups = shape.batch * shape.gates if matmul.chosen is None else group.right.shape[0]
    packing = plan.packing(groups) if shape.packed else None

    def matrix(data: np.ndarray) -> np.ndarray:
        if shape.blocks is not None:
            return data
        swapped = np.swapaxes(data, -1, -2) if trans_b else data
        if shape.gates > 1:
            return np.moveaxis(swapped.reshape(shape.k, shape.gates, shape.n), 1, 0)
        return swapped.reshape(shape.batch, shape.k, shape.n)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        weights: Operand = LoadedOperand(lambda *at: matmul.load_b(around, *at), "k" if trans_b else "n")
        if packing is not None:
            weights = PackedOperand(around.packed, lambda b: matmul.group_of(around, b))
        emit_gemm(
            plan, lambda *at: matmul.load_a(around, *at), weights, lambda *at: matmul.finish(around, *at), task,
            scratch, emitter=_emitter(plan),
        )  # fmt: skip

    places = None if packing is None else _places(packing, group.right, trans_b)
    return group.launch("matmul", plan.tasks, plan.scratch_bytes, packing, matrix, emit, places)


def _places(packing: Packing, right: Value, transposed: bool) -> Places | None:
    """Return the positions of a packed matrix's elements by their index in the constant; None for other than single
    matrices.
    """
    if isinstance(packing, BlockPacking) or packing.groups > 1 or len(right.shape) > 2:
        return None
    return Places(prod(packing.shape), lambda index: packing.place(*(reversed(index) if transposed else index)))


def _emitter(plan: GemmPlan) -> type[GemmEmitter]:
    if plan.multiplies_tiles:
        return TileTaskEmitter
    if plan.shape.blocks is None:
        return OuterEmitter if plan.schedule.k_outer else GemmEmitter
    if plan.planes > 1:
        return BlockPlaneEmitter
    return BlockDotEmitter if plan.rounds else BlockEmitter


def lower_gemv(group: Operands, plan: GemvPlan) -> KernelLaunch:
    """Return the launch of a matmul of one row, or else of one column, with a large operand known at run time."""
    matmul = _Elements(group)
    by_row = matmul.by_row

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        def element(batch: Expr, row: Expr, k: Expr) -> Expr:
            return matmul.load_b(around, batch, k, row) if by_row else matmul.load_a(around, batch, row, k)

        def factor(batch: Expr, k: Expr) -> Expr:
            return matmul.load_a(around, batch, 0, k) if by_row else matmul.load_b(around, batch, k, 0)

        def finish(batch: Expr, row: Expr, value: Expr) -> None:
            matmul.finish(around, batch, *((0, row) if by_row else (row, 0)), value)

        emit_gemv(plan, element, factor, finish, task, scratch)

    return group.launch("gemv", plan.tasks, plan.scratch_bytes, None, lambda data: data, emit)
