"""A native step of a program with symbols: the same table of launches for all sizes, with other numbers in it.

A new shape is common where a model decodes, one for every token. So nothing is built for it: what depends on sizes is
put into the table by a handful of operations on whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilestitch.runtime.artifact import address_of
from tilestitch.runtime.device import RecordTime
from tilestitch.runtime.hostmemory import empty_tensor
from tilestitch.runtime.program import Arena, Constant, NativeStep, Program, Sizes, Status, ValueSpec
from tilestitch.runtime.size_table import SizeTable
from tilestitch.runtime.sizes import Size
from tilestitch.runtime.sizing import Bound
from tilestitch.runtime.types import TensorType

from . import recycled
from .library import Library
from .segment import CopiedValues, NativeSegment
from .team import Team


class SizedSegment(NativeSegment):
    """Given sizes by `resize` before the first run. `symbols` is the array of the symbols' values, `table` has the
    places of sizes.
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
        self._base = np.zeros(len(arguments), np.int64)  # what does not change of an address
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
        self._recycled = {number: recycled.Recycled(f"value {program.values[number].name!r}") for number in self._rows}
        self._value: Callable[[int], ValueSpec] = program.values.__getitem__
        self._copied = CopiedValues(program, step)
        self._since_resize = 0  # runs with the sizes that it has
        self._tasks = table.places(launch.tasks for launch in step.launches)
        self._cases = [(number, launch) for number, launch in enumerate(step.launches) if launch.cases is not None]
        self._addresses = {one.symbol: library.address(one.symbol) for _, each in self._cases for one in each.kernels}
        self._begins = table.places(begins)
        self._offsets = table.places(arg.offset_bytes for arg in arguments)

    def resize(self, bound: Bound, arena_address: int, placed: np.ndarray | None = None) -> None:
        """Have other sizes, and the arena at this address, in which values begin by the sizes `placed`, its own if None
        are given.
        """
        sizes = bound.sizes
        begins = (sizes if placed is None else placed)[self._begins]
        offsets_bytes = sizes[self._offsets]
        self.table[:, 2] = sizes[self._tasks]
        for number, launch in self._cases:
            one = self.launches[number] = launch.at(bound.of)
            self.table[number, 0], self.table[number, 2] = self._addresses[one.symbol], bound.of(one.tasks)
        self.args[:, 1] = self._base + self._in_arena * arena_address + begins + offsets_bytes
        self.addressed = self._variable = {
            n: [(row, int(offsets_bytes[row])) for row in rows] for n, rows in self._rows.items()
        }
        self._value = bound.value
        self._copied_in, self._copied_out, self._since_resize = [], [], 0

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        self._since_resize += 1
        if self._since_resize == 2:
            self._settle()
        super().run(values, record)

    def _settle(self) -> None:
        """Give what is small addresses that stay. That takes as long as a few runs save, so it is for sizes that come
        again.
        """
        copies = self._copied.of(self._variable, self._value)
        self._copied_in, self._copied_out = self._copied.ways(copies)
        for number, memory in copies.items():
            address = address_of(memory)
            for row, offset_bytes in self._variable[number]:
                self.args[row, 1] = address + offset_bytes
        self._variable = {number: rows for number, rows in self._variable.items() if number not in copies}

    def _empty(self, number: int) -> np.ndarray:
        value = self._value(number)
        if not isinstance(value.type, TensorType) or value.type.nbytes < recycled.LEAST_BYTES:
            return empty_tensor(value)
        nbytes = value.type.nbytes
        return empty_tensor(value, self._recycled[number].take(nbytes, room=nbytes // 4))
