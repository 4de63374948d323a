"""A native step of a program with symbols: one table of launches for all sizes, with other numbers in it.

A new shape is common where a model decodes, one for every token. So nothing is built for it: a few vector operations on
whole columns update what depends on sizes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import address_of
from tilestitch.runtime.launches import RecordTime
from tilestitch.runtime.program import Arena, Constant, Launch, NativeStep, Program, Sizes, Status, ValueSpec
from tilestitch.runtime.size_table import SizeTable
from tilestitch.runtime.sizes import Size
from tilestitch.runtime.sizing import Bound

from .library import Library
from .recycled import Recycled
from .segment import CopiedValues, NativeSegment
from .team import Team


class SizedSegment(NativeSegment):
    """Segment whose sizes `resize` sets before the first run. `symbols` is the array of the symbols' values, `table`
    says where sizes stand.
    """

    def __init__(
        self,
        program: Program,
        step: NativeStep,
        fixed: Sequence[Any],
        symbols: np.ndarray,
        table: SizeTable,
        library: Library,
        team: Team,
    ) -> None:
        super().__init__(program, step, library, team)
        arguments = [arg for launch in step.launches for arg in launch.args]
        begins: list[Size] = [0] * len(arguments)
        self._base = np.zeros(len(arguments), np.int64)  # the part of an address that does not change
        self._in_arena = np.zeros(len(arguments), np.int64)
        self._rows: dict[int, list[int]] = {}
        for row, arg in enumerate(arguments):
            match program.values[arg.value].location:
                case Status():
                    self._base[row] = self.args[row, 1]
                case Sizes():
                    self._base[row] = symbols.ctypes.data
                case Constant():
                    self._base[row] = fixed[arg.value].ctypes.data
                case Arena(offset_bytes):
                    self._in_arena[row], begins[row] = 1, offset_bytes
                case _:
                    self._rows.setdefault(arg.value, []).append(row)
        self._recycled = {number: Recycled() for number in self._rows}
        self._value: Callable[[int], ValueSpec] = program.values.__getitem__
        self._program, self._step = program, step
        self._since_resize = 0  # runs since the sizes were last set
        self._tasks = table.places(launch.tasks for launch in step.launches)
        self._scratch = table.places(launch.scratch_bytes for launch in step.launches)
        self._choices = [_Choice(size, starts, launches) for (size, starts), launches in _cases_of(step).items()]
        self._place, self._address = table.place, library.address
        self._begins = table.places(begins)
        self._offsets = table.places(arg.offset_bytes for arg in arguments)

    def resize(self, bound: Bound, arena_address: int, placed: np.ndarray | None = None) -> None:
        """Set other sizes and the arena's address; values begin in the arena as the sizes `placed` say, by default the
        same sizes.
        """
        sizes = bound.sizes
        begins = (sizes if placed is None else placed)[self._begins]
        offsets_bytes = sizes[self._offsets]
        for choice in self._choices:
            for number, one in choice.changed(bound):
                self.launches[number], self.table[number, 0] = one, self._address(one.symbol)
                self._tasks[number], self._scratch[number] = self._place(one.tasks), self._place(one.scratch_bytes)
        self.table[:, 2] = sizes[self._tasks]
        self.args[:, 1] = self._base + self._in_arena * arena_address + begins + offsets_bytes
        self.addressed = self._variable = {
            n: [(row, int(offsets_bytes[row])) for row in rows] for n, rows in self._rows.items()
        }
        self._value = bound.value
        self._copied_in, self._copied_out, self._since_resize = [], [], 0

    def scratch_bytes(self, sizes: np.ndarray) -> int:
        """Return the scratch bytes that a thread needs for the launches at these sizes, which are set."""
        return int(sizes[self._scratch].max()) if self._scratch.size else 0

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        self._since_resize += 1
        if self._since_resize == 2:
            self._settle()
        super().run(values, record)

    def _settle(self) -> None:
        """Give small values fixed addresses. That takes as long as a few runs save, so it is for sizes that recur."""
        copied = CopiedValues(self._program, self._step)
        copies = copied.of(self._variable, self._value)
        self._copied_in, self._copied_out = copied.ways(copies)
        for number, memory in copies.items():
            address = address_of(memory)
            for row, offset_bytes in self._variable[number]:
                self.args[row, 1] = address + offset_bytes
        self._variable = {number: rows for number, rows in self._variable.items() if number not in copies}

    def _empty(self, number: int) -> tuple[np.ndarray, int]:
        return self._recycled[number].array(self._value(number), room=1 / 4)


class _Choice:
    """Launches whose cases begin at the same values of one size; `launches` by their numbers in the step."""

    def __init__(self, size: Size, starts: tuple[int, ...], launches: Mapping[int, Launch]) -> None:
        self._size, self._starts, self._launches = size, starts, launches
        self._case = 0

    def changed(self, bound: Bound) -> Iterator[tuple[int, Launch]]:
        """Yield the launches that change at other sizes, with their numbers."""
        case = bisect_right(self._starts, bound.of(self._size))
        if case == self._case:
            return
        self._case = case
        for number, launch in self._launches.items():
            yield number, launch.kernels[case]


def _cases_of(step: NativeStep) -> dict[tuple[Size, tuple[int, ...]], dict[int, Launch]]:
    """Return the launches that have cases, by the size and starts that choose between these."""
    found: dict[tuple[Size, tuple[int, ...]], dict[int, Launch]] = {}
    for number, launch in enumerate(step.launches):
        if launch.cases is not None:
            found.setdefault((launch.cases.size, launch.cases.starts), {})[number] = launch
    return found
