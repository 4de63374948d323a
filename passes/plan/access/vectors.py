"""How many neighbouring elements one memory access moves, and which operands are contiguous along another dimension
than the outputs.
"""

from collections.abc import Sequence

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.accesses import Access, Walk
from tilestitch.compiler.ir.sizes import Size
from tilestitch.compiler.ir.types import storage_bytes

VECTOR_BYTES = 16
"""Bytes of a thread's widest access."""


def lanes_of(values: Sequence[Value], limit: int = 8) -> int:
    """Return the vector length at which the widest of `values` fills 16 bytes, at most `limit`."""
    widest = max([storage_bytes(v.dtype) for v in values], default=4)
    return max(1, min(limit, VECTOR_BYTES // widest))


def extents_of_threads(shape: Sequence[Size], lanes: int, pixels: int) -> tuple[Size, ...]:
    """Return the extents that threads are numbered over if each computes `lanes` channels, which come last, of `pixels`
    neighbouring columns.
    """
    if lanes * pixels == 1:
        return tuple(shape)
    *rest, columns, channels = shape
    return (*rest, columns // pixels, channels // lanes)


def accesses_along(axis: int, extents: Sequence[int], walk: Walk, inputs: Sequence[Value]) -> list[Access]:
    """Return the reads that are contiguous along `axis`, each the only read of its operand."""
    reads = [a for a in walk.accesses if a.value in inputs]
    return [a for a in reads if _runs_along(a, extents) == axis and sum(b.value is a.value for b in reads) == 1]


def _runs_along(access: Access, extents: Sequence[int]) -> int | None:
    """Return the dimension, other than the last, along which an access is contiguous; None if there is none."""
    if access.strides is None or access.strides[-1] in (0, 1):
        return None
    return next((d for d, stride in enumerate(access.strides[:-1]) if stride == 1 and extents[d] > 1), None)
