"""A native step bound to memory: the table of launches and arguments that native code reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, Protocol, TypeAlias

import numpy as np

from tilestitch.runtime.buffers import address_of
from tilestitch.runtime.hostmemory import empty_tensor, is_small
from tilestitch.runtime.launches import RecordTime
from tilestitch.runtime.moves import Move
from tilestitch.runtime.moves import Repeated as Repeats
from tilestitch.runtime.program import (
    Arena,
    Constant,
    DeviceStep,
    Heap,
    Input,
    NativeStep,
    Program,
    Sizes,
    Status,
    ValueSpec,
)
from tilestitch.runtime.sizes import known

from .faults import Faults
from .library import Library
from .recycled import Recycled
from .team import Team

Copy: TypeAlias = tuple[int, np.ndarray]
"""A value's number, and memory at a fixed address."""


class NativeSegment:
    """One native step of a program and the team that runs it.

    A subclass puts fixed addresses into the table of arguments; its `_variable` says by value where every run puts the
    others: rows of the table and offsets in bytes. `addressed` also has the values that are copied into or out of
    memory at fixed addresses, which iterations of a loop leave where they are.
    """

    def __init__(self, program: Program, step: NativeStep, library: Library, team: Team) -> None:
        self.launches = list(step.launches)
        self.team = team
        self._faults = Faults(len(step.launches))
        self._faults.have(self.launches)
        self.args = np.zeros((sum(len(launch.args) for launch in step.launches), 2), np.int64)
        self.table = np.zeros((len(step.launches), 4), np.int64)
        self._copied_in: list[Copy] = []
        self._copied_out: list[Copy] = []
        self._variable: dict[int, list[tuple[int, int]]] = {}
        self.addressed: dict[int, list[tuple[int, int]]] = {}
        row = first = 0
        for number, launch in enumerate(step.launches):
            tasks = launch.tasks if isinstance(launch.tasks, int) else 0
            self.table[number] = (library.address(launch.symbol), self.args.ctypes.data + 16 * row, tasks, 1)
            if launch.packed:
                self.table[first, 3] += 1
            else:
                first = number
            for arg in launch.args:
                if isinstance(program.values[arg.value].location, Status):
                    self.args[row, 1] = self._faults.address(number)
                row += 1
        self._run = team.prepare(self.table.ctypes.data, len(step.launches))

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        """Execute on the program's current values, allocating heap values that do not exist yet.

        Raises `ExecutionError` when a kernel reports a fault.
        """
        for number, memory in self._copied_in:
            memory[...] = values[number]
        for number, places in self._variable.items():
            address = self.address(values, number)
            for row, offset_bytes in places:
                self.args[row, 1] = address + offset_bytes
        if record is None:
            self._run()
        else:
            self._run_timed(record)
        self.check_faults()
        for number, memory in self._copied_out:
            if values[number] is None:
                values[number] = memory.copy()
            else:
                values[number][...] = memory

    def repeated(self, moves: Sequence[Move], condition: int | None, count: np.ndarray | None) -> Repeats:
        """Return iterations with tables of their own; a segment that is given other sizes needs new ones."""
        args, table = self.args.copy(), self.table.copy()
        table[:, 1] += args.ctypes.data - self.args.ctypes.data
        return Repeated(self, moves, condition, count, args, table)

    def address(self, values: list[Any], number: int) -> int:
        """Return the address of the value's array, which is allocated here if it is not yet, and made C-contiguous."""
        array = values[number]
        if array is None:
            values[number], address = self._empty(number)
            return address
        if not array.flags.c_contiguous or not array.flags.aligned:
            values[number] = array = np.array(array, order="C")
        return address_of(array)

    def _empty(self, number: int) -> tuple[np.ndarray, int]:
        """Return a new array for a heap value, and its address."""
        raise NotImplementedError

    def _run_timed(self, record: RecordTime) -> None:
        times_ns = np.zeros(len(self.launches) + 1, np.int64)
        self.team.prepare(self.table.ctypes.data, len(self.launches), times_ns.ctypes.data)()
        self.record(record, times_ns)

    def record(self, record: RecordTime, times_ns: np.ndarray) -> None:
        """Record the launches of one or more iterations."""
        for launch, duration_ns in zip(cycle(self.launches), np.diff(times_ns).tolist()):
            record(launch.symbol, launch.origins, duration_ns / 1000, 0)

    def check_faults(self) -> None:
        """Raise `ExecutionError` where a kernel has reported a fault since the last call."""
        self._faults.check()


class Launched(Protocol):
    """Launches bound to memory, with the rows of arguments of values that are `addressed`, and offsets in bytes."""

    team: Team
    addressed: dict[int, list[tuple[int, int]]]

    def address(self, values: list[Any], number: int) -> int:
        """Return the address of the value's array, in a form that a kernel may take."""

    def record(self, record: RecordTime, times_ns: np.ndarray) -> None:
        """Record the launches of one or more iterations."""

    def check_faults(self) -> None:
        """Raise `ExecutionError` where a kernel has reported a fault since the last call."""


class Repeated:
    """Iterations of a segment: its tables, with the addresses that change from iteration to iteration, and how they
    move.

    Addresses of values that are `held` are looked up once, those of others before each run. `args`, `table`: the
    tables, the segment's own or copies.
    """

    def __init__(
        self, segment: Launched, moves: Sequence[Move], condition: int | None, count: np.ndarray | None,
        args: np.ndarray, table: np.ndarray,
    ) -> None:  # fmt: skip
        self._segment, self._condition = segment, condition
        self._args = args
        at = {number: place for place, number in enumerate(segment.addressed)}
        self._varying = at
        self._addresses = np.zeros(len(at), np.int64)
        rows = [(row, at[n], offset) for n in at for row, offset in segment.addressed[n]]
        self._places, self._at, self._offsets_bytes = np.array(rows, np.int64).reshape(-1, 3).T.copy()
        self._places = 2 * self._places + 1
        self._flat = self._args.reshape(-1)  # numpy indexes one dimension faster than two
        moving = [
            (self._args.ctypes.data + 16 * row + 8, at[move.source], move.shift_bytes + offset, move)
            for move in moves for row, offset in segment.addressed.get(move.number, ())
        ]  # fmt: skip
        self._sources = np.array([source for _, source, _, _ in moving], np.int64)
        self._shifts_bytes = np.array([shift for _, _, shift, _ in moving], np.int64)
        words = [(place, 0, move.stride_bytes, move.toggle) for place, _, _, move in moving]
        if count is not None:
            words.append((count.ctypes.data, 0, 1, 0))
        self._count = count
        self._words = np.array(words, np.int64).reshape(-1, 4)
        self._following = self._words[: len(moving), 1]
        self._loop = np.array([0, len(words), self._words.ctypes.data, 0, 0], np.int64)
        self._table = table
        self._execute = segment.team.prepare(table.ctypes.data, len(table), 0, self._loop.ctypes.data)

    def hold(self, values: list[Any]) -> None:
        """Fix the addresses of those of these values that exist: they stay there in all runs from now on."""
        held = {number: place for number, place in self._varying.items() if values[number] is not None}
        self._look_up(values, held)
        self._flat[self._places] = self._addresses[self._at] + self._offsets_bytes
        self._varying = {number: place for number, place in self._varying.items() if number not in held}
        moving = (self._words[: len(self._sources), 0] - self._args.ctypes.data) // self._args.itemsize
        again = np.isin(self._at, list(self._varying.values())) | np.isin(self._places, moving)
        self._places, self._at, self._offsets_bytes = (
            part[again] for part in (self._places, self._at, self._offsets_bytes)
        )

    def _look_up(self, values: list[Any], places: Mapping[int, int]) -> None:
        for number, place in places.items():
            self._addresses[place] = self._segment.address(values, number)

    def run(self, values: list[Any], most: int, record: RecordTime | None) -> int:
        """Execute up to `most` iterations on the program's current values, or until the condition is false after one.
        Returns their number.

        Raises `ExecutionError` when a kernel reports a fault.
        """
        segment, loop, addresses = self._segment, self._loop, self._addresses
        self._look_up(values, self._varying)
        self._flat[self._places] = addresses[self._at] + self._offsets_bytes
        self._following[...] = addresses[self._sources] + self._shifts_bytes
        if self._count is not None:
            self._words[-1, 1] = self._count[0] + 1
        loop[0], loop[4] = most, 0
        if self._condition is not None:
            loop[3] = address_of(values[self._condition])
        if record is None:
            self._execute()
        else:
            self._run_timed(most, record)
        segment.check_faults()
        return int(loop[4])

    def _run_timed(self, most: int, record: RecordTime) -> None:
        launches, segment = len(self._table), self._segment
        times_ns = np.zeros(most * launches + 1, np.int64)
        segment.team.prepare(self._table.ctypes.data, launches, times_ns.ctypes.data, self._loop.ctypes.data)()
        segment.record(record, times_ns[: int(self._loop[4]) * launches + 1])


class Segment(NativeSegment):
    """Segment whose sizes are all numbers.

    The addresses of values in the arena, of constants and of small inputs and results are put in once, the others
    before each run.
    """

    def __init__(self, program: Program, step: NativeStep, fixed: Sequence[Any], library: Library, team: Team) -> None:
        super().__init__(program, step, library, team)
        self._values = program.values
        copies = self._copies(program, step)
        for row, arg in enumerate(arg for launch in step.launches for arg in launch.args):
            location, offset_bytes = program.values[arg.value].location, known(arg.offset_bytes)
            if isinstance(location, (Arena, Constant, Sizes)):
                self.args[row, 1] = fixed[arg.value].ctypes.data + offset_bytes
                continue
            if isinstance(location, Status):
                continue
            self.addressed.setdefault(arg.value, []).append((row, offset_bytes))
            if arg.value in copies:
                self.args[row, 1] = copies[arg.value].ctypes.data + offset_bytes
            else:
                self._variable.setdefault(arg.value, []).append((row, offset_bytes))
        self._recycled = {number: Recycled() for number in self._variable}

    def _copies(self, program: Program, step: NativeStep) -> dict[int, np.ndarray]:
        """Return memory for the inputs that are copied in, and for the results of this step that are copied out."""
        copied = CopiedValues(program, step)
        numbers = dict.fromkeys(arg.value for launch in step.launches for arg in launch.args)
        copies = copied.of(numbers, program.values.__getitem__)
        self._copied_in, self._copied_out = copied.ways(copies)
        return copies

    def _empty(self, number: int) -> tuple[np.ndarray, int]:
        return self._recycled[number].array(self._values[number])


class CopiedValues:
    """The small values of a step that are copied into or out of memory at fixed addresses: the program's inputs, and
    heap values that this step is the first to store. Growing caches stay in the caller's memory.
    """

    def __init__(self, program: Program, step: NativeStep) -> None:
        stay = program.grown | _set_before(program, step)
        places = [value.location for value in program.values]
        self._in = {number for number, place in enumerate(places) if isinstance(place, Input)}
        self._out = {number for number, place in enumerate(places) if isinstance(place, Heap) and number not in stay}

    def of(self, numbers: Iterable[int], value: Callable[[int], ValueSpec]) -> dict[int, np.ndarray]:
        """Return memory for those of these values that are copied; `value` gives them with their sizes."""
        known = self._in | self._out
        return {n: empty_tensor(spec) for n in numbers if n in known and is_small(spec := value(n))}

    def ways(self, copies: Mapping[int, np.ndarray]) -> tuple[list[Copy], list[Copy]]:
        """Split such memory into what is copied in and what is copied out."""
        return [c for c in copies.items() if c[0] in self._in], [c for c in copies.items() if c[0] in self._out]


def _set_before(program: Program, step: NativeStep) -> set[int]:
    """Return the values that earlier steps of the program use."""
    numbers: set[int] = set()
    for earlier in program.steps:
        if earlier is step:
            break
        if isinstance(earlier, (NativeStep, DeviceStep)):
            numbers.update(arg.value for launch in earlier.launches for arg in launch.args)
        else:
            numbers.update(earlier.outputs)
    return numbers
