"""Contraction groups on CUDA: which kernel computes a product, and how matrix products are one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.groups import GroupView
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.plan.roles import Roles

from .abi import CudaLaunch
from .bands import RowsBehind
from .conv import lower_conv, lower_conv_transpose
from .packing import packed_weights
from .planes import matmul_plane
from .product import At, Operand, Product
from .schemes import lower_product
from .strides import strided
from .surroundings import Anchored
from .target import CudaTarget
from .units import units_of


def lower_contraction(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], target: CudaTarget,
    behind: GroupView | None = None,
) -> tuple[CudaLaunch, ...]:  # fmt: skip
    """The launches of a contraction group, in order; `outputs` are those that have elements.

    behind: a row-wise group that follows in the same launch, band by band.
    """
    group = Anchored(tuple(nodes), roles, tuple(inputs), tuple(outputs), target)
    if behind is not None:
        group = replace(group, behind=RowsBehind.of(behind, group.result.shape[-1]))
    group = replace(group, packed=packed_weights(group))
    lower = {"matmul": _lower_matmul, "conv": lower_conv, "conv_transpose": lower_conv_transpose}
    return lower[group.anchor.op](group)


def _lower_matmul(group: Anchored) -> tuple[CudaLaunch, ...]:
    return lower_product(group, matmul_product(group))


def matmul_product(group: Anchored) -> Product:
    """A matmul node as a product."""
    left, right = group.anchor.inputs
    trans_a, trans_b = bool(group.anchor.attrs.get("trans_a")), bool(group.anchor.attrs.get("trans_b"))
    *batch, m, n = group.result.shape
    k = left.shape[-2] if trans_a else left.shape[-1]
    # One right operand for all batch elements: their rows are rows of one product.
    shared = math.prod(right.shape[:-2]) == 1

    def at(value: Value, transposed: bool, lead: Sequence[Expr], row: Expr, column: Expr) -> tuple[Expr, ...]:
        own = lead[len(lead) - (len(value.shape) - 2) :] if len(value.shape) > 2 else ()
        return (*own, *((column, row) if transposed else (row, column)))

    def place(number: Expr, row: Expr) -> tuple[Expr, ...]:
        """Batch indices and row within the result."""
        return unravel(row, (*batch, m)) if shared else (*unravel(number, batch), row)

    def index_a(number: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
        *lead, local = place(number, row)
        return at(left, trans_a, lead, local, column)

    def index_b(number: Expr, column: Expr, row: Expr) -> tuple[Expr, ...]:
        lead = (0,) * len(batch) if shared else unravel(number, batch)
        return at(right, trans_b, lead, row, column)

    rows, units = math.prod(batch) * m if shared else m, units_of(group)
    assert units is None or right in group.packed, "columns of gates lie in their own order"
    n = n if units is None else units.columns
    return Product(
        1 if shared else math.prod(batch), rows, n, k,
        _spaced(operand_of(group, left, rows, index_a, "row" if trans_a else "k"), trans_a, () if shared else batch),
        _spaced(operand_of(group, right, n, index_b, "k" if trans_b else "row"), not trans_b, () if shared else batch),
        lambda number, row, column: (*place(number, row), column),
        group.acc_dtype, group.tf32, gated=units,
    )  # fmt: skip


def _spaced(operand: Operand, k_first: bool, batch: Sequence[int]) -> Operand:
    """The operand with its plane. k_first: whether k is the last but one axis; batch: what leading axes spread to."""
    if operand.memory is None:
        return operand
    return replace(operand, plane=matmul_plane(operand.memory, operand.rows, "row" if k_first else "k", batch))


def operand_of(group: Anchored, value: Value, rows: int, index: At, last: str) -> Operand:
    """An operand whose last axis is `last` of its rows and k."""
    memory = strided(group, value)
    contiguous, axis = last, -1
    if memory is not None and memory.runs_along(-2):
        contiguous, axis = "k" if last == "row" else "row", -2
    run = memory.run(axis, memory.shape[axis]) if memory is not None else 1
    return Operand(value, rows, index, contiguous, run, memory)
