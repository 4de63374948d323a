"""Which operands of an element-wise group are contiguous along another dimension than the outputs."""

from __future__ import annotations

from collections.abc import Sequence

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.accesses import Access, Walk


def accesses_along(axis: int, extents: Sequence[int], walk: Walk, inputs: Sequence[Value]) -> list[Access]:
    """Return the reads that are contiguous along `axis`, each the only read of its operand."""
    reads = [a for a in walk.accesses if a.value in inputs]
    return [a for a in reads if _runs_along(a, extents) == axis and sum(b.value is a.value for b in reads) == 1]


def _runs_along(access: Access, extents: Sequence[int]) -> int | None:
    """Return the dimension, other than the last, along which an access is contiguous; None if there is none."""
    if access.strides is None or access.strides[-1] in (0, 1):
        return None
    return next((d for d, stride in enumerate(access.strides[:-1]) if stride == 1 and extents[d] > 1), None)
