"""Integer expressions over symbols with ranges: sums of products of symbols, floor quotients, maxima and minima.

Every expression is kept in normal form, so that expressions equal by the laws of sums, multiples and products compare
equal. Comparisons are proven: an order that the ranges of the symbols do not decide raises `UndecidedError`. Constant
results are Python integers.

The text form, of `str` and `parse`: `batch * (past + seq) // 2`, `max(0, seq - 4)`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm
from typing import Any, TypeAlias, Union

from .errors import UndecidedError
from .in_kernel import in_kernel

Integer: TypeAlias = Union[int, "Polynomial"]

MOST_CASES = 3
"""Most maxima and minima in one sum whose bounds are found by case analysis."""
FAR = 1 << 62
"""Infinity: an end of an unbounded range."""


@dataclass(frozen=True)
class Symbol:
    """A named size from `low` to `high`, both inclusive.

    `or_empty`: it may also be 0. Proofs ignore that: with that size there is nothing to compute. Where it stands beside
    other data, as among the parts of a concat, use `perhaps_empty`. `given`: whether its range was requested, rather
    than the default, or derived from that by the model.
    """

    name: str
    low: int = 0
    high: int = FAR
    or_empty: bool = False
    given: bool = True

    @property
    def bounds(self) -> tuple[int, int]:
        return self.low, self.high

    @property
    def symbols(self) -> frozenset[Symbol]:
        return frozenset((self,))

    def __str__(self) -> str:
        return self.name

    def at(self, values: Mapping[str, Integer]) -> Integer:
        return values[self.name] if self.name in values else Polynomial({(self,): 1})

    def over(self, symbols: Mapping[str, Symbol]) -> Symbol:
        return symbols.get(self.name, self)


class _Term:
    """A factor of an expression that is not a sum or product. Equal ones have equal text."""

    bounds: tuple[int, int]
    symbols: frozenset[Symbol]
    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Term) and self.text == other.text and self.symbols == other.symbols

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def stays(self, values: Mapping[str, Integer]) -> bool:
        """Return whether none of its symbols has a value: then nothing is simplified, as by `over`."""
        return values.keys().isdisjoint(symbol.name for symbol in self.symbols)


class Quotient(_Term):
    """The floor of `dividend / divisor`; the divisor is positive."""

    def __init__(self, dividend: Integer, divisor: Integer) -> None:
        self.dividend, self.divisor = dividend, divisor
        (low, high), (least, most) = bounds_of(dividend), bounds_of(divisor)
        self.bounds = min(low // least, low // most), max(high // least, high // most)
        self.symbols = symbols_of(dividend) | symbols_of(divisor)
        self.text = f"{_factor(dividend)} // {_factor(divisor)}"

    def at(self, values: Mapping[str, Integer]) -> Integer:
        if self.stays(values):
            return Polynomial({(self,): 1})
        return at(self.dividend, values) // at(self.divisor, values)

    def over(self, symbols: Mapping[str, Symbol]) -> Quotient:
        return Quotient(over(self.dividend, symbols), over(self.divisor, symbols))


class Extreme(_Term):
    """The maximum or minimum of two expressions whose order is open."""

    def __init__(self, name: str, operands: tuple[Integer, Integer]) -> None:
        choose: Callable[[Iterable[int]], int] = max if name == "max" else min
        self.name, self.operands = name, operands
        lows, highs = zip(*map(bounds_of, operands), strict=True)
        self.bounds = choose(lows), choose(highs)
        self.symbols = symbols_of(operands[0]) | symbols_of(operands[1])
        self.text = f"{name}({operands[0]}, {operands[1]})"

    def at(self, values: Mapping[str, Integer]) -> Integer:
        if self.stays(values):
            return Polynomial({(self,): 1})
        return _extreme(self.name, *(at(operand, values) for operand in self.operands))

    def over(self, symbols: Mapping[str, Symbol]) -> Extreme:
        first, second = (over(operand, symbols) for operand in self.operands)
        return Extreme(self.name, (first, second))


Atom: TypeAlias = Symbol | Quotient | Extreme
Monomial: TypeAlias = tuple[Atom, ...]
"""Factors in the order of their text; the empty product is 1."""


class Polynomial:
    """A sum of multiples of monomials that is not constant."""

    __slots__ = ("__dict__", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms

    # -- what it is ----------------------------------------------------------------------------------------------

    @cached_property
    def in_order(self) -> tuple[tuple[Monomial, int], ...]:
        """The terms in a canonical order, positive ones first."""
        return tuple(sorted(self.terms.items(), key=lambda item: (item[1] < 0, _rank(item))))

    @cached_property
    def text(self) -> str:
        parts: list[str] = []
        for monomial, factor in sorted(self.terms.items(), key=_rank):
            sign = ("- " if factor < 0 else "+ ") if parts else ("-" if factor < 0 else "")
            alone = len(monomial) == 1 and factor == 1
            parts.append(sign + (str(monomial[0]) if alone else _product(monomial, abs(factor))))
        return " ".join(parts)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Bounds of the value for the ranges of the symbols, not always tight."""
        common = _common(self.terms)
        if common:
            rest = made({_left(monomial, common): factor for monomial, factor in self.terms.items()})
            corners = [a * b for a in _bounds_of_product(common) for b in bounds_of(rest)]
            return min(corners), max(corners)
        low, high = _bounds_of_sum(self.terms, lambda atom: atom.bounds)
        if any(len(monomial) > 1 for monomial in self.terms):
            least, most = _bounds_of_sum(_above_least(self.terms), lambda atom: (0, atom.bounds[1] - atom.bounds[0]))
            low, high = max(low, least), min(high, most)
        for found in (_bounds_of_remainders(self.terms), _bounds_by_cases(self.terms)):
            if found is not None:
                low, high = max(low, found[0]), min(high, found[1])
        constant = self.terms.get((), 0)
        step = gcd(*(factor for monomial, factor in self.terms.items() if monomial))
        return constant - (constant - low) // step * step, constant + (high - constant) // step * step

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        return frozenset(s for monomial in self.terms for atom in monomial for s in atom.symbols)

    def at(self, values: Mapping[str, Integer]) -> Integer:
        """Return the expression with some symbols replaced, by name."""
        total: Integer = 0
        for monomial, factor in self.terms.items():
            part: Integer = factor
            for atom in monomial:
                part = part * atom.at(values)
            total = total + part
        return total

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same expression. False does not imply that they differ for all sizes."""
        return isinstance(other, Polynomial) and self.terms == other.terms

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __hash__(self) -> int:
        return self._hash

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int | Polynomial):
            return operator.add(in_kernel(self), other)
        terms = dict(self.terms)
        for monomial, factor in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return made(terms)

    def __radd__(self, other: Any) -> Any:
        return self + other if isinstance(other, int | Polynomial) else operator.add(other, in_kernel(self))

    def __neg__(self) -> Integer:
        return Polynomial({monomial: -factor for monomial, factor in self.terms.items()})

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, int | Polynomial) else operator.sub(in_kernel(self), other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other if isinstance(other, int | Polynomial) else operator.sub(other, in_kernel(self))

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int | Polynomial):
            return operator.mul(in_kernel(self), other)
        if isinstance(other, int):
            return Polynomial({monomial: factor * other for monomial, factor in self.terms.items()}) if other else 0
        terms: dict[Monomial, int] = {}
        for a, one in self.terms.items():
            for b, two in _terms(other).items():
                monomial = tuple(sorted((*a, *b), key=str)) if a and b else a or b
                terms[monomial] = terms.get(monomial, 0) + one * two
        return made(terms)

    def __rmul__(self, other: Any) -> Any:
        return self * other if isinstance(other, int | Polynomial) else operator.mul(other, in_kernel(self))

    def __floordiv__(self, other: Any) -> Any:
        known = isinstance(other, int | Polynomial)
        return quotient(self, other) if known else operator.floordiv(in_kernel(self), other)

    def __rfloordiv__(self, other: Any) -> Any:
        known = isinstance(other, int | Polynomial)
        return quotient(other, self) if known else operator.floordiv(other, in_kernel(self))

    def __mod__(self, other: Any) -> Any:
        known = isinstance(other, int | Polynomial)
        return self - quotient(self, other) * other if known else operator.mod(in_kernel(self), other)

    def __rmod__(self, other: Any) -> Any:
        known = isinstance(other, int | Polynomial)
        return other - quotient(other, self) * self if known else operator.mod(other, in_kernel(self))

    def __truediv__(self, other: Any) -> Any:
        raise UndecidedError(f"what {self} / {other} is")

    def __rtruediv__(self, other: Any) -> Any:
        raise UndecidedError(f"what {other} / {self} is")

    # -- order, as far as it is certain ----------------------------------------------------------------------------

    def __lt__(self, other: Any) -> Any:
        if not isinstance(other, int | Polynomial):
            return operator.lt(in_kernel(self), other)
        return _certain(other - self, lambda low: low > 0, lambda high: high <= 0, f"{self} < {other}")

    def __ge__(self, other: Any) -> Any:
        known = isinstance(other, int | Polynomial)
        return not self < other if known else operator.ge(in_kernel(self), other)

    def __gt__(self, other: Any) -> Any:
        if not isinstance(other, int | Polynomial):
            return operator.gt(in_kernel(self), other)
        return _certain(self - other, lambda low: low > 0, lambda high: high <= 0, f"{self} > {other}")

    def __le__(self, other: Any) -> Any:
        known = isinstance(other, int | Polynomial)
        return not self > other if known else operator.le(in_kernel(self), other)

    def __index__(self) -> int:
        raise UndecidedError(self.text, f"the value of {self} is known only at run time")

    def __tvm_ffi_object__(self) -> Any:
        """Return what TVM uses for it while code is generated."""
        return in_kernel(self)

    def __bool__(self) -> bool:
        low, high = self.bounds
        if low <= 0 <= high:
            raise UndecidedError(f"{self} != 0")
        return True


def made(terms: Mapping[Monomial, int]) -> Integer:
    """Return the sum of these terms, some of which may be 0."""
    kept = {monomial: factor for monomial, factor in terms.items() if factor}
    if not kept:
        return 0
    return kept[()] if len(kept) == 1 and () in kept else Polynomial(kept)


def quotient(dividend: Integer, divisor: Integer) -> Integer:
    """Return the floor of the quotient. Raises UndecidedError where the divisor may be 0 or less."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    exact = exact_quotient(dividend, divisor)
    if exact is not None:
        return exact
    if bounds_of(divisor)[0] <= 0:
        raise UndecidedError(f"{divisor} > 0")
    if not isinstance(divisor, int):
        found = _with_small_remainder(dividend, divisor)
        return _floor(dividend, divisor) if found is None else found
    whole = {m: f // divisor for m, f in _terms(dividend).items() if f % divisor == 0 or not m}
    rest = made({m: f % divisor if not m else f for m, f in _terms(dividend).items() if f % divisor})
    inner = _alone(rest)
    if isinstance(inner, Quotient) and isinstance(inner.divisor, int):  # floor((floor(x / a) + k) / c)
        above = inner.divisor * _terms(rest).get((), 0)
        return made(whole) + quotient(inner.dividend + above, inner.divisor * divisor)
    common = gcd(divisor, *(f for m, f in _terms(rest).items() if m))
    if common > 1:  # what is left may be a quotient and a constant, as above
        return made(whole) + quotient(made({m: f // common for m, f in _terms(rest).items()}), divisor // common)
    return made(whole) + (rest // divisor if isinstance(rest, int) else _floor(rest, divisor))


def _with_small_remainder(dividend: Integer, divisor: Integer) -> Integer | None:
    """Return the quotient if it and a constant remainder are certain: `(4 * n + 1) // (4 * n)` is 1 for `n > 0`."""
    constant = _terms(dividend).get((), 0)
    whole = exact_quotient(dividend - constant, divisor)
    if whole is None or not constant:
        return None
    least = bounds_of(divisor)[0]
    if -least <= constant < least:
        return whole + (0 if constant >= 0 else -1)
    return None


def _alone(size: Integer) -> Atom | None:
    """Return the atom of a sum of one atom and a constant."""
    factors = [(monomial, factor) for monomial, factor in _terms(size).items() if monomial]
    return factors[0][0][0] if len(factors) == 1 and factors[0][1] == 1 and len(factors[0][0]) == 1 else None


def _floor(dividend: Integer, divisor: Integer) -> Integer:
    """Return the floor of a quotient without a whole part. A dividend with a negative leading term is negated and
    rounded up, unless that makes it negative again, as with a divisor of the same leading term.
    """
    if _is_negative_at_head(dividend) and not _is_negative_at_head(-dividend + divisor - 1):
        return -quotient(-dividend + divisor - 1, divisor)
    atom = Quotient(dividend, divisor)
    low, high = atom.bounds
    return low if low == high else Polynomial({(atom,): 1})


def _is_negative_at_head(size: Integer) -> bool:
    return min(_terms(size).items(), key=_rank, default=((), 0))[1] < 0


def exact_quotient(dividend: Integer, divisor: Integer) -> Integer | None:
    """Return the factor of `divisor` in `dividend`, or None if there is none for certain; 0 / 0 counts as any
    factor.
    """
    if dividend == divisor:
        return 1
    if divisor == 1 or divisor == 0:
        return dividend if divisor == 1 else None
    rest, result = dividend, 0
    lead, factor = max(_terms(divisor).items(), key=_rank_of_lead)
    for _ in range(64):
        if isinstance(rest, int) and rest == 0:
            return result
        monomial, count = max(_terms(rest).items(), key=_rank_of_lead)
        left = _without(monomial, lead)
        if left is None or count % factor:
            return None
        step = made({left: count // factor})
        result, rest = result + step, rest - step * divisor
    return None


def largest(a: Integer, b: Integer) -> Integer:
    """Return the maximum of both."""
    return _extreme("max", a, b)


def smallest(a: Integer, b: Integer) -> Integer:
    """Return the minimum of both."""
    return _extreme("min", a, b)


def _extreme(name: str, a: Integer, b: Integer) -> Integer:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b) if name == "max" else min(a, b)
    low, high = bounds_of(a - b)
    if low >= 0 or high <= 0:
        return a if (low >= 0) == (name == "max") else b
    first, second = sorted((a, b), key=str)
    return Polynomial({(Extreme(name, (first, second)),): 1})


def unsimplified(name: str, a: Integer, b: Integer) -> Integer:
    """Return `a // b`, or the `max` or `min` of both, computed only if both are known."""
    if name == "//" and bounds_of(b)[0] <= 0:
        raise UndecidedError(f"{b} > 0")
    if isinstance(a, int) and isinstance(b, int):
        return a // b if name == "//" else _extreme(name, a, b)
    return Polynomial({(Quotient(a, b) if name == "//" else Extreme(name, (a, b)),): 1})


def bounds_of(size: Integer) -> tuple[int, int]:
    """Return the bounds of a size."""
    return (size, size) if isinstance(size, int) else size.bounds


def symbols_of(size: Integer) -> frozenset[Symbol]:
    return frozenset() if isinstance(size, int) else size.symbols


def divisors_of(size: Integer, symbol: Symbol) -> Iterator[int]:
    """Yield the numbers by which a symbol is divided in an expression."""
    for atom in dict.fromkeys(atom for monomial in _terms(size) for atom in monomial):
        if isinstance(atom, Symbol) or symbol not in atom.symbols:
            continue
        inner = atom.operands if isinstance(atom, Extreme) else (atom.dividend, atom.divisor)
        if isinstance(atom, Quotient) and isinstance(atom.divisor, int):
            yield atom.divisor
        for operand in inner:
            yield from divisors_of(operand, symbol)


def at(size: Integer, values: Mapping[str, Integer]) -> Integer:
    """Return the expression with some symbols replaced, by name."""
    return size if isinstance(size, int) else size.at(values)


def over(size: Integer, symbols: Mapping[str, Symbol]) -> Integer:
    """Return the same expression over symbols with other ranges, by name; nothing is simplified by these."""
    if isinstance(size, int):
        return size
    return Polynomial({tuple(atom.over(symbols) for atom in m): factor for m, factor in size.terms.items()})


def if_any(size: Symbol) -> Polynomial:
    """Return an expression that is 1, but 0 where a size is 0. The order of its operands, which no other has, tells its
    text from that of a minimum over the symbol's own range.
    """
    plain = Polynomial({(Symbol(size.name, 0, size.high),): 1})
    return Polynomial({(Extreme("min", (plain, 1)),): 1})


def _terms(size: Integer) -> Mapping[Monomial, int]:
    return ({(): size} if size else {}) if isinstance(size, int) else size.terms


def _certain(difference: Integer, yes: Callable[[int], bool], no: Callable[[int], bool], claim: str) -> bool:
    low, high = bounds_of(difference)
    if yes(low):
        return True
    if no(high):
        return False
    raise UndecidedError(claim)


def _common(terms: Mapping[Monomial, int]) -> Monomial:
    """Return the common factors of all terms, if there are several terms."""
    first, *others = terms
    return tuple(a for a in dict.fromkeys(first) if others and all(a in other for other in others))


def _left(monomial: Monomial, factors: Monomial) -> Monomial:
    left = _without(monomial, factors)
    assert left is not None
    return left


def _bounds_of_product(monomial: Monomial) -> tuple[int, int]:
    low = high = 1
    for atom in monomial:
        corners = [a * b for a in (low, high) for b in atom.bounds]
        low, high = min(corners), max(corners)
    return low, high


def _bounds_by_cases(terms: Mapping[Monomial, int]) -> tuple[int, int] | None:
    """Return bounds by case analysis of maxima and minima in a sum, which share symbols with the rest: `n - min(n, m)`
    is the maximum of 0 and `n - m`. None for a sum without, or with many.
    """
    found = [m for m in terms if len(m) == 1 and isinstance(m[0], Extreme)]
    if not found or len(found) > MOST_CASES:
        return None
    chosen = min(found, key=lambda monomial: str(monomial[0]))
    extreme, factor = chosen[0], terms[chosen]
    rest = made({monomial: count for monomial, count in terms.items() if monomial != chosen})
    assert isinstance(extreme, Extreme)
    lows, highs = zip(*(bounds_of(rest + factor * operand) for operand in extreme.operands), strict=True)
    choose: Callable[[Iterable[int]], int] = max if (extreme.name == "max") == (factor > 0) else min
    return choose(lows), choose(highs)


def where_zero(size: Integer) -> Integer:
    """Return a simpler size that is 0 wherever this one is: common factors of its terms that cannot be 0 are dropped,
    and so is an operand of a maximum or minimum with which the sum cannot be 0: `b * n - b * max(0, m)` is 0 where
    `n - m` is, if b and n are at least 1.
    """
    if isinstance(size, int):
        return size
    common = tuple(atom for atom in _common(size.terms) if atom.bounds[0] > 0)
    size = made({_left(monomial, common): factor for monomial, factor in size.terms.items()})
    for monomial, factor in _terms(size).items():
        extreme = monomial[0] if len(monomial) == 1 else None
        if not isinstance(extreme, Extreme):
            continue
        rest = size - made({monomial: factor})
        cases = [rest + factor * operand for operand in extreme.operands]
        possible = [case for case in cases if bounds_of(case)[0] <= 0 <= bounds_of(case)[1]]
        if len(possible) == 1:
            return where_zero(possible[0])
    return size


def positive_quotients(size: Integer) -> Iterator[Integer]:
    """Yield the quotients in a size that might be 0, but not where the size is."""
    for factor in dict.fromkeys(factor for monomial in _terms(size) for factor in monomial):
        if isinstance(factor, Quotient) and factor.bounds[0] == 0:
            low, high = bounds_of(with_quotient(size, factor, 0))
            if low > 0 or high < 0:
                yield made({(factor,): 1})


def quotients_where_zero(size: Integer) -> Iterator[tuple[Quotient, Integer]]:
    """Yield the quotients that are one term of a size, and in no other, with their values where the size is 0."""
    for monomial, factor in _terms(size).items():
        quotient = monomial[0] if len(monomial) == 1 else None
        if isinstance(quotient, Quotient) and abs(factor) == 1:
            rest = size - made({monomial: factor})
            if not any(quotient in other for other in _terms(rest)):
                yield quotient, rest * -factor


def with_quotient(size: Integer, quotient: Quotient, value: Integer) -> Integer:
    """Return a size with another value in place of a quotient that is among its factors."""
    total: Integer = 0
    for monomial, factor in _terms(size).items():
        part: Integer = factor
        for atom in monomial:
            part = part * (value if atom == quotient else made({(atom,): 1}))
        total = total + part
    return total


def _bounds_of_sum(terms: Mapping[Monomial, int], bounds: Callable[[Atom], tuple[int, int]]) -> tuple[int, int]:
    """Return the bounds of a sum by the bounds of its terms."""
    low = high = 0
    for monomial, factor in terms.items():
        ends = factor, factor
        for atom in monomial:
            corners = [a * b for a in ends for b in bounds(atom)]
            ends = min(corners), max(corners)
        low, high = low + ends[0], high + ends[1]
    return low, high


def _bounds_of_remainders(terms: Mapping[Monomial, int]) -> tuple[int, int] | None:
    """Return bounds of a sum with quotients, each replaced by its dividend less a remainder, over its divisor.

    So `length - 4 * (length // 4)` is in 0 to 3, as is `4 * ((length + 12) // 16) - length // 4`. Done only where fewer
    terms are left, so that it terminates: for all quotients together, or else for one of them.
    """
    places = {m: place for m in terms for place, atom in enumerate(m) if _has_known_divisor(atom)}
    if not places or _open_terms(terms) < 2:
        return None
    for chosen in ([*places], *([m] for m in places if len(places) > 1)):
        scale = lcm(*(_divisor(m[places[m]]) for m in chosen))
        total: Integer = made({m: f * scale for m, f in terms.items() if m not in chosen})
        below = above = 0
        for monomial in chosen:
            place, atom = places[monomial], monomial[places[monomial]]
            divisor = _divisor(atom)
            others = made({(*monomial[:place], *monomial[place + 1 :]): terms[monomial] * (scale // divisor)})
            total = total + others * atom.dividend  # type: ignore[union-attr]
            low, high = bounds_of(others)
            below, above = below - (divisor - 1) * max(high, 0), above - (divisor - 1) * min(low, 0)
        if _open_terms(_terms(total)) < _open_terms(terms):
            low, high = bounds_of(total)
            return -(-(low + below) // scale), (high + above) // scale
    return None


def _has_known_divisor(atom: Atom) -> bool:
    return isinstance(atom, Quotient) and isinstance(atom.divisor, int)


def _divisor(atom: Atom) -> int:
    assert isinstance(atom, Quotient) and isinstance(atom.divisor, int)
    return atom.divisor


def _open_terms(terms: Mapping[Monomial, int]) -> int:
    return sum(1 for monomial in terms if monomial)


def _above_least(terms: Mapping[Monomial, int]) -> dict[Monomial, int]:
    """Return the same sum, with each atom standing for its distance from its least value.

    So `h * w - 2 * h - 2 * w + 4` is positive for `h` and `w` from 3 on: only positive terms are left.
    """
    total: dict[Monomial, int] = {}
    for monomial, factor in terms.items():
        parts: list[tuple[Monomial, int]] = [((), factor)]
        for atom in monomial:
            least = atom.bounds[0]
            parts = [part for m, f in parts for part in (((*m, atom), f), (m, f * least))]
        for part, count in parts:
            total[part] = total.get(part, 0) + count
    return total


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in factors:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _rank(item: tuple[Monomial, int]) -> tuple[int, str]:
    """Return a sort key: products before single symbols before the constant."""
    return -len(item[0]), _product(item[0], 1)


def _rank_of_lead(item: tuple[Monomial, int]) -> tuple[int, str]:
    return len(item[0]), _product(item[0], 1)


def _product(monomial: Monomial, factor: int) -> str:
    parts = [str(factor)] if factor != 1 or not monomial else []
    return " * ".join([*parts, *(f"({atom})" if isinstance(atom, Quotient) else str(atom) for atom in monomial)])


def _factor(size: Integer) -> str:
    text = str(size)
    return text if text.isidentifier() or text.isdecimal() else f"({text})"
