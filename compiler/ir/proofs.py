"""Proofs of inequalities of open sizes that bounds alone do not decide: `4 * n` bytes fit `(n + 15) // 16 * 64`."""

from __future__ import annotations

from collections.abc import Iterator

from .polynomial import Atom, Extreme, Integer, Polynomial, Quotient, Symbol, bounds_of, made
from .sizes import Size, as_size

MOST_TRIED = 500
"""Expressions that are examined before a proof is given up."""


def is_at_most(a: Size, b: Size) -> bool:
    """Return whether `a <= b` provably holds for all sizes of the ranges. False only means that no proof was found."""
    return _is_natural(as_size(b - a), iter(range(MOST_TRIED)))


def _is_natural(size: Integer, budget: Iterator[int]) -> bool:
    """Return whether a size is proven to be at least 0: by its bounds, or by a case analysis that replaces one atom."""
    if bounds_of(size)[0] >= 0:
        return True
    if isinstance(size, int) or next(budget, None) is None:
        return False
    return any(all(_is_natural(each, budget) for each in cases) for cases in _cases(size))


def _cases(size: Polynomial) -> Iterator[tuple[Integer, ...]]:
    """Yield sets of expressions: if all of a set are at least 0, so is the size."""
    atoms = dict.fromkeys(atom for monomial in size.terms for atom in monomial if not isinstance(atom, Symbol))
    quotients = [atom for atom in atoms if isinstance(atom, Quotient)]
    for atom in atoms:
        sign = _sign_of(size, atom)
        if sign and isinstance(atom, Quotient) and isinstance(atom.divisor, int):
            bounds = _below(atom, atom.divisor, quotients) if sign > 0 else [(atom.dividend, atom.divisor)]
            yield from ((_replaced(size, atom, *bound),) for bound in bounds)
        elif sign and isinstance(atom, Extreme):
            choices = tuple(_replaced(size, atom, operand, 1) for operand in atom.operands)
            if (sign > 0) == (atom.name == "max"):
                yield from ((choice,) for choice in choices)
            else:
                yield choices


def _below(atom: Quotient, divisor: int, others: list[Quotient]) -> Iterator[tuple[Integer, int]]:
    """Yield fractions that are lower bounds of a quotient: by other quotients that nest in it, or its dividend."""
    for other in others:
        if other is not atom and isinstance(other.divisor, int) and divisor % other.divisor == 0:
            apart = atom.dividend - other.dividend
            if isinstance(apart, int) and apart % other.divisor == 0:
                ratio = divisor // other.divisor
                yield Polynomial({(other,): 1}) + (apart // other.divisor - ratio + 1), ratio
    yield atom.dividend - (divisor - 1), divisor


def _sign_of(size: Polynomial, atom: Atom) -> int:
    """Return 1 if the size certainly increases with the atom, -1 if it decreases, 0 if neither is certain."""
    signs = set()
    for monomial, factor in size.terms.items():
        if atom in monomial:
            others = list(monomial)
            others.remove(atom)
            certain = atom not in others and all(other.bounds[0] >= 0 for other in others)
            signs.add((1 if factor > 0 else -1) if certain else 0)
    return signs.pop() if len(signs) == 1 else 0


def _replaced(size: Polynomial, atom: Atom, numerator: Integer, denominator: int) -> Integer:
    """Return the size with `numerator / denominator` in place of an atom, times the denominator."""
    total: Integer = 0
    for monomial, factor in size.terms.items():
        rest = list(monomial)
        times: Integer = denominator
        if atom in rest:
            rest.remove(atom)
            times = numerator
        total = total + times * made({tuple(rest): factor})
    return total
