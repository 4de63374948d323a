"""A native step bound to memory: the table of launches and their arguments, as native code reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilestitch.runtime.artifact import aligned_bytes
from tilestitch.runtime.device import RecordTime
from tilestitch.runtime.dtypes import numpy_dtype
from tilestitch.runtime.errors import ExecutionError
from tilestitch.runtime.program import Arena, Constant, NativeStep, Program, Status, ValueSpec
from tilestitch.runtime.types import TensorType

from .library import Library
from .team import Team


class Segment:
    """One native step of a program. Arena and constant addresses are put in once, the others before each run."""

    def __init__(self, program: Program, step: NativeStep, fixed: Sequence[Any], library: Library) -> None:
        self._launches = step.launches
        self._values = program.values
        self._status = np.zeros(len(step.launches), np.int32)
        self._args = np.zeros((sum(len(launch.args) for launch in step.launches), 2), np.int64)
        self._table = np.zeros((len(step.launches), 4), np.int64)
        self._variable: dict[int, list[tuple[int, int]]] = {}  # value number -> (row of args, offset in bytes)
        row = first = 0
        for number, launch in enumerate(step.launches):
            args_address = self._args.ctypes.data + 16 * row
            self._table[number] = (library.address(launch.symbol), args_address, launch.tasks, 1)
            if launch.packed:
                self._table[first, 3] += 1
            else:
                first = number
            for arg in launch.args:
                location = program.values[arg.value].location
                if isinstance(location, Status):
                    self._args[row, 1] = self._status.ctypes.data + 4 * number
                elif isinstance(location, (Arena, Constant)):
                    self._args[row, 1] = fixed[arg.value].ctypes.data + arg.offset_bytes
                else:
                    self._variable.setdefault(arg.value, []).append((row, arg.offset_bytes))
                row += 1
        self._table_address = self._table.ctypes.data
        self._reports = any(launch.faults for launch in step.launches)

    def run(self, values: list[Any], team: Team, record: RecordTime | None) -> None:
        """Execute on the program's current values; makes those on the heap that are not there yet.

        Raises `ExecutionError` when a kernel reports a fault.
        """
        for number, places in self._variable.items():
            address = self._operand(values, number).__array_interface__["data"][0]
            for row, offset_bytes in places:
                self._args[row, 1] = address + offset_bytes
        if self._reports:
            self._status[...] = 0
        count = len(self._launches)
        if record is None:
            team.run(self._table_address, count, 0)
        else:
            self._run_timed(team, count, record)
        if self._reports and self._status.any():
            self._raise_fault()

    def _operand(self, values: list[Any], number: int) -> np.ndarray:
        """The value's array, such that a kernel may take its address."""
        array = values[number]
        if array is None:
            values[number] = array = empty_tensor(self._values[number])
        elif not array.flags.c_contiguous or not array.flags.aligned:
            values[number] = array = np.array(array, order="C")
        return array

    def _run_timed(self, team: Team, count: int, record: RecordTime) -> None:
        times_ns = np.zeros(count + 1, np.int64)
        team.run(self._table_address, count, times_ns.ctypes.data)
        for launch, duration_ns in zip(self._launches, np.diff(times_ns).tolist(), strict=True):
            record(launch.symbol, launch.origins, duration_ns / 1000)

    def _raise_fault(self) -> None:
        number = int(np.flatnonzero(self._status)[0])
        launch, fault = self._launches[number], int(self._status[number]) - 1
        message = launch.faults[fault] if 0 <= fault < len(launch.faults) else f"fault {fault}"
        where = ", ".join(launch.origins) or launch.symbol
        raise ExecutionError(f"ONNX node {where}: {message}; check the values of the model's inputs")


def empty_tensor(value: ValueSpec) -> np.ndarray:
    """An uninitialised, 64-byte aligned array for a value whose type is static."""
    if not isinstance(value.type, TensorType) or value.type.static_shape is None:
        raise ValueError(f"value {value.name!r} of type {value.type} has no fixed size")
    dtype = numpy_dtype(value.type.dtype)
    return aligned_bytes(value.type.nbytes).view(dtype).reshape(value.type.static_shape)
