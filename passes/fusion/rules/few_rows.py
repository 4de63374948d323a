"""GEMMs of few rows on GPUs: their recognition, and the shared memory of their blocks.

Code generation (`codegen/cuda/gemm/gemv.py`) and plans agree on this: such GEMMs can be parts of a larger launch.
"""

from math import prod

from tilestitch.compiler.ir import Value
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.parts import Roles

MOST_ROWS = 8
WARP, WARPS = 32, 8
"""Threads of a warp, and warps of a block."""
SEGMENT = 8
"""Neighbouring lanes that read one reduction step, if the large operand is contiguous along its rows."""
LOAD_BYTES = 16
MOST_CHUNK = 512
"""Most reduction steps for which the small operand is in shared memory."""


def rows_of(roles: Roles) -> int | None:
    """Return the rows of a GEMM that is computed column by column, or the columns of one computed row by row."""
    anchor = roles.anchor
    if roles.kind is not GroupKind.CONTRACTION or anchor is None or anchor.op != "matmul":
        return None
    *batch, rows, columns = anchor.output.shape
    if prod(anchor.inputs[1].shape[:-2]) == 1:
        rows *= prod(batch)
    fewest = rows if roles.gate_width is not None else min(rows, columns)
    return fewest if fewest <= MOST_ROWS else None


def most_shared_bytes(roles: Roles, rows: int) -> int:
    """Return an upper bound of the shared memory of such a GEMM's block: a chunk of the small operand, or the sums of
    all warps if larger.

    A chunk is whole rounds of loads, whose width depends on the layout of the large operand.
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
