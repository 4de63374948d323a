"""Quasi-affine integer expressions: sums of multiples of variables, and of floor quotients of such sums.

Every expression is kept in normal form, so that equal ones compare equal: `x // c * c + x % c` is `x`, since a
remainder is written as `x - x // c * c`. Variables have ranges, by which expressions are simplified at once: `(4 * i +
j) // 4` is `i` where `0 <= j < 4`. Index arithmetic of views is closed under these operations.

Operators work between expressions and Python integers; a result that is constant is a Python integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import TypeAlias, Union

Integer: TypeAlias = Union[int, "Affine"]


class Variable:
    """An integer in [0, extent). Variables compare by identity."""

    __slots__ = ("extent", "name")

    def __init__(self, name: str, extent: int) -> None:
        self.name, self.extent = name, extent

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest value."""
        return 0, max(0, self.extent - 1)

    def __repr__(self) -> str:
        return self.name


class Quotient:
    """`dividend // divisor` that no rule simplifies."""

    __slots__ = ("_hash", "bounds", "dividend", "divisor", "variables")

    def __init__(self, dividend: Affine, divisor: int) -> None:
        self.dividend, self.divisor = dividend, divisor
        low, high = dividend.bounds
        self.bounds: tuple[int, int] = (low // divisor, high // divisor)
        self.variables = tuple(variables_of(dividend))  # computed once: quotients are shared, and nest deeply
        self._hash = hash((dividend, divisor))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quotient) and self.divisor == other.divisor and self.dividend == other.dividend

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"({self.dividend}) // {self.divisor}"


Atom: TypeAlias = Variable | Quotient


class Affine:
    """`constant + sum of coefficient * atom` with at least one term and no zero coefficients."""

    __slots__ = ("_bounds", "_hash", "constant", "terms")

    def __init__(self, terms: Mapping[Atom, int], constant: int) -> None:
        self.terms, self.constant = terms, constant
        # Computed lazily: most expressions are summed with others at once.
        self._bounds: tuple[int, int] | None = None
        self._hash: int | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        """Inclusive bounds of the expression, not always tight."""
        if self._bounds is None:
            low = high = self.constant
            for atom, coefficient in self.terms.items():
                least, most = atom.bounds
                if coefficient < 0:
                    least, most = most, least
                low, high = low + least * coefficient, high + most * coefficient
            self._bounds = low, high
        return self._bounds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Affine) and self.constant == other.constant and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.terms.items()), self.constant))
        return self._hash

    def __repr__(self) -> str:
        parts = [str(a) if c == 1 else f"{c} * {a}" for a, c in self.terms.items()]
        return " + ".join([*parts, str(self.constant)] if self.constant else parts)

    def __add__(self, other: Integer) -> Integer:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other) if other else self
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + coefficient
        return _made(terms, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Integer:
        return self * -1

    def __sub__(self, other: Integer) -> Integer:
        return self + -other

    def __rsub__(self, other: int) -> Integer:
        return -self + other

    def __mul__(self, factor: int) -> Integer:
        if not factor:
            return 0
        return Affine({a: c * factor for a, c in self.terms.items()}, self.constant * factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Integer:
        """Return the floor of the quotient; `divisor` must be positive."""
        return _quotient(self, divisor)

    def __mod__(self, divisor: int) -> Integer:
        """Return the remainder in [0, divisor); `divisor` must be positive."""
        return self - _quotient(self, divisor) * divisor


def variable(name: str, extent: int) -> Integer:
    """Return a new variable in [0, extent); 0 for an extent of 1."""
    return 0 if extent == 1 else Affine({Variable(name, extent): 1}, 0)


def bounds(expr: Integer) -> tuple[int, int]:
    """Return inclusive bounds of the expression, not always tight."""
    return (expr, expr) if isinstance(expr, int) else expr.bounds


def linear_in(expr: Integer, variables: list[Integer]) -> tuple[tuple[int, ...], int] | None:
    """Return the coefficients of `variables` (0 for constant ones) and the rest; None if it is not linear in them."""
    if isinstance(expr, int):
        return (0,) * len(variables), expr
    known = {next(iter(v.terms)): i for i, v in enumerate(variables) if isinstance(v, Affine)}
    if not known.keys() >= expr.terms.keys():
        return None
    coefficients = [0] * len(variables)
    for atom, coefficient in expr.terms.items():
        coefficients[known[atom]] = coefficient
    return tuple(coefficients), expr.constant


def variables_of(expr: Integer) -> dict[Variable, None]:
    """Return the variables of an expression, in order."""
    found: dict[Variable, None] = {}
    for atom in () if isinstance(expr, int) else expr.terms:
        found.update(dict.fromkeys((atom,) if isinstance(atom, Variable) else atom.variables))
    return found


def _made(terms: Mapping[Atom, int], constant: int) -> Integer:
    kept = {atom: coefficient for atom, coefficient in terms.items() if coefficient}
    return Affine(kept, constant) if kept else constant


def _quotient(expr: Affine, divisor: int) -> Integer:
    low, high = expr.bounds
    if divisor == 1:
        return expr
    if low // divisor == high // divisor:
        return low // divisor
    whole = {a: c // divisor for a, c in expr.terms.items() if c % divisor == 0}
    rest = {a: c for a, c in expr.terms.items() if c % divisor}
    outside, constant = divmod(expr.constant, divisor)
    return _made(whole, outside) + _fraction(_made(rest, constant), divisor)


def _fraction(rest: Integer, divisor: int) -> Integer:
    """Return the quotient of a rest that contains no multiple of the divisor."""
    if isinstance(rest, int):
        return rest // divisor
    low, high = rest.bounds
    if low // divisor == high // divisor:
        return low // divisor
    rest = _without_small(rest, divisor)
    common = gcd(divisor, *rest.terms.values())
    if common > 1:
        reduced = _made({a: c // common for a, c in rest.terms.items()}, rest.constant // common)
        return reduced if isinstance(reduced, int) else _quotient(reduced, divisor // common)
    if len(rest.terms) == 1 and not rest.constant:
        ((atom, coefficient),) = rest.terms.items()
        if isinstance(atom, Quotient) and coefficient == 1:
            return _quotient(atom.dividend, atom.divisor * divisor)
    return Affine({Quotient(rest, divisor): 1}, 0)


def _without_small(rest: Affine, divisor: int) -> Affine:
    """Return the rest without the terms that together never reach the next multiple of the common divisor of all others
    and the divisor.
    """
    order = sorted(rest.terms.items(), key=lambda term: abs(term[1]))
    low, high = (bound - rest.constant for bound in rest.bounds)
    step = divisor
    for count in range(len(order) - 1, 0, -1):
        atom, coefficient = order[count]
        ends = sorted(bound * coefficient for bound in atom.bounds)
        low, high, step = low - ends[0], high - ends[1], gcd(step, coefficient)
        if step == 1:
            break
        small = rest.constant % step
        if low + small >= 0 and high + small < step:
            return Affine(dict(order[count:]), rest.constant - small)
    return rest
