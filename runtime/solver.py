"""Solver for the values of a program's symbols from the shapes of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .errors import InputError
from .program import Program
from .requirements import is_expression, parsed
from .sizes import Expression, Name, Number, Operation, SizeError, evaluate, names
from .types import TensorType


class _Equation(NamedTuple):
    """Equation: dimension `axis` of input `position` is `coefficient` times the symbol plus `others`."""

    symbol: str
    position: int
    axis: int
    coefficient: int
    others: tuple[Expression, ...]


class Solver:
    """Solver for the symbols of a program: first from dimensions that are a symbol alone, then from those with one
    unknown symbol that occurs linearly, such as `past + seq`.

    `unsolved`: the symbols that no input determines. The inputs at the positions `last` are used only for symbols that
    no other input determines.
    """

    def __init__(self, program: Program, last: frozenset[int] = frozenset()) -> None:
        self._values = [program.values[number] for number in program.inputs]
        self._symbols = {symbol.name: symbol for symbol in program.symbols}
        known: dict[str, None] = {}
        self._equations: list[_Equation] = []
        dimensions = self._dimensions()
        for some in ([one for one in dimensions if one[0] not in last], dimensions):
            while equation := _next_equation(some, known):
                self._equations.append(equation)
                known[equation.symbol] = None
        self.unsolved = tuple(name for name in self._symbols if name not in known)

    def solve(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Return the symbols' values, in the program's order, for inputs of these shapes, whose ranks must be right.

        Raises `InputError` for a dimension that no value of a symbol gives, or none in its range.
        """
        found: dict[str, int] = {}
        for equation in self._equations:
            name, position, axis, coefficient, others = equation
            size = shapes[position][axis]
            if others or coefficient != 1:
                rest = self._rest(equation, found)
                value, left = divmod(size - rest, coefficient)
                if left:
                    raise InputError(self._where(equation, size, f"there is no {name} for it"))
            else:
                value = size
            symbol = self._symbols[name]
            if not symbol.low <= value <= symbol.high:
                which = f"{name} is {value}" if value != size else name
                problem = f"{which}, which must be from {symbol.low} to {symbol.high}"
                raise InputError(self._where(equation, size, problem))
            found[name] = value
        return {name: found[name] for name in self._symbols}

    def _rest(self, equation: _Equation, found: Mapping[str, int]) -> int:
        try:
            return sum(evaluate(other, found) for other in equation.others)
        except SizeError as error:
            raise InputError(self._where(equation, None, str(error))) from error

    def _where(self, equation: _Equation, size: int | None, problem: str) -> str:
        value = self._values[equation.position]
        given = "" if size is None else f" is {size}"
        return f"input {value.name!r} of type {value.type}: dimension {equation.axis}{given}: {problem}"

    def _dimensions(self) -> list[tuple[int, int, Expression]]:
        """Return input, axis and size of the dimensions that depend on symbols."""
        symbols = frozenset(self._symbols)
        return [
            (position, axis, parsed(size))
            for position, value in enumerate(self._values)
            if isinstance(value.type, TensorType)
            for axis, size in enumerate(value.type.shape or ())
            if isinstance(size, str) and is_expression(size, symbols)
        ]


def _next_equation(dimensions: Sequence[tuple[int, int, Expression]], known: Mapping[str, None]) -> _Equation | None:
    """Return the simplest equation for an unknown symbol."""
    found: _Equation | None = None
    for position, axis, size in dimensions:
        unknown = [name for name in names(size) if name not in known]
        if len(unknown) != 1:
            continue
        if isinstance(size, Name):
            return _Equation(unknown[0], position, axis, 1, ())
        found = found or _linear(size, unknown[0], position, axis)
    return found


def _linear(size: Expression, name: str, position: int, axis: int) -> _Equation | None:
    """Return the equation for a symbol of a size that is linear in it; None for another size."""
    operands = size.operands if isinstance(size, Operation) and size.operator == "+" else (size,)
    with_name = [operand for operand in operands if name in names(operand)]
    coefficient = _coefficient(with_name[0], name)
    if len(with_name) > 1 or coefficient is None:
        return None
    return _Equation(name, position, axis, coefficient, tuple(o for o in operands if o is not with_name[0]))


def _coefficient(operand: Expression, name: str) -> int | None:
    """Return the constant factor of a symbol in an operand; None if it is not a nonzero number."""
    match operand:
        case Name():
            return 1
        case Operation("neg", (negated,)):
            coefficient = _coefficient(negated, name)
            return None if coefficient is None else -coefficient
        case Operation("*", factors):
            others = [factor.value for factor in factors if isinstance(factor, Number)]
            product = math.prod(others)
            return product if len(others) == len(factors) - 1 and Name(name) in factors and product else None
    return None
