"""GEMMs of few rows on GPUs: which GEMMs these are, and what their blocks keep in shared memory.

Code generation (`codegen/cuda/gemm/gemv.py`) and plans agree on this: such GEMMs can be parts of a larger launch.
"""

from __future__ import annotations

from math import prod

from tilestitch.compiler.ir import Value
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.parts import Roles

MOST_ROWS = 8
WARP, WARPS = 32, 8
"""Threads of a warp, and warps of a block."""
SEGMENT = 8
"""Neighbouring lanes that read one step of the reduction, where the large operand runs along its rows."""
LOAD_BYTES = 16
MOST_CHUNK = 512
"""Steps of the reduction whose part of the small operand lies in shared memory, at most."""


def rows_of(roles: Roles) -> int | None:
    """Return the rows of a GEMM that is computed column by column, or columns of one computed row by row."""
    anchor = roles.anchor
    if roles.kind is not GroupKind.CONTRACTION or anchor is None or anchor.op != "matmul":
        return None
    *batch, rows, columns = anchor.output.shape
    if prod(anchor.inputs[1].shape[:-2]) == 1:
        rows *= prod(batch)
    fewest = rows if roles.gate_width is not None else min(rows, columns)
    return fewest if fewest <= MOST_ROWS else None


def most_shared_bytes(roles: Roles, rows: int) -> int:
    """Of a block of such a GEMM: a chunk of the small operand, and the sums of all warps where they need more.

    A bound: a chunk is whole rounds of loads, whose width depends on how the large operand lies.
    """
    assert roles.anchor is not None
    left, right = roles.anchor.inputs
    steps = left.shape[-2 if roles.anchor.attrs.get("trans_a") else -1]
    lanes = LOAD_BYTES // min(_itemsize(left), _itemsize(right))
    least, most = (min(MOST_CHUNK, -(-max(1, steps) // unit) * unit) for unit in (WARP, WARP * lanes))
    sums = WARPS * SEGMENT * lanes
    return rows * (most + (sums if sums > least else 0)) * max(4, _itemsize(roles.anchor.output))


def _itemsize(value: Value) -> int:
    return max(1, value.tensor_type.nbytes // max(1, value.tensor_type.num_elements))
