"""Dry runs: where a group reads its operands as its iteration variables move, without emitting anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm.sym
from tvm import tirx

from tilestitch.compiler.ir.graph import Node, Value

from . import elementwise
from .dtypes import Expr, compute_dtype
from .evaluator import Evaluator
from .indexing import Index, Simplify, broadcast_index, ravel


@dataclass(frozen=True)
class Access:
    """`strides`: by how many elements the position in `value`'s memory moves with each variable; None if it is not linear."""

    value: Value
    strides: tuple[int, ...] | None


class _Probe(Evaluator):
    """Follows indices only: results of arithmetic are opaque variables."""

    def bind(self, expr: Expr) -> Expr:
        return expr

    def _apply(self, node: Node, index: Sequence[Expr]) -> Expr:
        if node.op not in elementwise.RULES:
            return super()._apply(node, index)
        for operand in node.inputs:
            self.value(operand, broadcast_index(index, operand.shape))
        return tirx.Var("x", compute_dtype(node.output.dtype))


Indices = Callable[[Sequence[Expr], Simplify], Sequence[Index]]
"""`indices(variables, simplify)`: the index of each value at a point of the iteration space."""


def probe(values: Sequence[Value], inputs: Iterable[Value], extents: Sequence[int], indices: Indices) -> list[Access]:
    """The accesses that computing and storing `values` takes, with iteration variables that run over `extents`.

    `inputs` are the values that are read from memory.
    """
    variables = [tirx.Var(f"i{d}", "int32") for d in range(len(extents))]
    evaluator = _Probe({})
    for variable, extent in zip(variables, extents, strict=True):
        evaluator.assume(variable, 0, extent)
    found: list[Access] = []

    def read(value: Value) -> Callable[[Sequence[Expr]], Any]:
        def source(index: Sequence[Expr]) -> Any:
            found.append(Access(value, _strides(index, value.shape, variables, evaluator)))
            return tirx.Var("x", compute_dtype(value.dtype))

        return source

    evaluator.sources.update((value, read(value)) for value in inputs)
    for value, index in zip(values, indices(variables, evaluator.simplify), strict=True):
        found.append(Access(value, _strides(index, value.shape, variables, evaluator)))
        evaluator.value(value, index)
    return found


def _strides(
    index: Sequence[Expr], shape: Sequence[int], variables: list[Any], evaluator: Evaluator
) -> tuple[int, ...] | None:
    position = evaluator.simplify(ravel(index, shape))
    if isinstance(position, int):
        return (0,) * len(variables)
    coefficients = tvm.sym.detect_linear_equation(position, variables)
    if not coefficients:
        return None
    values = [int(c.value) if isinstance(c, tirx.IntImm) else None for c in coefficients[:-1]]
    return None if None in values else tuple(values)  # type: ignore[arg-type]
