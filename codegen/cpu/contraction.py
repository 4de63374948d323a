"""Contraction groups: matrix products here, convolutions in convolution.py, each with its prologue and epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilestitch.codegen.compute.dtypes import Expr, from_storage
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.fusion.roles import Roles

from .abi import KernelLaunch
from .convolution import lower_conv, lower_conv_transpose
from .gemm import GemmShape, emit_gemm, plan_gemm
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
    left, right = group.anchor.inputs
    trans_a, trans_b = bool(group.anchor.attrs.get("trans_a")), bool(group.anchor.attrs.get("trans_b"))
    *batch, m, n = group.result.shape
    k = left.shape[-2] if trans_a else left.shape[-1]
    shared = math.prod(right.shape[:-2]) == 1
    # One right operand for all batch elements: their rows are rows of one product.
    rows = math.prod(batch) * m if shared else m
    gates = n // (group.roles.gate_width or n) if n else 1
    shape = GemmShape(
        rows, n // gates, k, 1 if shared else math.prod(batch), left.dtype, right.dtype, group.acc_dtype, gates,
    )  # fmt: skip
    packs = group.packs_right and (shared or right.shape[:-2] == tuple(batch))
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
        def place(batch_index: Expr, row: Expr) -> tuple[Expr, ...]:
            """Batch indices and row within the result."""
            if shared:
                return unravel(row, (*batch, m))
            return (*unravel(batch_index, batch), row)

        def operand(value: Value, transposed: bool, at: Sequence[Expr], row: Expr, column: Expr) -> Expr:
            lead = at[len(at) - (len(value.shape) - 2) :] if len(value.shape) > 2 else ()
            return around.load(value, (*lead, *((column, row) if transposed else (row, column))))

        def load_a(batch_index: Expr, row: Expr, column: Expr) -> Expr:
            if left in around.flat and shared and not trans_a and left.shape[:-2] == tuple(batch):
                return from_storage(around.flat[left][row * k + column], left.dtype)
            *lead, local = place(batch_index, row)
            return operand(left, trans_a, lead, local, column)

        def load_b(batch_index: Expr, row: Expr, column: Expr) -> Expr:
            lead = (0,) * len(batch) if shared else unravel(batch_index, batch)
            return operand(right, trans_b, lead, row, column)

        def epilogue(batch_index: Expr, row: Expr, column: Expr, *values: Expr) -> None:
            around.finish((*place(batch_index, row), column), *values)

        weights: Operand = LoadedOperand(load_b, "k" if trans_b else "n")
        if packing is not None:
            weights = PackedOperand(around.packed, (lambda b: 0) if shared and gates == 1 else (lambda b: b))
        emit_gemm(plan, load_a, weights, epilogue, task, scratch)

    return group.launch("matmul", plan.tasks, plan.scratch_bytes, packing, matrix, emit)
