"""Assumptions on open sizes: operator rules that hold for some sizes only, and are checked at run time."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache

from .sizes import Size, Symbol, bounds_of, over, typical


@dataclass(frozen=True)
class Claim:
    """Claim that a size is 0 (`exact`), or at least 0. `reason`: the node whose rule it is. `joins`: it is the
    difference of two sizes that meet in a broadcast, either of which might be 1 instead. `apart`: the model is computed
    differently at the sizes that violate it, and is compiled for these on their own.
    """

    size: Size
    exact: bool
    reason: str = field(default="", compare=False)
    joins: bool = field(default=False, compare=False)
    apart: bool = field(default=False, compare=False)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the claim holds for given values of all symbols."""
        value = typical(self.size, sizes)
        return value == 0 if self.exact else value >= 0

    def __str__(self) -> str:
        return f"{self.size} {'=' if self.exact else '>='} 0"


Note = Callable[[Claim], None]
_NOTE: ContextVar[Note | None] = ContextVar("note", default=None)


@contextmanager
def noting(note: Note) -> Iterator[None]:
    """Pass every claim made within the context to `note`."""
    token = _NOTE.set(note)
    try:
        yield
    finally:
        _NOTE.reset(token)


@contextmanager
def because(reason: str) -> Iterator[None]:
    """Add a reason to the claims made within the context."""
    note = _NOTE.get()
    if note is None:
        yield
        return
    with noting(lambda claim: note(claim if claim.reason else replace(claim, reason=reason))):
        yield


def may_be_equal(a: Size, b: Size, joins: bool = False) -> bool:
    """Return whether two sizes are equal or may be; if they may be, that is claimed. `joins`: they meet in a
    broadcast.
    """
    if a == b:
        return True
    low, high = bounds_of(a - b)
    if low > 0 or high < 0:
        return False
    make(Claim(a - b, exact=True, joins=joins))
    return True


def may_be_natural(size: Size) -> bool:
    """Return whether a size is at least 0 or may be; if it may be, that is claimed."""
    low, high = bounds_of(size)
    if low < 0 <= high:
        make(Claim(size, exact=False))
    return high >= 0


def may_differ(a: Size, b: Size) -> bool:
    """Return whether two sizes differ or may differ; if they may, that is claimed."""
    low, high = bounds_of(a - b)
    if low <= 0 <= high and low < high:
        make(Claim((a - b) * (a - b) - 1, exact=False, apart=True))
    return low != 0 or high != 0


@lru_cache(maxsize=1024)
def allowed(symbol: Symbol, claim: Claim) -> Symbol:
    """Return a symbol without the least and the largest sizes at which a claim on it alone certainly does not hold; as
    it is if that is all of them.
    """

    def fails(low: int, high: int) -> bool:
        least, most = bounds_of(over(claim.size, {symbol.name: replace(symbol, low=low, high=high)}))
        return most < 0 or (claim.exact and least > 0)

    if fails(symbol.low, symbol.high):
        return symbol
    sizes = range(symbol.low, symbol.high)
    low = symbol.low + bisect_left(sizes, True, key=lambda size: not fails(symbol.low, size))
    rest = range(low + 1, symbol.high + 1)
    return replace(symbol, low=low, high=low + bisect_left(rest, True, key=lambda size: fails(size, symbol.high)))


def make(claim: Claim) -> None:
    note = _NOTE.get()
    if note is not None:
        note(claim)
