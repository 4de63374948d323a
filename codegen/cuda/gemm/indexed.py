"""A GEMM (`passes.plan.gemm`) with its index arithmetic: positions of operand elements and results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tvm import tirx

from tilestitch.codegen.compute.dtypes import Expr, from_storage, widen
from tilestitch.codegen.cuda.gemm.codes import Weights
from tilestitch.codegen.cuda.surroundings import Surroundings
from tilestitch.passes.plan.gemm.gemm import Gemm, OperandLayout

At = Callable[[Expr, Expr, Expr], tuple[Expr, ...]]
Inside = Callable[[Expr, Expr, Expr], "Expr | None"]


@dataclass(frozen=True)
class Operand(OperandLayout):
    """One operand, with `index(batch, row, k)`, the index of an element in its tensor.

    `inside`: whether that element exists; if not (padding) it counts as zero; None if it always does.
    """

    index: At = field(kw_only=True)
    inside: Inside = field(kw_only=True, default=lambda batch, row, k: None)

    @staticmethod
    def of(layout: OperandLayout, index: At, inside: Inside = lambda batch, row, k: None) -> Operand:
        own = {each.name: getattr(layout, each.name) for each in fields(OperandLayout)}
        return Operand(**own, index=index, inside=inside)

    def element(self, around: Surroundings, batch: Expr, row: Expr, k: Expr, dtype: str) -> Expr:
        """Return the element as `dtype`. It must be inside."""
        if self.codes is not None:
            return widen(Weights(around, self.value, self.codes, batch).element(row, k), "float32", dtype)
        if self.memory is None:
            return widen(around.load(self.value, self.index(batch, row, k)), self.dtype, dtype)
        buffer, position = self.cell(around, batch, row, k)
        return widen(from_storage(buffer[position], self.dtype), self.dtype, dtype)

    def cell(self, around: Surroundings, batch: Expr, row: Expr, k: Expr) -> tuple[Any, Expr]:
        """Return the flat buffer of an operand in memory, and the position of the element."""
        assert self.memory is not None
        position = self.memory.position(self.index(batch, row, k))
        return around.flat[self.memory.root], around.evaluator.simplify(position)


@dataclass(frozen=True)
class IndexedGemm(Gemm):
    """A GEMM, with `place(batch, m, n)`, the index of a result. `there(m)`: whether the row exists; None if it always
    does. If columns are gates, `place` takes units instead of columns.
    """

    a: Operand
    b: Operand
    place: At = field(kw_only=True)
    there: Callable[[Expr], Expr | None] = field(kw_only=True, default=lambda m: None)

    @staticmethod
    def of(gemm: Gemm, a: Operand, b: Operand, place: At) -> IndexedGemm:
        own = {each.name: getattr(gemm, each.name) for each in fields(Gemm)}
        return IndexedGemm(**{**own, "a": a, "b": b}, place=place)

    def swapped(self) -> IndexedGemm:
        """Return the GEMM with its operands exchanged."""
        return replace(self, m=self.n, n=self.m, a=self.b, b=self.a, place=lambda b, m, n: self.place(b, n, m))


def step_of(around: Surroundings, number: Expr, bk: int, within: Expr) -> Expr:
    """Return the reduction step `within` block `number` of bk steps, as a sum that the simplifier can divide.

    So a kernel position is recognised as common to all of them if channels are a multiple of bk.
    """
    for variable, end in ((number, 1 << 30), (within, bk)):
        if isinstance(variable, tirx.Var):
            around.evaluator.assume(variable, 0, end)
    return number * bk + within


def simplified(around: Surroundings, condition: Expr | None) -> Expr | None:
    """Return a condition made simpler by what is assumed of the variables in it; None stands for true."""
    return None if condition is None else around.evaluator.simplify(condition)
