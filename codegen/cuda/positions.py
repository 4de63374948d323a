"""Positions in the kernels of a GPU: their dtype, and conditions on them, of which None is always true."""

from collections.abc import Iterable

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.sizes import counts_in_32_bits
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.sizes import surely
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


def both(*conditions: Expr | None) -> Expr | None:
    """Return the conjunction of the conditions; None stands for true."""
    result: Expr | None = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else T.And(result, condition)
    return result


def below(index: Expr, end: int, reached: int) -> Expr | None:
    """Return whether `index < end`; None if indices stay below `reached <= end` anyway."""
    return None if surely(lambda: reached <= end) else index < end
