"""The symbols of a program, sizes that are known when it is run, and the conditions on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import ArtifactSchemaError
from .jsonfields import Fields
from .sizes import Size, is_symbol_name, parse

NO_LIMIT = 2**31 - 1
"""The largest value of a symbol without a given limit."""

RELATIONS = ("==", "<=")


@dataclass(frozen=True)
class Symbol:
    """A size that the shapes of the inputs determine, from `low` to `high` inclusive."""

    name: str
    low: int = 1
    high: int = NO_LIMIT

    def __str__(self) -> str:
        return f"{self.name}:{self.low}..{'' if self.high == NO_LIMIT else self.high}"

    def holds(self, value: int) -> bool:
        return self.low <= value <= self.high

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "low": self.low, "high": self.high}

    @staticmethod
    def from_json(data: Any, where: str = "symbol") -> Symbol:
        fields = Fields(data, where)
        symbol = Symbol(fields.string("name"), fields.integer("low"), fields.integer("high", 0, NO_LIMIT))
        fields.done()
        if not is_symbol_name(symbol.name):
            raise ArtifactSchemaError(f"{where} has the name {symbol.name!r}, which no expression can use")
        if symbol.low > symbol.high:
            raise ArtifactSchemaError(f"{where} ({symbol.name!r}) is from {symbol.low} to {symbol.high}: nothing")
        return symbol


@dataclass(frozen=True)
class SizeCheck:
    """`left` `relation` `right` must hold for a run's symbols; `relation` is one of `RELATIONS`.

    A size that must be divisible by 8 is `size % 8 == 0`, one that must not be negative `0 <= size`. `reason` names the
    ONNX node and its rule: "ONNX node Reshape_7: the elements of the input and of the new shape must be equally many".
    """

    left: Size
    relation: str
    right: Size
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"left": self.left, "relation": self.relation, "right": self.right, "reason": self.reason}

    @staticmethod
    def from_json(data: Any, where: str = "check") -> SizeCheck:
        fields = Fields(data, where)
        check = SizeCheck(
            fields.size("left"), fields.one_of("relation", frozenset(RELATIONS)), fields.size("right"),
            fields.string("reason"),
        )  # fmt: skip
        fields.done()
        return check


def size_reference(text: str) -> dict[str, str]:
    """Return the reference to an expression's value in a host step's attributes. Raises `SizeError` for a malformed
    text.
    """
    parse(text)
    return {"$size": text}
