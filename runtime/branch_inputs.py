"""Inputs that only branches of If read: a run takes one branch, whose program looks at what it reads itself. So what
the model says of their sizes need not hold of those that are not read, as with the caches of a decoder's first call.
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

__all__ = ["BranchInputs"]


class BranchInputs:
    """Of one program. `positions`: of inputs that nothing reads but branches, or nothing at all."""

    def __init__(self, program: Program) -> None:
        self._program = program
        read, by_branches = _reads(program)
        places = [] if program.caches else [*enumerate(program.inputs)]
        self.positions = frozenset(place for place, number in places if number not in read)
        self._unread = frozenset(place for place, number in places if number not in read | by_branches)

    @cached_property
    def solver(self) -> Solver:
        """Finds the symbols by other inputs, where these determine them."""
        return Solver(self._program, self.positions)

    def may_differ(self, position: int, size: Dimension, is_body: bool) -> bool:
        """Whether a dimension of an input may be another than its type says for the symbols, as far as this program
        goes: what it computes does not depend on them. That of a body does not depend on what it does not read.
        """
        if position not in self.positions or isinstance(size, int):
            return False
        return (is_body and position in self._unread) or self._in_use.isdisjoint(_names_in(size))

    @cached_property
    def _in_use(self) -> frozenset[str]:
        """The symbols on which more depends than the types of these inputs."""
        program, values = self._program, list(self._program.values)
        for number in (program.inputs[position] for position in self.positions):
            values[number] = replace(values[number], type=TensorType("bool", ()))
        checked = [size for check in program.checks for size in (check.left, check.right)]
        sizes = [*sizes_in_use(replace(program, values=tuple(values))), *checked]
        return frozenset(name for size in sizes if isinstance(size, str) for name in _names_in(size))


def _reads(program: Program) -> tuple[set[int], set[int]]:
    """The values that a program gives or its steps read, branches apart; and those that branches read."""
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
    """The names in a size; none in what is the name of a size that only a run tells."""
    try:
        return names(parsed(text))
    except SizeError:
        return ()
