"""All sizes of a program with symbols, evaluated in one pass: every common subexpression once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .requirements import Sum, parsed
from .sizes import MAX_SIZE, MIN_SIZE, Expression, Name, Number, Operation, Size, SizeError, evaluate

_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "max": max,
    "min": min,
}  # fmt: skip
_NUMBERS = {function: number for number, function in enumerate(_FUNCTIONS.values())}
"""As `computed` in `codegen/cpu/resize.c` knows them."""


class SizeTable:
    """Positions of sizes in a list, and the code that computes the list from the symbols' values.

    The list has numbers first, then the symbols, then results of operations on earlier entries.
    """

    def __init__(self, symbols: Sequence[str], sizes: Iterable[Size | Sum]) -> None:
        self._sizes: dict[Size | Sum, None] = dict.fromkeys((0, *sizes))
        expressions = {size: _expression(size) for size in self._sizes}
        self._symbols = tuple(symbols)
        numbers = {0, *(number for expression in expressions.values() for number in _numbers(expression))}
        self._numbers = sorted(numbers)
        self._places: dict[object, int] = {number: place for place, number in enumerate(self._numbers)}
        self._places.update({Name(name): len(numbers) + place for place, name in enumerate(self._symbols)})
        self._code: list[tuple[Callable[[int, int], int], int, int]] = []
        self._place_of = {size: self._place(expression) for size, expression in expressions.items()}

    def place(self, size: Size | Sum) -> int:
        """Return the position of a size or sum of sizes."""
        return self._place_of[size]

    def places(self, sizes: Iterable[Size | Sum]) -> np.ndarray:
        """Return the positions of some sizes as an array of indices."""
        return np.array([self._place_of[size] for size in sizes], np.intp)

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers at the beginning of the list."""
        return self._numbers

    @property
    def operations(self) -> list[tuple[int, int, int]]:
        """The code that computes the list's end: the number of a function, and places of operands."""
        return [(_NUMBERS[function], left, right) for function, left, right in self._code]

    def values(self, symbols: Sequence[int]) -> np.ndarray:
        """Return the list for these values of the symbols, as int64. Raises `SizeError`."""
        values = [*self._numbers, *symbols]
        append = values.append
        try:
            for function, left, right in self._code:
                append(function(values[left], values[right]))
            result = np.array(values, np.int64)
            if int(result.min()) >= MIN_SIZE and int(result.max()) <= MAX_SIZE:
                return result
        except (ZeroDivisionError, OverflowError):
            pass
        given = dict(zip(self._symbols, symbols))
        for size in self._sizes:
            evaluate(_expression(size), given)  # raises with the reason
        raise SizeError(f"sizes are too large for {', '.join(f'{name}={value}' for name, value in given.items())}")

    def _place(self, expression: Expression) -> int:
        match expression:
            case Number(value):
                return self._places[value]
            case Name():
                return self._places[expression]
            case Operation("neg", (operand,)):
                return self._operation("-", self._places[0], self._place(operand))
            case Operation("+", operands):
                return self._sum(operands)
            case Operation(function, operands):
                first, *others = map(self._place, operands)
                for other in others:
                    first = self._operation(function, first, other)
                return first

    def _sum(self, operands: Sequence[Expression]) -> int:
        total = self._place(operands[0])
        for operand in operands[1:]:
            match operand:
                case Operation("neg", (negated,)):
                    total = self._operation("-", total, self._place(negated))
                case _:
                    total = self._operation("+", total, self._place(operand))
        return total

    def _operation(self, function: str, left: int, right: int) -> int:
        """Return the position of an operation's result, which is added if it is new."""
        key = (function, left, right)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._numbers) + len(self._symbols) + len(self._code)
            self._code.append((_FUNCTIONS[function], left, right))
        return place


def _expression(size: Size | Sum) -> Expression:
    if isinstance(size, tuple):
        return Operation("+", tuple(map(_expression, size)))
    if isinstance(size, str):
        return parsed(size)
    return Number(size) if size >= 0 else Operation("neg", (Number(-size),))


def _numbers(expression: Expression) -> Iterable[int]:
    match expression:
        case Number(value):
            yield value
        case Operation(_, operands):
            for operand in operands:
                yield from _numbers(operand)
