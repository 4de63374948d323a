"""The dtype of positions in the kernels of a GPU."""

from __future__ import annotations

from collections.abc import Iterable

from tilestitch.codegen.compute.sizes import counts_in_32_bits
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.plan.access import positions


def index_dtype(values: Iterable[Value]) -> str:
    """Return the dtype that holds every position in every one of `values`, some of those of the group being lowered."""
    return "int32" if counts_in_32_bits() else positions.index_dtype(values)


def index_dtype_of(nodes: Iterable[Node]) -> str:
    """Return the dtype that holds every position in every value of the group being lowered."""
    return "int32" if counts_in_32_bits() else positions.index_dtype_of(nodes)


def places_dtype() -> str:
    """Return the dtype of positions in the kernel being emitted, for templates that use 64-bit ones where sizes are
    known.
    """
    return "int32" if counts_in_32_bits() else "int64"
