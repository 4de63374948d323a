"""Contraction groups: matrix products here, convolutions in convolution.py, each with its prologue and epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilestitch.codegen.compute.dtypes import Expr, from_storage
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.plan.roles import Roles

from .abi import KernelLaunch
from .convolution import lower_conv, lower_conv_transpose
from .gemm import GemmShape, emit_gemm, plan_gemm
from .gemv import emit_gemv, plan_gemv
from .isa import Isa
from .panels import LoadedOperand, Operand, PackedOperand
from .surroundings import Operands, Surroundings


def lower_contraction(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], isa: Isa, threads: int
) -> KernelLaunch:
    """The launch of a contraction group; `outputs` are those that have elements."""
    group = Operands(tuple(nodes), roles, tuple(inputs), tuple(outputs), isa, threads)
    return {"matmul": _matmul, "conv": lower_conv, "conv_transpose": lower_conv_transpose}[group.anchor.op](group)


def _matmul(group: Operands) -> KernelLaunch:
    product = _Product(group)
    return _gemv(product) if product.streams else _gemm(product)


@dataclass(frozen=True)
class _Product:
    """A matmul node as products [rows, k] by [k, n]: one right operand for all batch elements makes one of them."""

    group: Operands

    @property
    def operands(self) -> tuple[Value, Value]:
        left, right = self.group.anchor.inputs
        return left, right

    @property
    def transposed(self) -> tuple[bool, bool]:
        attrs = self.group.anchor.attrs
        return bool(attrs.get("trans_a")), bool(attrs.get("trans_b"))

    @cached_property
    def extents(self) -> tuple[tuple[int, ...], int, int, int]:
        """Batch dimensions, m, n and k of the node."""
        *batch, m, n = self.group.result.shape
        left = self.operands[0].shape
        return tuple(batch), m, n, left[-2] if self.transposed[0] else left[-1]

    @cached_property
    def shared(self) -> bool:
        return math.prod(self.operands[1].shape[:-2]) == 1

    @property
    def batch(self) -> int:
        return 1 if self.shared else math.prod(self.extents[0])

    @property
    def rows(self) -> int:
        batch, m, *_ = self.extents
        return math.prod(batch) * m if self.shared else m

    @property
    def streams(self) -> bool:
        """Whether the larger operand of a single row or column is a run-time value, to be read as it lies."""
        n, group = self.extents[2], self.group
        matrix = self.operands[1] if self.rows == 1 else self.operands[0]
        plain = matrix.data is None and group.is_plain(matrix)
        return plain and min(self.rows, n) == 1 and group.roles.gate_width is None

    def place(self, batch_index: Expr, row: Expr) -> tuple[Expr, ...]:
        """Batch indices and row within the result."""
        batch, m, *_ = self.extents
        return unravel(row, (*batch, m)) if self.shared else (*unravel(batch_index, batch), row)

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


def _gemm(product: _Product) -> KernelLaunch:
    group, (left, right), (batch, _, n, k) = product.group, product.operands, product.extents
    trans_a, trans_b = product.transposed
    gates = n // (group.roles.gate_width or n) if n else 1
    shape = GemmShape(
        product.rows, n // gates, k, product.batch, left.dtype, right.dtype, group.acc_dtype, gates,
    )  # fmt: skip
    packs = group.packs_right and (product.shared or right.shape[:-2] == batch)
    plan = plan_gemm(
        shape,
        group.isa,
        threads=group.threads,
        b_packed=packs,
        a_plain=group.is_plain(left),
        a_contiguous="m" if trans_a else "k",
        long_epilogue=group.has_long_epilogue,
    )
    packing = plan.packing(shape.batch * gates) if packs else None

    def matrix(data: np.ndarray) -> np.ndarray:
        swapped = np.swapaxes(data, -1, -2) if trans_b else data
        if gates > 1:
            return np.moveaxis(swapped.reshape(k, gates, shape.n), 1, 0)
        return swapped.reshape(shape.batch, k, n)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        weights: Operand = LoadedOperand(lambda *at: product.load_b(around, *at), "k" if trans_b else "n")
        if packing is not None:
            weights = PackedOperand(around.packed, (lambda b: 0) if product.shared and gates == 1 else (lambda b: b))
        emit_gemm(
            plan, lambda *at: product.load_a(around, *at), weights, lambda *at: product.finish(around, *at), task,
            scratch,
        )  # fmt: skip

    return group.launch("matmul", plan.tasks, plan.scratch_bytes, packing, matrix, emit)


def _gemv(product: _Product) -> KernelLaunch:
    """A product of one row, or else of one column."""
    group, (left, right), (_, _, n, k) = product.group, product.operands, product.extents
    by_row = product.rows == 1
    matrix, vector, length = (right, left, n) if by_row else (left, right, product.rows)
    plan = plan_gemv(
        length, k, product.batch, (matrix.dtype, vector.dtype, group.acc_dtype), group.isa,
        along_k=product.transposed[1] if by_row else not product.transposed[0], threads=group.threads,
    )  # fmt: skip

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        def element(batch: Expr, row: Expr, k: Expr) -> Expr:
            return product.load_b(around, batch, k, row) if by_row else product.load_a(around, batch, row, k)

        def factor(batch: Expr, k: Expr) -> Expr:
            return product.load_a(around, batch, 0, k) if by_row else product.load_b(around, batch, k, 0)

        def finish(batch: Expr, row: Expr, value: Expr) -> None:
            product.finish(around, batch, *((0, row) if by_row else (row, 0)), value)

        emit_gemv(plan, element, factor, finish, task, scratch)

    return group.launch("gemv", plan.tasks, plan.scratch_bytes, None, lambda data: data, emit)
