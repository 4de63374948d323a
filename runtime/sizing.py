"""Binding of a program's symbols: solved from the shapes of inputs, checked, and all sizes computed from them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .bound_program import bound_program, bound_value, program_sizes
from .branch_inputs import BranchInputs
from .errors import ArtifactSchemaError, InputError
from .program import Program, SizeCheck, ValueSpec
from .required import Required, required_sizes
from .requirements import Requirement, Sum, is_expression
from .size_table import SizeTable
from .sizes import Size, SizeError
from .solver import Solver
from .types import Dimension, TensorType

MayDiffer = Callable[[int, Dimension], bool]
"""Function that returns whether a dimension of the input at a position may differ from what the symbols say."""

_RELATIONS: dict[str, Callable[[int, int], bool]] = {"==": operator.eq, "<=": operator.le}
_WORDS = {"==": "must be", "<=": "must be at most"}


class Sizing:
    """Computes the sizes of one program; immutable.

    `requirements`: from `program_check.check_program`; `file`: the artifact's name for messages.
    """

    def __init__(self, program: Program, requirements: Sequence[Requirement], file: str) -> None:
        self.program = program
        self.symbols = frozenset(symbol.name for symbol in program.symbols)
        self._file = file
        self._solver = Solver(program)
        self.native: Callable[[Sequence[int]], np.ndarray | None] | None = None
        self.apart = BranchInputs(program)
        sizes: list[Size | Sum] = [size for check in program.checks for size in (check.left, check.right)]
        sizes += [*program_sizes(program), *required_sizes(requirements)]
        self.table = SizeTable([symbol.name for symbol in program.symbols], sizes)
        self.requirements, self.sizes = requirements, sizes
        self._required = Required(requirements, self.table)
        self._checks = [
            (self.table.place(c.left), _RELATIONS[c.relation], self.table.place(c.right), c) for c in program.checks
        ]
        self._formal = [program.values[number] for number in program.inputs]
        self.determines_inputs = all(isinstance(v.type, TensorType) and self.knows(v.type) for v in self._formal)
        self._positions: dict[tuple[Dimension, ...], list[int]] = {}  # the inputs with each dimension
        for position, value in enumerate(self._formal):
            if isinstance(value.type, TensorType) and value.type.shape is not None:
                self._positions.setdefault(value.type.shape, []).append(position)
        self._open = {
            shape: [self._place(size) for size in shape] for shape in self._positions
        }  # None for sizes known only at run time

    def knows(self, type_: TensorType) -> bool:
        """Return whether the shape of a value of this type follows from the symbols."""
        shape = type_.shape
        return shape is not None and all(isinstance(size, int) or is_expression(size, self.symbols) for size in shape)

    def _place(self, size: Dimension) -> int | None:
        known = isinstance(size, int) or is_expression(size, self.symbols)
        return self.table.place(size) if known else None

    def bind(self, inputs: Sequence[Any]) -> Bound:
        """Return the sizes for these inputs; only arrays are considered.

        Raises `InputError` when their shapes do not fit, and `ArtifactSchemaError` where launches would violate what
        their kernels were compiled for.
        """
        return self._bound(inputs, self._solver, lambda at, size: False)

    def bind_any(self, inputs: Sequence[Any], *, is_body: bool) -> Bound:
        """Return the sizes as `bind` does; where the shapes do not fit, ignore what the model says about inputs that
        only branches read, whose programs check them themselves. `is_body`: whether the program is the body of a step.
        """
        try:
            return self.bind(inputs)
        except InputError:
            if not self.apart.positions:
                raise
        apart = self.apart
        return self._bound(inputs, apart.solver, lambda at, size: apart.may_differ(at, size, is_body))

    def _bound(self, inputs: Sequence[Any], solver: Solver, may_differ: MayDiffer) -> Bound:
        shapes = [getattr(value, "shape", ()) for value in inputs]
        self._check_ranks(shapes)
        symbols = solver.solve(shapes)
        known = tuple(symbols.values())
        if self.native is not None and (found := self.native(known)) is not None:
            self._check_shapes(shapes, found, symbols, may_differ)
            return Bound(self, known, found)
        try:
            values = self.table.values(known)
        except SizeError as error:
            raise InputError(f"{_listed(symbols)}: {error}; give inputs of other sizes") from error
        self._check_shapes(shapes, values, symbols, may_differ)
        for left, holds, right, check in self._checks:
            if not holds(values[left], values[right]):
                raise InputError(_broken(check, int(values[left]), int(values[right]), symbols))
        return self._required_of(symbols, values)

    def part(self, bound: Bound, symbol: str, count: int) -> Bound:
        """Return the sizes with another value of one symbol: for `count` images of the batch whose size the symbol is.

        Raises `ArtifactSchemaError` where launches would violate what their kernels were compiled for.
        """
        symbols = {s.name: value for s, value in zip(self.program.symbols, bound.values)} | {symbol: count}
        return self._required_of(symbols, self.table.values(tuple(symbols.values())))

    def _required_of(self, symbols: Mapping[str, int], values: np.ndarray) -> Bound:
        problem = self._required.problem(values)
        if problem is not None:
            raise self.broken(f"{problem()}, for {_listed(symbols)}")
        return Bound(self, tuple(symbols.values()), values)

    def broken(self, problem: str) -> ArtifactSchemaError:
        return ArtifactSchemaError(
            f"program {self.program.name!r}: {problem}",
            file=self._file,
            remedy="give inputs of other sizes, or compile the model again",
        )

    def _check_ranks(self, shapes: Sequence[Sequence[int]]) -> None:
        for shape, positions in self._positions.items():
            for position in positions:
                if len(shapes[position]) != len(shape):
                    value, given = self._formal[position], list(shapes[position])
                    raise InputError(
                        f"input {value.name!r} of type {value.type}: {given} has rank {len(given)}; give {len(shape)} "
                        "dimensions"
                    )

    def _check_shapes(
        self, shapes: Sequence[Sequence[int]], values: np.ndarray, symbols: Mapping[str, int], may_differ: MayDiffer
    ) -> None:
        for shape, positions in self._positions.items():
            sizes = [None if place is None else int(values[place]) for place in self._open[shape]]
            for position in positions:
                if shapes[position] == tuple(sizes):
                    continue
                for axis, (size, given) in enumerate(zip(sizes, shapes[position])):
                    if size is not None and size != given and not may_differ(position, shape[axis]):
                        value, rule = self._formal[position], shape[axis]
                        why = "must be" if isinstance(rule, int) else f"{rule} is"
                        known = "" if isinstance(rule, int) else f", for {_listed(symbols)}"
                        raise InputError(
                            f"input {value.name!r} of type {value.type}: dimension {axis} is {given}, but {why} "
                            f"{size}{known}; make the inputs' shapes agree"
                        )


class Bound:
    """A program's sizes for given values of its symbols.

    `values`: of the symbols in their order. `sizes`: the list of the sizing's table, int64.
    """

    def __init__(self, sizing: Sizing, values: tuple[int, ...], sizes: np.ndarray) -> None:
        self.sizing, self.values, self.sizes = sizing, values, sizes
        self._specs: dict[int, ValueSpec] = {}

    def of(self, size: Size) -> int:
        """Return the value of one of the program's sizes."""
        return size if isinstance(size, int) else int(self.sizes[self.sizing.table.place(size)])

    def value(self, number: int) -> ValueSpec:
        """Return a value of the program with numbers for its sizes."""
        spec = self._specs.get(number)
        if spec is None:
            unbound = self.sizing.program.values[number]
            spec = self._specs[number] = bound_value(unbound, self.sizing.program.symbols, self.of)
        return spec

    @cached_property
    def program(self) -> Program:
        """The program with numbers for all of its sizes."""
        return bound_program(self.sizing.program, self.of)


def _broken(check: SizeCheck, left: int, right: int, symbols: Mapping[str, int]) -> str:
    sides = f"{check.left} {_WORDS[check.relation]} {check.right}"
    sizes = ((check.left, left), (check.right, right))
    given = [f"{text} is {value}" for text, value in sizes if isinstance(text, str)]
    return f"{check.reason}: {sides}, but {' and '.join(given)} for {_listed(symbols)}; give inputs of other sizes"


def _listed(symbols: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in symbols.items())
