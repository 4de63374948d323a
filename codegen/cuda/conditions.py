"""Conditions of kernels; None stands for one that is always true."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.compiler.ir.sizes import surely


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
