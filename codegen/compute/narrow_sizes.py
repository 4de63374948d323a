"""Expressions over symbols' values inside kernels: in 64 bits, or in 32 if no intermediate value is larger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.polynomial import (
    Extreme,
    Integer,
    Polynomial,
    Quotient,
    Symbol,
    bounds_of,
    over,
    symbols_of,
)
from tilestitch.compiler.ir.sizes import surely
from tilestitch.passes.plan.access.positions import BEYOND

from .dtypes import Expr

Read = Mapping[str, Expr]
"""The variable with the value of each symbol."""
INT32 = 2**31


def in_int64(size: Integer, read: Read) -> Expr:
    """Return the value of a size; the variables are int64."""
    return _Lowering(read, "int64").sum(size)


@dataclass(frozen=True)
class NarrowSizes:
    """Sizes over int32 variables, in a kernel where each of `counts` is less than `INT32_ELEMENTS`.

    `present`: symbols that are nonzero whenever the kernel is launched.
    """

    read: Read
    counts: Sequence[Integer]
    present: frozenset[Symbol]
    _fitting: dict[Integer, bool] = field(default_factory=dict)

    def lowered(self, size: Integer) -> Expr:
        """Return the value of a size: int32 where it certainly is, int64 elsewhere."""
        if not self.fits(size):
            return self._wide(size)
        if all(map(self.fits, _steps(size))):
            return _Lowering(self.read, "int32").sum(size)
        return T.cast(self._wide(size), "int32")

    def _wide(self, size: Integer) -> Expr:
        return in_int64(size, {name: T.cast(value, "int64") for name, value in self.read.items()})

    def fits(self, size: Integer) -> bool:
        """Return whether a size certainly fits an int32: by its range, or as at most a count."""
        if size not in self._fitting:
            self._fitting[size] = self._fits(size)
        return self._fitting[size]

    def _fits(self, size: Integer) -> bool:
        low, high = bounds_of(self._perhaps_0(size))
        if low < -INT32:
            return False
        return high < INT32 or any(self._is_below(size, count) for count in self.counts)

    def _is_below(self, size: Integer, count: Integer) -> bool:
        most = self._perhaps_0(count) + BEYOND
        return any(_is_at_most(self._perhaps_0(one), most) for one in (size, _undivided(size)))

    def _perhaps_0(self, size: Integer) -> Integer:
        """Return the size over ranges that include 0 for symbols that may be 0, which proofs ignore otherwise."""
        empty = [s for s in symbols_of(size) if s.or_empty and s not in self.present]
        return over(size, {s.name: replace(s, low=0) for s in empty}) if empty else size


def _is_at_most(size: Integer, most: Integer) -> bool:
    return surely(lambda: size <= most)


def _undivided(size: Integer) -> Integer:
    """Return an upper bound of a size without quotients: the number of parts is at most what they cover."""
    if not isinstance(size, Polynomial):
        return size
    total: Integer = 0
    for monomial, factor in size.terms.items():
        natural = factor > 0 and all(atom.bounds[0] >= 0 for atom in monomial)
        part: Integer = factor
        for atom in monomial:
            part = part * (_covered(atom) if natural else Polynomial({(atom,): 1}))
        total = total + part
    return total


def _covered(atom: Symbol | Quotient | Extreme) -> Integer:
    """Return x for `(x + 63) // 64`."""
    itself = Polynomial({(atom,): 1})
    if not isinstance(atom, Quotient) or not isinstance(atom.divisor, int) or not isinstance(atom.dividend, Polynomial):
        return itself
    whole = atom.dividend - min(max(atom.dividend.terms.get((), 0), 0), atom.divisor - 1)
    return whole if bounds_of(whole)[0] >= 0 else itself


def _steps(size: Integer) -> Iterable[Integer]:
    """Yield all intermediate results of a size."""
    if not isinstance(size, Polynomial):
        yield size
        return
    total: Integer = 0
    for monomial, factor in size.in_order:
        part: Integer = factor
        yield part
        for atom in monomial:
            if not isinstance(atom, Symbol):
                operands = (atom.dividend, atom.divisor) if isinstance(atom, Quotient) else atom.operands
                for operand in operands:
                    yield from _steps(operand)
            part = part * Polynomial({(atom,): 1})
            yield part
        total = total + part
        yield total


@dataclass(frozen=True)
class _Lowering:
    """Arithmetic in one dtype, in the order of `_steps`."""

    read: Read
    dtype: str

    def sum(self, size: Integer) -> Expr:
        if not isinstance(size, Polynomial):
            return tirx.IntImm(self.dtype, size)
        total: Expr = None
        for monomial, factor in size.in_order:
            part: Expr = None if monomial and factor == 1 else tirx.IntImm(self.dtype, factor)
            for atom in monomial:
                one = self.read[atom.name] if isinstance(atom, Symbol) else self._part(atom)
                part = one if part is None else part * one
            total = part if total is None else total + part
        return total

    def _part(self, atom: Quotient | Extreme) -> Expr:
        if isinstance(atom, Quotient):
            dividend, divisor = self.sum(atom.dividend), self.sum(atom.divisor)
            if bounds_of(atom.dividend)[0] >= 0:
                return tirx.truncdiv(dividend, divisor)
            if isinstance(atom.divisor, int):
                return tirx.floordiv(dividend, divisor)
            # Floor quotients of variables are later taken to have non-negative dividends.
            return tirx.truncdiv(tirx.Select(dividend < 0, dividend - divisor + 1, dividend), divisor)
        first, second = map(self.sum, atom.operands)
        return T.max(first, second) if atom.name == "max" else T.min(first, second)
