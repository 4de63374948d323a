"""How many neighbouring elements one access moves."""

from __future__ import annotations

from collections.abc import Sequence

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import storage_bytes

VECTOR_BYTES = 16
"""Of the widest access of a thread."""


def lanes_of(values: Sequence[Value], limit: int = 8) -> int:
    """Return the elements of a vector such that the widest of `values` fills 16 bytes, at most `limit`."""
    widest = max([storage_bytes(v.dtype) for v in values], default=4)
    return max(1, min(limit, VECTOR_BYTES // widest))
