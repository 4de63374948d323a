"""Open sizes in the JSON form of plans: text expressions over the symbols that a plan names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from tilestitch.compiler.ir.errors import IRError
from tilestitch.compiler.ir.sizes import (
    FAR,
    Size,
    Symbol,
    bounds_of,
    if_any,
    is_name,
    is_open,
    parse_size,
    shortened,
    size_of,
)
from tilestitch.passes.errors import PlanError
from tilestitch.runtime.jsonfields import Fields, integer

_KNOWN: ContextVar[Mapping[str, Symbol]] = ContextVar("known", default={})  # noqa: B039 - nothing changes it


@contextmanager
def reading(symbols: Iterable[Symbol]) -> Iterator[None]:
    """Let size texts that are read within the context be over these symbols."""
    token = _KNOWN.set({symbol.name: symbol for symbol in symbols})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def with_empty(symbols: Iterable[Symbol]) -> dict[str, Symbol]:
    """Return the symbols that may be 0, by name, with ranges extended to 0: memory is planned with these."""
    return {symbol.name: replace(symbol, low=0) for symbol in symbols if symbol.or_empty}


def open_size(data: Any, where: str, minimum: int = 0, *, may_be_empty: bool = False) -> Size:
    """Return a number, or the expression that a text denotes. may_be_empty: over the ranges of `with_empty`. Raises
    PlanError for an invalid text or an unknown symbol.
    """
    if not isinstance(data, str):
        return integer(data, where, minimum)
    known = dict(_KNOWN.get())
    if may_be_empty:
        known.update(with_empty(known.values()))
    sizes = {name: size_of(symbol) for name, symbol in known.items()}
    prefix = "if_any_"
    while any(name.startswith(prefix) for name in known):
        prefix += "_"
    sizes |= {prefix + name: if_any(symbol) for name, symbol in known.items() if symbol.or_empty}
    text = _IF_ANY.sub(lambda found: prefix + found[1] if prefix + found[1] in sizes else found[0], data)
    try:
        found = parse_size(text, sizes, as_written=True)
    except IRError as error:
        reason = str(error.__cause__ or error)
        remedy = f"write an expression over the plan's symbols: {', '.join(known) or 'none'}"
        raise PlanError(f"{where} is {shortened(data)!r}, no size ({reason}); {remedy}") from None
    most = bounds_of(found)[1]
    return found if is_open(found) and most >= minimum else integer(most, f"{where}, {shortened(data)!r},", minimum)


_IF_ANY = re.compile(r"\bmin\((\w+), 1\)")
"""The form of `if_any`: 1 unless a symbol is 0, whatever its range."""


def with_texts(data: Any) -> Any:
    """Return JSON data in which open sizes are replaced by their texts."""
    if is_open(data):
        return str(data)
    if isinstance(data, dict):
        return {key: with_texts(entry) for key, entry in data.items()}
    return [with_texts(entry) for entry in data] if isinstance(data, list) else data


# -- symbols -----------------------------------------------------------------------------------------------------------


def symbol_to_json(symbol: Symbol) -> dict[str, Any]:
    """Return a symbol as JSON data; `high` is null if it is unbounded."""
    high = None if symbol.high == FAR else symbol.high
    return {
        "name": symbol.name, "low": symbol.low, "high": high, "or_empty": symbol.or_empty, "given": symbol.given,
    }  # fmt: skip


def symbol_from_json(data: Any, where: str) -> Symbol:
    fields = Fields(data, where)
    name, low, high = fields.string("name"), fields.integer("low"), fields.take("high")
    symbol = Symbol(
        name, low, FAR if high is None else integer(high, f"{where}.high", low), fields.boolean("or_empty"),
        fields.boolean("given"),
    )  # fmt: skip
    fields.done()
    if not is_name(name):
        raise PlanError(f"{where}.name is {shortened(name)!r}, which no expression can use; write the plan again")
    return symbol


# -- what a plan was made for ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scope:
    """What one specialisation was compiled for, so that its plan can be replayed for the same.

    shapes: of inputs, as given. dims: ranges of dimensions that inputs leave open, both ends included; those not named
    have the default range; None: open dimensions are left to the host, for the reason `refused`. added: dimensions
    whose size was not given. favoured: whether these are sizes from a range that other specialisations cover. whole:
    whether the range includes sizes at which something in the model has no elements, for which there are otherwise
    separate specialisations.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, tuple[int, int]] | None
    added: tuple[str, ...] = ()
    favoured: bool = False
    refused: str = ""
    whole: bool = False

    def __str__(self) -> str:
        """Return a text such as `batch 1..8, ids 1x128`."""
        shapes = [f"{name} {'x'.join(map(str, shape))}" for name, shape in self.shapes.items()]
        dims = [f"{name} {_range_text(*range_)}" for name, range_ in (self.dims or {}).items()]
        return ", ".join([*dims, *shapes]) or "all sizes"

    def to_json(self) -> dict[str, Any]:
        dims = None if self.dims is None else {name: list(range_) for name, range_ in self.dims.items()}
        data = {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()}, "dims": dims,
            "added": list(self.added), "favoured": self.favoured, "refused": self.refused,
        }  # fmt: skip
        return {**data, "whole": True} if self.whole else data

    @staticmethod
    def from_json(data: Any, where: str = "sizes") -> Scope:
        fields = Fields(data, where)
        shapes = Fields(fields.mapping("shapes"), f"{where}.shapes")
        names = list(data["shapes"])
        dims = fields.take("dims")
        scope = Scope(
            {name: shapes.integers(name) for name in names},
            None if dims is None else _ranges(dims, f"{where}.dims"),
            fields.strings("added"), fields.boolean("favoured"), fields.string("refused"),
            fields.optional_boolean("whole"),
        )  # fmt: skip
        fields.done()
        return scope


def _ranges(data: Any, where: str) -> dict[str, tuple[int, int]]:
    names, fields = list(data) if isinstance(data, dict) else [], Fields(data, where)
    found = {}
    for name in names:
        ends = fields.integers(name)
        if len(ends) != 2 or ends[0] > ends[1]:
            raise PlanError(f"{where}.{name} is {list(ends)}, not the least and the largest size")
        found[name] = ends[0], ends[1]
    return found


def _range_text(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}..{high}"
