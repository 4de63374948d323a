"""How many neighbouring elements one memory access moves."""

from __future__ import annotations

from collections.abc import Sequence

from tilestitch.compiler.ir import Value
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
