"""A native step bound to memory: the table of launches and their arguments, as native code reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from tilestitch.runtime.artifact import address_of
from tilestitch.runtime.device import RecordTime
from tilestitch.runtime.errors import ExecutionError
from tilestitch.runtime.hostmemory import empty_tensor, is_small
from tilestitch.runtime.program import Arena, Constant, DeviceStep, Heap, Input, NativeStep, Program, Sizes, Status
from tilestitch.runtime.sizes import known
from tilestitch.runtime.turns import Change
from tilestitch.runtime.types import TensorType

from .library import Library
from .recycled import recycled
from .team import Team


class NativeSegment:
    """One native step of a program, and the team that runs it.

    A subclass puts addresses that stay into the table of arguments, and says in `_variable` where those are that every
    run puts in, by value: rows of the table and offsets in bytes. `_addressed` has those besides whose values are
    copied into memory that stays, or out of it: turns of a loop leave them where they are.
    """

    def __init__(self, program: Program, step: NativeStep, library: Library, team: Team) -> None:
        self._launches = step.launches
        self._team = team
        self._status = np.zeros(len(step.launches), np.int32)
        self._args = np.zeros((sum(len(launch.args) for launch in step.launches), 2), np.int64)
        self._table = np.zeros((len(step.launches), 4), np.int64)
        self._copied_in: list[tuple[int, np.ndarray]] = []
        self._copied_out: list[tuple[int, np.ndarray]] = []
        self._variable: dict[int, list[tuple[int, int]]] = {}
        self._addressed: dict[int, list[tuple[int, int]]] = {}
        self._places: np.ndarray | None = None
        row = first = 0
        for number, launch in enumerate(step.launches):
            tasks = launch.tasks if isinstance(launch.tasks, int) else 0
            self._table[number] = (library.address(launch.symbol), self._args.ctypes.data + 16 * row, tasks, 1)
            if launch.packed:
                self._table[first, 3] += 1
            else:
                first = number
            for arg in launch.args:
                if isinstance(program.values[arg.value].location, Status):
                    self._args[row, 1] = self._status.ctypes.data + 4 * number
                row += 1
        self._run = team.prepare(self._table.ctypes.data, len(step.launches))
        self._reports = any(launch.faults for launch in step.launches)

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        """Execute on the program's current values; makes those on the heap that are not there yet.

        Raises `ExecutionError` when a kernel reports a fault.
        """
        for number, memory in self._copied_in:
            memory[...] = values[number]
        for number, places in self._variable.items():
            address = address_of(self._operand(values, number))
            for row, offset_bytes in places:
                self._args[row, 1] = address + offset_bytes
        if record is None:
            self._run()
        else:
            self._run_timed(record)
        if self._reports and self._status.any():
            self._raise_fault()
        for number, memory in self._copied_out:
            if values[number] is None:
                values[number] = memory.copy()
            else:
                values[number][...] = memory

    def repeat(
        self, values: list[Any], changes: Sequence[Change], most: int, condition: int | None, record: RecordTime | None
    ) -> int:
        """Execute for `most` turns on the program's current values, or until the one of number `condition` is false
        after a turn. Returns how many it were.

        Raises `ExecutionError` when a kernel reports a fault.
        """
        kept = self._args.copy()
        words = self._begun(values, changes)
        going = 0 if condition is None else address_of(values[condition])
        loop = np.array([most, len(words), words.ctypes.data, going, 0], np.int64)
        times_ns = np.zeros(0 if record is None else most * len(self._launches) + 1, np.int64)
        times = 0 if record is None else times_ns.ctypes.data
        self._team.prepare(self._table.ctypes.data, len(self._launches), times, loop.ctypes.data)()
        done = int(loop[4])
        self._args[...] = kept
        if record is not None:
            self._record(record, times_ns[: done * len(self._launches) + 1])
        if self._reports and self._status.any():
            self._raise_fault()
        return done

    def _begun(self, values: list[Any], changes: Sequence[Change]) -> np.ndarray:
        """Put the addresses of the first turn into the table; returns the changes as the executor reads them."""
        numbers = list(self._addressed)
        places = self._places
        if places is None:
            found = [(row, at, offset) for at, n in enumerate(numbers) for row, offset in self._addressed[n]]
            self._places = places = np.array(found, np.int64).reshape(-1, 3)
        rows, at, offsets_bytes = places.T
        addresses = np.array([address_of(self._operand(values, number)) for number in numbers], np.int64)
        self._args[rows, 1] = addresses[at] + offsets_bytes
        moving = {
            change.number: (change.following, change.stride, change.toggle) for change in changes if not change.content
        }
        moves = np.array([moving.get(number, (0, 0, 0)) for number in numbers], np.int64).reshape(-1, 3)[at]
        moves[:, 0] += offsets_bytes
        words = np.column_stack([self._args.ctypes.data + 8 + 16 * rows, moves])[[numbers[i] in moving for i in at]]
        trips = [c for c in changes if c.content]
        counts = [(address_of(values[c.number]), c.following, c.stride, c.toggle) for c in trips]
        return np.concatenate([words, np.array(counts, np.int64).reshape(-1, 4)])

    def _operand(self, values: list[Any], number: int) -> np.ndarray:
        """The value's array, such that a kernel may take its address."""
        array = values[number]
        if array is None:
            values[number] = array = self._empty(number)
        elif not array.flags.c_contiguous or not array.flags.aligned:
            values[number] = array = np.array(array, order="C")
        return array

    def _empty(self, number: int) -> np.ndarray:
        """A new array for a value on the heap."""
        raise NotImplementedError

    def _run_timed(self, record: RecordTime) -> None:
        times_ns = np.zeros(len(self._launches) + 1, np.int64)
        self._team.prepare(self._table.ctypes.data, len(self._launches), times_ns.ctypes.data)()
        self._record(record, times_ns)

    def _record(self, record: RecordTime, times_ns: np.ndarray) -> None:
        """Record the launches of one turn or more."""
        for launch, duration_ns in zip(cycle(self._launches), np.diff(times_ns).tolist()):
            record(launch.symbol, launch.origins, duration_ns / 1000, 0)

    def _raise_fault(self) -> None:
        number = int(np.flatnonzero(self._status)[0])
        launch, fault = self._launches[number], int(self._status[number]) - 1
        self._status[...] = 0
        message = launch.faults[fault] if 0 <= fault < len(launch.faults) else f"fault {fault}"
        where = ", ".join(launch.origins) or launch.symbol
        raise ExecutionError(f"ONNX node {where}: {message}; check the values of the model's inputs")


class Segment(NativeSegment):
    """A step whose sizes are all numbers.

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
                self._args[row, 1] = fixed[arg.value].ctypes.data + offset_bytes
                continue
            if isinstance(location, Status):
                continue
            self._addressed.setdefault(arg.value, []).append((row, offset_bytes))
            if arg.value in copies:
                self._args[row, 1] = copies[arg.value].ctypes.data + offset_bytes
            else:
                self._variable.setdefault(arg.value, []).append((row, offset_bytes))
        self._recycled = {number: memory for number in self._variable if (memory := recycled(program.values[number]))}

    def _copies(self, program: Program, step: NativeStep) -> dict[int, np.ndarray]:
        """Memory for the inputs that are copied in, and for the results of this step that are copied out."""
        before = _set_before(program, step)
        numbers = dict.fromkeys(arg.value for launch in step.launches for arg in launch.args)
        copies: dict[int, np.ndarray] = {}
        for number in numbers:
            value = program.values[number]
            is_result = isinstance(value.location, Heap) and number not in before
            if is_small(value) and (is_result or isinstance(value.location, Input)):
                copies[number] = empty_tensor(value)
                (self._copied_out if is_result else self._copied_in).append((number, copies[number]))
        return copies

    def _empty(self, number: int) -> np.ndarray:
        value = self._values[number]
        if number not in self._recycled or not isinstance(value.type, TensorType):
            return empty_tensor(value)
        return empty_tensor(value, self._recycled[number].take(value.type.nbytes))


def _set_before(program: Program, step: NativeStep) -> set[int]:
    """The values on which earlier steps of the program work."""
    numbers: set[int] = set()
    for earlier in program.steps:
        if earlier is step:
            break
        if isinstance(earlier, (NativeStep, DeviceStep)):
            numbers.update(arg.value for launch in earlier.launches for arg in launch.args)
        else:
            numbers.update(earlier.outputs)
    return numbers
