"""Groups of steps that native code can run in one call: kernels, sizes that these find, and calls of more kernels.

`host.Extent` makes an element that kernels have stored a size; the programs called after it have that size in their
launches. Where nothing but kernels comes between, Python is needed only to give out results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .program import ABSENT, CallStep, DeviceStep, HostStep, NativeStep, Program, Step, ValueSpec
from .reads import read_by
from .sizes import Size

if TYPE_CHECKING:
    from .launches import RecordTime
    from .moves import Move, Repeated

EXTENT = "Extent"
"""The host operator that makes numbers the dimensions of its result."""


@dataclass(frozen=True)
class Group:
    """Steps `first` to `end` (not included) of a program. `given`: values that they read and that are there before;
    `results`: values that they store and that later steps read, or the program gives out.
    """

    program: Program
    first: int
    end: int
    given: frozenset[int]
    results: tuple[int, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.program.steps[self.first : self.end]


@dataclass(frozen=True)
class Present:
    """A program at its present sizes: functions from the number of a value to its description, from a size to a number,
    and from the number of a constant, or of a value in the arena, to its array; the values of the symbols.
    """

    spec: Callable[[int], ValueSpec]
    size: Callable[[Size], int]
    fixed: Callable[[int], np.ndarray]
    symbols: Sequence[int]


class Joined(Protocol):
    """A group as one table of launches."""

    def run(self, values: list[Any]) -> bool:
        """Run the group on the program's current values, and set its results. False where sizes do not fit into the
        memory that is there, or not what the program requires: nothing is set then.
        """

    @property
    def exhausted(self) -> bool:
        """Whether sizes were larger than they may be here."""

    def repeated(self, moves: Sequence[Move], condition: int | None, count: np.ndarray | None) -> Repeated:
        """Return iterations of the group, as `Repeatable.repeated` does; `NoRoom` is raised where `run` returns False.

        Raises `NotJoined` where addresses of the group cannot move.
        """


class NotJoined(Exception):
    """The steps cannot be one table."""


class NoRoom(Exception):
    """Sizes did not fit: the iterations have to be run one by one."""


class Runs(Protocol):
    """A step bound to memory."""

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        """Execute on the program's current values, by number."""


class Join(Protocol):
    def __call__(self) -> Joined | None:
        """Return a group as one table at the program's present sizes; None where that cannot be."""


class GroupRun:
    """The steps of a group, one by one or, from the second run with the same sizes on, joined. A run with a record of
    times, and one that finds more than there is room for, takes the steps one by one.
    """

    def __init__(self, steps: Sequence[Runs], join: Join) -> None:
        self._steps, self._join = steps, join
        self.resize()

    def resize(self) -> None:
        """Forget what was joined: the program has other sizes."""
        self._joined: Joined | None = None
        self._runs = 0

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        self._runs += 1
        if self._runs == 2:
            self._joined = self._join()
        if record is None and self._joined is not None:
            if self._joined.run(values):
                return
            if self._joined.exhausted:
                self._joined = None
        for step in self._steps:
            step.run(values, record)


def groups_of(program: Program) -> list[Group]:
    """Return the groups of a program: as many steps as possible each, with sizes that are found and used."""
    found = []
    for first, end in _stretches(program):
        steps = program.steps[first:end]
        if any(map(_is_extent, steps)) and any(isinstance(step, CallStep) for step in steps):
            found.append(_group(program, first, end))
    return found


def whole_group(program: Program) -> Group | None:
    """Return the group that all steps of a program are; None where they are none."""
    return next((group for group in groups_of(program) if group.steps == program.steps), None)


def _stretches(program: Program) -> Iterator[tuple[int, int]]:
    """Yield the ends of the longest sequences of steps that can be in a group."""
    first = 0
    for index, step in enumerate((*program.steps, None)):
        if step is None or not can_be_joined(step):
            if first < index:
                yield first, index
            first = index + 1


def can_be_joined(step: Step) -> bool:
    """Return whether native code can run a step together with others, at sizes that it sets itself."""
    match step:
        case NativeStep():
            return step.slices is None and all(launch.cases is None for launch in step.launches)
        case HostStep():
            return _is_extent(step)
        case CallStep():
            inside = step.body.program
            return min(step.outputs, default=0) != ABSENT and all(map(can_be_joined, inside.steps))
    return False


def _is_extent(step: Step) -> bool:
    return isinstance(step, HostStep) and step.op == EXTENT


def _group(program: Program, first: int, end: int) -> Group:
    before = {*program.inputs, *(n for step in program.steps[:first] for n in touched_by(step))}
    inside = {number for step in program.steps[first:end] for number in touched_by(step)}
    after = {*program.outputs, *(n for step in program.steps[end:] for n in touched_by(step))}
    made = sorted(inside - before)
    return Group(program, first, end, frozenset(inside & before), tuple(n for n in made if n in after))


def touched_by(step: Step) -> set[int]:
    """Return the values that a step reads or stores."""
    if isinstance(step, (NativeStep, DeviceStep)):
        return {arg.value for launch in step.launches for arg in launch.args}
    return {*read_by(step), *(number for number in step.outputs if number != ABSENT)}
