"""Inputs that only branches of If read. A run takes one branch, whose program checks what it reads itself, so what the
model says about the sizes of inputs that are not read need not hold, as with the caches of a decoder's first call.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from .bound_program import sizes_in_use
from .program import DeviceStep, IfStep, NativeStep, Program
from .reads import read_by
from .requirements import parsed
from .sizes import SizeError, names
from .solver import Solver
from .types import Dimension, TensorType


class BranchInputs:
    """The branch inputs of one program. `positions`: of the inputs that only branches read, or that nothing reads."""

    def __init__(self, program: Program) -> None:
        self._program = program
        read, by_branches = _reads(program)
        places = [] if program.caches else [*enumerate(program.inputs)]
        self.positions = frozenset(place for place, number in places if number not in read)
        self._unread = frozenset(place for place, number in places if number not in read | by_branches)

    @cached_property
    def solver(self) -> Solver:
        """Solver that finds the symbols from the other inputs, where these determine them."""
        return Solver(self._program, self.positions)

    def may_differ(self, position: int, size: Dimension, is_body: bool) -> bool:
        """Return whether a dimension of an input may differ from what its type says for the symbols: nothing that this
        program computes depends on them. In a body, also where the body does not read the input.
        """
        if position not in self.positions or isinstance(size, int):
            return False
        return (is_body and position in self._unread) or self._in_use.isdisjoint(_names_in(size))

    @cached_property
    def _in_use(self) -> frozenset[str]:
        """Symbols on which more depends than the types of these inputs."""
        program, values = self._program, list(self._program.values)
        for number in (program.inputs[position] for position in self.positions):
            values[number] = replace(values[number], type=TensorType("bool", ()))
        checked = [size for check in program.checks for size in (check.left, check.right)]
        sizes = [*sizes_in_use(replace(program, values=tuple(values))), *checked]
        return frozenset(name for size in sizes if isinstance(size, str) for name in _names_in(size))


def _reads(program: Program) -> tuple[set[int], set[int]]:
    """Return the values that are outputs of a program or read by its steps, branches excepted; and the values that
    branches read.
    """
    read, by_branches = {*program.outputs}, set[int]()
    for step in program.steps:
        if isinstance(step, (NativeStep, DeviceStep)):
            read |= {arg.value for launch in step.launches for each in launch.kernels for arg in each.args}
        elif isinstance(step, IfStep):
            read.add(step.cond)
            by_branches |= {*step.then_body.captures, *step.else_body.captures}
        else:
            read |= {*read_by(step)}
    return read, by_branches


def _names_in(text: str) -> tuple[str, ...]:
    """Return the names in a size; none if it is the name of a size that only a run tells."""
    try:
        return names(parsed(text))
    except SizeError:
        return ()
