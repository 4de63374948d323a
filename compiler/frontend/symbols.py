"""Open dimensions of a model's inputs as symbols with ranges, narrowed by the model's operators."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from tilestitch.compiler.ir import UNKNOWN, Type, Value
from tilestitch.compiler.ir.claims import Claim, allowed, may_be_equal, may_differ
from tilestitch.compiler.ir.errors import IRError, UndecidedError
from tilestitch.compiler.ir.sizes import (
    Quotient,
    Size,
    Symbol,
    at,
    bounds_of,
    divisor_of,
    is_name,
    is_open,
    largest,
    over,
    parse_size,
    positive_quotients,
    quotients_where_zero,
    size_of,
    symbols_of,
    where_zero,
    with_quotient,
)
from tilestitch.compiler.ir.types import SequenceType, TensorType

from .errors import ModelError, NotStatic

DEFAULT_RANGE = (1, (1 << 31) - 1)
"""Default range of an open dimension."""

MOST_TRIED = 64
"""Most sizes that are tried, from the least one on, until one satisfies a claim."""

Range = tuple[int, int]
"""The least and the largest size, both inclusive."""

Ranks: TypeAlias = Literal["any", "claimed", "claimed otherwise"]
"""Whether sizes on which a rank depends are claimed to differ or to be equal: not, so that a run tells; as is likelier;
or the opposite. In either of the latter, a size that only a run can tell, which Squeeze drops if it is 1, is not 1.
"""

FURTHEST_LEAST = 1 << 16
"""How far the least size of an open dimension may be raised so that claims hold and no tensor is empty."""

FOUND_RANGE = (0, (1 << 31) - 1)
"""Range of a dimension that only a run can tell."""


@dataclass
class Symbols:
    """The symbols of a model's open dimensions, and the sizes that they are known to equal.

    `ranges`: the given ones, by the names of dimensions. A dimension without a name is named after its input and axis.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    whole: bool = False
    """Whether ranges keep the sizes at which a tensor in the model is empty."""
    ranks: Ranks = "any"
    """What is claimed where a rank depends on sizes."""
    unranked: bool = False
    """Whether a rank does, as nothing is claimed."""
    by_name: dict[str, Symbol] = field(default_factory=dict)
    known: dict[str, Size] = field(default_factory=dict)
    asked: dict[str, None] = field(default_factory=dict)
    """The names of all open dimensions of the inputs."""
    joined: dict[str, None] = field(default_factory=dict)
    """Those of them that are assumed equal to others, or to a number, because they meet in a broadcast."""
    sums: dict[str, None] = field(default_factory=dict)
    """Those of them that are assumed equal to sums of others for that reason."""
    met: dict[str, None] = field(default_factory=dict)
    """Those of them that sizes which only a run can tell are assumed to equal, because they meet in a broadcast."""
    few: dict[str, int] = field(default_factory=dict)
    """Those of them that are computed differently up to a size, and that size."""
    _found: dict[str, Symbol] = field(default_factory=dict)
    """Symbols of dimensions that only a run can tell, from the last conversion of the model."""
    _counts: dict[str, int] = field(default_factory=dict)
    extents: dict[Value, Value] = field(default_factory=dict)
    """Tensors whose elements are used as sizes, and the value that has these as its dimensions."""
    emptied: dict[str, tuple[Range, ...]] = field(default_factory=dict)
    """Excluded sizes of the inputs' dimensions, at which a tensor in the model is empty, or shorter than its
    counterpart in a broadcast.
    """
    names: frozenset[str] = frozenset()
    """The model's names of input dimensions that can be symbol names: other symbols must differ from these, as ranges
    are given by both.
    """
    narrowed: dict[str, None] = field(default_factory=dict)
    """Symbols whose ranges are narrowed by operators' rules."""
    _plain: dict[str, str] = field(default_factory=dict)
    """The model's names of the dimensions of symbols."""
    positive: dict[object, None] = field(default_factory=dict)
    """Quotients that are at least 1 wherever the claims hold."""
    taken: list[Size] = field(default_factory=list)
    """The sizes that were assumed for sizes that only a run can tell, once per request: a run must find the same."""

    def in_words(self) -> str:
        """Return what operators, or given ranges, say about open dimensions; empty if nothing."""
        known = [f"{name} = {size}" for name, size in self.known.items()]
        ranges = [f"{s.name} = {s.low}..{s.high}" for s in self.by_name.values() if s.given or s.name in self.narrowed]
        return ", ".join((*known, *ranges))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Within the context, represent dimensions that only a run can tell by symbols as well (`sized`). Those that
        dimensions of inputs are made of stay: operators may follow them from the inputs now, and ask for none.
        """
        self._counts.clear()
        self.extents.clear()
        self.taken.clear()
        told = symbols_of(self.known[name] for name in self.asked if name in self.known)
        gone = [name for name in self._found if name in self.by_name and self.by_name[name] not in told]
        self._found.update((name, self.by_name.pop(name)) for name in gone)
        token = _IN_FORCE.set(self)
        try:
            yield
        finally:
            _IN_FORCE.reset(token)

    def found(self, hint: str, most: int = FOUND_RANGE[1]) -> Size:
        """Return a new symbol for a size that only a run can tell. Converting the model anew gives the same ones."""
        plain = _plain(hint)
        number = self._counts[plain] = self._counts.get(plain, -1) + 1
        name = f"{plain}_{number}" if number else plain
        while name in self.asked:
            name += "_"
        if name in self.known:
            self.taken.append(self.known[name])
            return self.known[name]
        of_inputs = [symbol for symbol in self.by_name.values() if symbol.name in self.asked]
        given = bool(of_inputs) and all(symbol.given for symbol in of_inputs)
        symbol = self._found.setdefault(name, Symbol(name, FOUND_RANGE[0], most, given=given))
        size = size_of(self.by_name.setdefault(name, symbol))
        if most == 0:  # by a claim of the conversion before, if the symbol is older
            may_be_equal(size, 0)
        if any(symbol in symbols_of([self.known[asked]]) for asked in self.asked if asked in self.known):
            self.taken.append(size)  # an input has it as a dimension
        return size

    def size(self, dim: str, input_name: str, axis: int) -> Size:
        """Return the size for a dimension that is not a number: `seq`, `past + seq`, or unknown."""
        name = self._name_of_place(input_name, axis) if dim == UNKNOWN else dim
        names = re.findall(r"[^\W\d]\w*", name)
        if len(names) > 1 or (names and names != [name.strip()]):
            plain = {n: size_of(Symbol(n)) for n in names if is_name(n)}
            if _is_size(name, plain):
                return parse_size(name, {n: self._symbol(n) for n in plain})
        return self._symbol(name)

    def _name_of_place(self, input_name: str, axis: int) -> str:
        name = f"{input_name}_{axis}"
        while name in self.names:
            name += "_"
        return name

    def _symbol(self, name: str) -> Size:
        plain = _plain(name)
        while (plain != name and plain in self.names) or self._plain.setdefault(plain, name) != name:
            plain += "_"  # `a b` is not `a_b`
        self.asked.update({name: None, plain: None})
        if plain in self.known:
            return self.known[plain]
        if plain not in self.by_name:
            range_ = self.ranges.get(name, self.ranges.get(plain))
            self.by_name[plain] = Symbol(plain, *(range_ or DEFAULT_RANGE), given=range_ is not None)
        return size_of(self.by_name[plain])

    def typed(self, type_: Type, input_name: str) -> Type:
        """Return an input's type with symbols for its open dimensions."""
        if not isinstance(type_, TensorType):
            return type_
        dims = enumerate(type_.shape)
        return type_.with_shape(tuple(self.size(d, input_name, i) if isinstance(d, str) else d for i, d in dims))

    def check_ranges(self) -> None:
        """Raise ModelError for ranges of dimensions that no input leaves open. To be called once all inputs have
        types.
        """
        lacking = [name for name in self.ranges if name not in self.asked]
        if lacking:
            known = ", ".join(name for name in self.asked if name in self.by_name or name in self.known)
            remedy = f"name one of {known}" if known else "all dimensions are fixed, so leave out --dim and --favour"
            raise ModelError(f"no input of the model has an open dimension {', '.join(lacking)}; {remedy}")

    def learned(self, claims: Iterable[Claim]) -> bool:
        """Return whether some claims determine symbols or narrow a range, and apply them.

        That is the first such claim, and those after it that hold independently of it: others, such as on sizes that
        meet in a broadcast, may become moot.
        """
        claims = tuple(claims)
        rest, before = iter((*claims, *_beyond_quotients(claims))), self.known
        first = any(
            (self._solved(claim) or self._enclosed(claim) if claim.exact else self._narrowed(claim))
            or self._raised(claim)
            for claim in rest
        )
        for claim in rest:
            if claim.exact and not claim.joins:
                self._solved_too(claim)
        self._free_of_1(before)
        return self._made_positive(claims) or first

    def _made_positive(self, claims: Iterable[Claim]) -> bool:
        """Record quotients that claims need; returns whether there are new ones."""
        before = len(self.positive)
        for claim in claims:
            if claim.exact and not claim.joins:
                self.positive |= dict.fromkeys(positive_quotients(claim.size))
        return len(self.positive) > before

    def _solved_too(self, claim: Claim) -> None:
        """Apply `_solved` given what is known now. What remains undecided is claimed again in the next conversion."""
        found = [self.by_name.get(symbol.name) for symbol in symbols_of([claim.size])]
        now = {symbol.name: size_of(symbol) for symbol in found if symbol is not None}
        try:
            size = at(claim.size, {**self.known, **now})
        except (UndecidedError, ZeroDivisionError):
            return
        if is_open(size):
            self._solved(replace(claim, size=size))

    def _solved(self, claim: Claim) -> bool:
        """Solve the claim for a symbol: the last one that is a sum of others, not a difference. Returns whether there
        is one.
        """
        order, size = list(self.by_name), where_zero(claim.size)
        found = sorted(symbols_of([size]), key=lambda symbol: order.index(symbol.name), reverse=True)
        values = [
            (symbol, value)
            for symbol in found
            if (value := _without(size, symbol)) is not None and not self._is_sum_of_found(symbol, value)
        ]
        best = next((each for each in values if bounds_of(each[1])[0] >= 0), None)
        if best is not None:
            if claim.joins:
                self._join(*best)
            self._replace(*best)
        return best is not None

    def _is_sum_of_found(self, symbol: Symbol, value: Size) -> bool:
        """Return whether a dimension of an input is made of several sizes that only a run can tell, or of one times
        another: it cannot tell these.
        """
        found = [s.name for s in symbols_of([value]) if s.name not in self.asked]
        many = len(found) > 1 or any(is_open(at(value, {name: 2}) - at(value, {name: 1})) for name in found)
        return symbol.name in self.asked and many

    def _join(self, symbol: Symbol, value: Size) -> None:
        """Record that a dimension is assumed equal to another one, or to a number; a sum of several is not one of the
        inputs'.
        """
        if value == 1:
            return
        others = [other for other in symbols_of([value]) if size_of(other) == value]
        noted = self.joined if others or not is_open(value) else self.sums
        noted.update({each.name: None for each in (symbol, *others) if each.name in self.asked})
        if symbol.name not in self.asked:
            self.met.update({each.name: None for each in others if each.name in self.asked})

    def may_be_1(self, name: str) -> bool:
        """Return whether the range of an input's dimension includes 1."""
        low, high = self.ranges.get(name) or self.ranges.get(self._plain.get(name, name)) or DEFAULT_RANGE
        return low <= 1 <= high

    def joins(self) -> tuple[str, ...]:
        """Return all dimensions that are assumed equal to others, or to a number, including sums that turned out to be
        numbers.
        """
        numbers = [name for name in self.sums if not is_open(self.known[name])]
        return tuple(dict.fromkeys((*self.joined, *numbers)))

    @property
    def known_of_inputs(self) -> dict[str, Size]:
        """The sizes of the inputs' dimensions that are known to depend on others."""
        return {name: size for name, size in self.known.items() if name in self.asked and is_open(size)}

    def _replace(self, symbol: Symbol, value: Size) -> None:
        if not is_open(value) and not symbol.low <= value <= symbol.high:
            allowed = f"{symbol.low} to {symbol.high}"
            raise ModelError(f"dimension {symbol.name} must be {value}, but its range is {allowed}; correct the range")
        self.known = {name: at(size, {symbol.name: value}) for name, size in self.known.items()}
        self.known[symbol.name] = value
        del self.by_name[symbol.name]

    def _free_of_1(self, before: Mapping[str, Size]) -> None:
        """Forget what dimensions were assumed to equal that turned out to be 1: they may have any size then."""
        for name in [*self.joined, *self.sums]:
            if is_open(before.get(name, 1)) and self.known.get(name) == 1:
                for noted in (self.known, self.joined, self.sums):
                    noted.pop(name, None)

    def _narrowed(self, claim: Claim) -> bool:
        found = symbols_of([claim.size])
        if len(found) != 1:
            return False
        (symbol,) = found
        bound = _without(claim.size, symbol)
        if bound is None or is_open(bound):
            return False
        rises = not is_open(claim.size - size_of(symbol))
        narrow = replace(symbol, low=max(symbol.low, bound)) if rises else replace(symbol, high=min(symbol.high, bound))
        return self._put(symbol, narrow, claim)

    def _enclosed(self, claim: Claim) -> bool:
        """Set the range of a symbol to the sizes at which an exact claim holds, if they are a range."""
        found = symbols_of([claim.size])
        if len(found) != 1 or claim.joins:
            return False
        (symbol,) = found
        narrow = allowed(symbol, claim)
        holds = bounds_of(over(claim.size, {symbol.name: narrow})) == (0, 0)
        return holds and self._put(symbol, narrow, claim)

    def _raised(self, claim: Claim) -> bool:
        """Exclude the least sizes that violate the claim, as few as can be found: `h // 2 - 7 >= 0`; more if all below
        some size certainly violate it, and none from there on. Returns whether the range changed.
        """
        found = symbols_of([claim.size])
        if len(found) != 1:
            return False
        (symbol,) = found
        last = min(symbol.high, symbol.low + MOST_TRIED)
        low = next((size for size in range(symbol.low, last + 1) if claim.holds({symbol.name: size})), None)
        if low is None and not claim.exact:
            low = _least_for(0, claim.size, symbol)
            below = low and over(claim.size, {symbol.name: replace(symbol, high=low - 1)})
            if below is not None and bounds_of(below)[1] >= 0:
                return False
        if low is not None and (claim.joins or claim.apart):
            self._leave_out(symbol, low, claim.apart)
        return low is not None and self._put(symbol, replace(symbol, low=low), claim)

    def _leave_out(self, symbol: Symbol, low: int, apart: bool = False) -> None:
        """Record which sizes of an input's dimension are excluded if it begins with `low`. `apart`: they are compiled
        on their own, not together with smaller ones that are excluded.
        """
        if symbol.name in self.asked and symbol.low < low:
            before = self.emptied.get(symbol.name, ())
            together = before and not apart and before[-1][1] == symbol.low - 1
            first = before[-1][0] if together else symbol.low
            self.emptied[symbol.name] = (*(before[:-1] if together else before), (first, low - 1))

    def without_empty(self, sizes: Iterable[Size]) -> bool:
        """Exclude the least sizes of each dimension until sizes that depend on it alone are certainly at least 1.
        Returns whether there were any.
        """
        least, before = dict[Symbol, int](), self.known
        if self.whole:
            return False
        for size in dict.fromkeys(size for size in sizes if is_open(size) and bounds_of(size)[0] < 1):
            found = symbols_of([size])
            (symbol,) = found if len(found) == 1 else (None,)
            if symbol is not None and symbol.name in self.asked and symbol.name in self.by_name:
                low = _least_for(1, size, symbol)
                if low is not None:
                    least[symbol] = max(least.get(symbol, 0), low)
        for symbol, low in least.items():
            self._leave_out(symbol, low)
            self._put(symbol, replace(symbol, low=low), Claim(size_of(symbol) - low, exact=False))
        self._free_of_1(before)
        return bool(least)

    def _put(self, symbol: Symbol, narrow: Symbol, claim: Claim) -> bool:
        """Set a symbol's range; returns whether it changed."""
        if narrow.low > narrow.high:
            raise ModelError(f"dimension {symbol.name} must be {claim}, which its range {symbol.bounds} does not allow")
        self.by_name[symbol.name] = narrow
        if narrow != symbol:
            self.narrowed[symbol.name] = None
        self.known = {name: at(size, {symbol.name: size_of(narrow)}) for name, size in self.known.items()}
        return narrow != symbol


_IN_FORCE: ContextVar[Symbols | None] = ContextVar("symbols", default=None)


def sized(type_: Type, hint: str) -> Type:
    """Return a type with symbols for the dimensions that only a run can tell; unchanged where there are no symbols."""
    symbols = _IN_FORCE.get()
    if symbols is None or not isinstance(type_, TensorType) or type_.is_sized:
        return type_
    dims = enumerate(type_.shape)
    return type_.with_shape(tuple(symbols.found(f"{hint}_{i}") if isinstance(d, str) else d for i, d in dims))


def found_size(hint: str, most: int) -> Size | str:
    """Return a size of at most `most` that only a run can tell; unknown where there are no symbols."""
    symbols = _IN_FORCE.get()
    return UNKNOWN if symbols is None else symbols.found(hint, min(most, (1 << 63) - 1))


@contextmanager
def taken_sizes() -> Iterator[list[Size]]:
    """Collect the sizes that are assumed, within the context, for sizes that only a run can tell."""
    symbols = _IN_FORCE.get()
    before, found = 0 if symbols is None else len(symbols.taken), list[Size]()
    yield found
    if symbols is not None:
        found += symbols.taken[before:]


def symbols_in_force() -> Symbols | None:
    """Return the symbols of the model that is being converted; None where open dimensions are left to the host."""
    return _IN_FORCE.get()


def meet_in_body(claims: Iterable[Claim], states: Iterable[tuple[Type, Type]]) -> None:
    """Record which of the inputs' dimensions sizes in the body of a loop are assumed to equal, because they meet in a
    broadcast. `states`: what the loop begins with, and its type in all turns.
    """
    symbols = _IN_FORCE.get()
    if symbols is None:
        return
    found = symbols_of(claim.size for claim in claims if claim.joins)
    for first, always in states:
        if isinstance(first, TensorType) and isinstance(always, TensorType):
            begun = (a for a, b in zip(first.shape, always.shape, strict=False) if symbols_of([b]) & found)
            found |= symbols_of(begun)
    names = {symbol.name: None for symbol in found if symbol.name in symbols.asked}
    symbols.joined |= names
    symbols.met |= names


def is_found(size: Size) -> bool:
    """Return whether a size depends on one that only a run can tell."""
    symbols = _IN_FORCE.get()
    return symbols is not None and any(symbol.name not in symbols.asked for symbol in symbols_of([size]))


def may_be_dropped(size: Size) -> bool:
    """Return whether a dimension is 1, so that a Squeeze without axes drops it. Where that is undecided, it is claimed
    that it is not: sizes of inputs that are 1 are compiled on their own then.

    Raises NotStatic for a size that only a run can tell, unless ranks are needed.
    """
    symbols, (low, high) = _IN_FORCE.get(), bounds_of(size)
    if symbols is not None and low <= 1 <= high and low < high and symbols.ranks == "any":
        if is_found(size):
            symbols.unranked = True
            raise NotStatic(f"size {size} is known only at run time, and a dimension of 1 is dropped")
    return not may_differ(size, 1)


def is_few(size: Size, most: int) -> bool:
    """Return whether a size is certainly at most `most`. Where that is undecided for an input's dimension, it is
    recorded that the model computes larger sizes differently.
    """
    symbols = _IN_FORCE.get()
    low, high = bounds_of(size)
    if symbols is not None and low <= most < high:
        named = (s.name for s in symbols_of([size]) if s.name in symbols.asked and size_of(s) == size)
        symbols.few.update(dict.fromkeys(named, most))
    return high <= most


def quotient_of(dividend: Size, divisor: Size) -> Size:
    """Return the floor of a quotient, in a form that is certainly at least 1 if that is claimed."""
    symbols, quotient = _IN_FORCE.get(), dividend // divisor
    return largest(1, quotient) if symbols is not None and quotient in symbols.positive else quotient


def sizes_are_symbols() -> bool:
    """Return whether all dimensions are numbers or expressions, including those that only a run can tell."""
    return _IN_FORCE.get() is not None


def symbols_so_far() -> frozenset[str]:
    """Return the names of the existing symbols."""
    symbols = _IN_FORCE.get()
    return frozenset() if symbols is None else frozenset(symbols.by_name)


def new_symbols(before: Container[str]) -> tuple[Symbol, ...]:
    """Return the existing symbols, except those of these names."""
    symbols = _IN_FORCE.get()
    return () if symbols is None else tuple(s for name, s in symbols.by_name.items() if name not in before)


def told_by(claim: Claim) -> Symbol | None:
    """Return the symbol that a claim alone makes a number."""
    symbols = symbols_of([claim.size])
    if len(symbols) != 1 or not claim.exact or claim.joins:
        return None
    (symbol,) = symbols
    value = _without(where_zero(claim.size), symbol)
    return None if value is None or is_open(value) else symbol


def unsized(type_: Type, inner: Iterable[Symbol]) -> Type:
    """Return a type as seen outside a nested graph, which alone has the symbols `inner`: such sizes are unknown."""
    if isinstance(type_, SequenceType):
        return SequenceType(unsized(type_.element, inner))
    if not isinstance(type_, TensorType) or type_.is_static:
        return type_
    own = frozenset(inner)
    dims = type_.shape
    return type_.with_shape(tuple(d if isinstance(d, str) or not symbols_of([d]) & own else UNKNOWN for d in dims))


def _plain(name: str) -> str:
    """Return a name in a form that expressions accept: ASCII letters, digits and underscores."""
    plain = re.sub(r"\W", lambda found: "_" if found[0].isascii() else f"_{ord(found[0]):x}", name, flags=re.ASCII)
    return plain if is_name(plain) else f"_{plain}"


def names_in(types: Iterable[Type]) -> frozenset[str]:
    """Return the names among the dimensions of types, also where they are part of arithmetic."""
    dims = (dim for type_ in types if isinstance(type_, TensorType) for dim in type_.shape if isinstance(dim, str))
    return frozenset(name for dim in dims for name in re.findall(r"[^\W\d]\w*", dim))


def _is_size(text: str, names: Mapping[str, Size]) -> bool:
    """Return whether a dimension's name is arithmetic on other names, as exporters write it."""
    try:
        parse_size(text, names)
    except IRError:
        return False
    return True


def _least_for(value: int, size: Size, symbol: Symbol) -> int | None:
    """Return the least size of a symbol from which on an expression of it is certainly at least `value`."""
    last = min(symbol.high, symbol.low + FURTHEST_LEAST)

    def suffices(low: int) -> bool:
        return bounds_of(over(size, {symbol.name: replace(symbol, low=low)}))[0] >= value

    if not suffices(last):
        return None
    return symbol.low + bisect_left(range(symbol.low, last), True, key=suffices)


def _beyond_quotients(claims: Sequence[Claim]) -> Iterator[Claim]:
    """Yield claims without quotients whose values others tell. If `64 * b` numbers become `a` rows of parts of 8, it is
    claimed that `q = (64 * b) // (8 * a)` leaves no remainder, `8 * b - a * q = 0`; where q is 8, a is b.
    """
    exact = [claim for claim in claims if claim.exact]
    for told in exact:
        for quotient, value in quotients_where_zero(told.size):
            if told.joins and not _joins_for_certain(quotient, value, claims):
                continue
            for claim in exact:
                size = with_quotient(claim.size, quotient, value)
                if not claim.joins and size != claim.size and is_open(size):
                    yield replace(claim, size=size // divisor_of(size))


def _joins_for_certain(quotient: Quotient, value: Size, claims: Sequence[Claim]) -> bool:
    """Return whether neither of two sizes that meet in a broadcast may be 1."""
    at_least = [claim.size for claim in claims if not claim.exact]
    return bounds_of(value)[0] > 1 and any(bounds_of(with_quotient(size, quotient, 1))[1] < 0 for size in at_least)


def _without(size: Size, symbol: Symbol) -> Size | None:
    """Return the symbol's value where `size` is 0; None unless it occurs in it once, by itself."""
    itself = size_of(symbol)
    for rest, value in ((size - itself, itself - size), (size + itself, size + itself)):
        if symbol not in symbols_of([rest]):
            return value
    return None
