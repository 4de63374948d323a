"""What a program has on a GPU for one run at a time: an arena with room for inputs and results, and bound steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.runtime.device import OnDevice, RecordTime
from tilestitch.runtime.dtypes import numpy_dtype
from tilestitch.runtime.errors import ArtifactSchemaError, ExecutionError, InputError
from tilestitch.runtime.program import (
    Arena,
    Arg,
    Constant,
    Counters,
    DeviceStep,
    Heap,
    Input,
    Literal,
    NativeStep,
    Program,
    Sizes,
    Status,
    ValueSpec,
)
from tilestitch.runtime.sizes import known
from tilestitch.runtime.sizing import Bound
from tilestitch.runtime.types import TensorType

from .array import DeviceArray
from .driver import Allocation, Device
from .graph import LaunchGraph, Parameters
from .modules import Modules
from .queue import Queue

ALIGNMENT = 256
KERNEL_ALIGNMENT = 16
"""Of what kernels are given: vector loads and tensor maps need it. A launch's status takes as much."""


class CudaMemory:
    """One allocation: the program's arena, a slot for every input and heap value that kernels use, status words."""

    def __init__(self, program: Program, file: str, queue: Queue, modules: Modules, weights: Mapping[str, int]) -> None:
        self.program, self.queue, self.modules = program, queue, modules
        self.device = queue.device
        self.slots: dict[int, int] = {}
        self._file = file
        self._weights = weights
        self._uploaded: dict[int, np.ndarray | OnDevice] = {}
        self._run = -1
        end = aligned(known(program.arena_bytes))
        for number in sorted(set(_slotted(program))):
            self.slots[number] = end
            end += aligned(tensor_type(program.values[number]).nbytes)
        counters = end
        for number, value in enumerate(program.values):
            if isinstance(value.location, Counters):
                self.slots[number] = end
                end += aligned(value.location.nbytes)
        counter_bytes = end - counters
        sizes = {number: value for number, value in enumerate(program.values) if isinstance(value.location, Sizes)}
        for number, value in sizes.items():
            self.slots[number] = end
            end += aligned(tensor_type(value).nbytes)
        launches = sum(len(step.launches) for step in program.steps if isinstance(step, DeviceStep))
        self._status = end
        self.allocation = Allocation(self.device, end + KERNEL_ALIGNMENT * launches, f"values of {file}")
        self.segments: list[CudaSegment] = []
        if counter_bytes:
            queue.clear(self.allocation.address + counters, counter_bytes)
        self._sizes: list[np.ndarray] = []  # the copies may be under way for as long as the memory is there
        for number, value in sizes.items():
            if isinstance(value.location, Sizes):
                self._sizes.append(np.array(value.location.values, np.int64))
                queue.write(self.slot(number), self._sizes[-1])

    def fixed(self, value: ValueSpec) -> DeviceArray:
        if not isinstance(value.location, Arena):
            raise ValueError(f"value {value.name!r} is not in the arena")
        return self._array(value, self.allocation.address + known(value.location.offset_bytes))

    def bind(self, step: NativeStep | DeviceStep, fixed: Sequence[Any]) -> CudaSegment:
        if not isinstance(step, DeviceStep):
            raise ArtifactSchemaError("the program has steps for the CPU's kernels", file=self._file)
        segment = CudaSegment(self, step, self.allocation.address + self._status)
        self._status += KERNEL_ALIGNMENT * len(step.launches)
        self.segments.append(segment)
        return segment

    def overlaps(self, array: np.ndarray) -> bool:
        return False

    def resize(self, bound: Bound) -> None:
        raise ValueError("the sizes of a GPU's memory do not change")

    def address(self, arg: Arg) -> int:
        """Where an argument points unless a run brings memory of its own."""
        value = self.program.values[arg.value]
        match value.location:
            case Arena(offset_bytes):
                base = self.allocation.address + known(offset_bytes)
            case Constant(tensor, offset_bytes):
                base = self._weights[tensor] + offset_bytes
            case Input() | Heap() | Counters() | Sizes():
                base = self.slot(arg.value)
            case Literal() | Status():
                raise ArtifactSchemaError(f"a kernel takes the value {value.name!r}, no tensor", file=self._file)
        return base + known(arg.offset_bytes)

    def slot(self, number: int) -> int:
        return self.allocation.address + self.slots[number]

    def operand(self, values: list[Any], number: int) -> int:
        """The address of an input or heap value in this run; a host array is copied to its slot, and so is one on the
        GPU that begins where kernels cannot read it.
        """
        value = values[number]
        if value is None:
            values[number] = self._array(self.program.values[number], self.slot(number))
        elif isinstance(value, OnDevice) and value.address % KERNEL_ALIGNMENT == 0:
            return value.address
        else:
            self._upload(number, value)
        return self.slot(number)

    def _upload(self, number: int, array: np.ndarray | OnDevice) -> None:
        if self._run != self.queue.run_number:
            self._run = self.queue.run_number
            self._uploaded.clear()
        if self._uploaded.get(number) is array:
            return
        self._uploaded[number] = array
        self.queue.write(self.slot(number), array)

    def _array(self, value: ValueSpec, address: int) -> DeviceArray:
        type_ = tensor_type(value)
        return WorkArray(self.device, address, numpy_dtype(type_.dtype), type_.static_shape or (), self.queue)

    def close(self) -> None:
        for segment in self.segments:
            segment.graph.close()
        self.segments.clear()
        self.allocation.close()


class WorkArray(DeviceArray):
    """An array in a program's memory, which the next run overwrites."""

    def __init__(self, device: Device, address: int, dtype: np.dtype, shape: tuple[int, ...], queue: Queue) -> None:
        super().__init__(device, address, dtype, shape, queue)
        self._queue = queue

    def numpy(self) -> np.ndarray:
        result = np.empty(self.shape, self.dtype)
        self._queue.read(self.address, result)
        return result


class CudaSegment:
    """A device step as a graph. Pointers to the arena and to constants are fixed, the others follow the run's values.

    `status_address`: an int32 for each launch, `KERNEL_ALIGNMENT` bytes from one to the next.
    """

    def __init__(self, memory: CudaMemory, step: DeviceStep, status_address: int) -> None:
        self._memory = memory
        self._step = step
        self._status_address = status_address
        self._has_status = False
        self._variable: dict[int, list[tuple[int, int, int]]] = {}  # value -> (launch, position, offset in bytes)
        self._bound: dict[int, int] = {}  # value -> the address that the graph has now
        self._parameters = [Parameters.of(launch) for launch in step.launches]
        for number, launch in enumerate(step.launches):
            for position, arg in enumerate(launch.args):
                self._parameters[number].point(memory.device, position, self._address(number, position, arg))
        functions = [memory.modules.function(launch.symbol) for launch in step.launches]
        clear = (status_address, KERNEL_ALIGNMENT * len(step.launches) if self._has_status else 0)
        launches = [memory.modules.fitted(launch) for launch in step.launches]
        self.graph = LaunchGraph(
            memory.device, launches, step.dependences, functions, self._parameters, clear
        )  # fmt: skip

    def _address(self, number: int, position: int, arg: Arg) -> int:
        location = self._memory.program.values[arg.value].location
        if isinstance(location, Status):
            self._has_status = True
            return self._status_address + KERNEL_ALIGNMENT * number + known(arg.offset_bytes)
        address = self._memory.address(arg)
        if isinstance(location, (Input, Heap)):
            self._variable.setdefault(arg.value, []).append((number, position, known(arg.offset_bytes)))
            self._bound[arg.value] = self._memory.slot(arg.value)
        return address

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        memory = self._memory
        self._bind_values(values)
        if record is None:
            self.graph.launch(memory.queue.stream)
        else:
            times = self.graph.launch_timed(memory.queue.stream)
            for launch, microseconds in zip(self._step.launches, times, strict=True):
                record(launch.symbol, launch.origins, microseconds, launch.branch)
        if self._has_status:
            self._check_status()

    def _bind_values(self, values: list[Any]) -> None:
        changed: set[int] = set()
        for value, places in self._variable.items():
            array = values[value]
            if type(array) is DeviceArray and array.address == self._bound[value]:
                continue
            address = self._memory.operand(values, value)
            if address == self._bound[value]:
                continue
            self._bound[value] = address
            for number, position, offset_bytes in places:
                self._parameters[number].point(self._memory.device, position, address + offset_bytes)
                changed.add(number)
        for number in sorted(changed):
            self.graph.update(number)

    def _check_status(self) -> None:
        words = np.zeros((len(self._step.launches), KERNEL_ALIGNMENT // 4), np.int32)
        self._memory.queue.read(self._status_address, words)
        status = words[:, 0]
        if not status.any():
            return
        number = int(np.flatnonzero(status)[0])
        launch, fault = self._step.launches[number], int(status[number]) - 1
        message = launch.faults[fault] if 0 <= fault < len(launch.faults) else f"fault {fault}"
        where = ", ".join(launch.origins) or launch.symbol
        raise ExecutionError(f"ONNX node {where}: {message}; check the values of the model's inputs")


def _slotted(program: Program) -> Iterator[int]:
    """The inputs and heap values that kernels use."""
    for step in program.steps:
        for launch in step.launches if isinstance(step, DeviceStep) else ():
            for arg in launch.args:
                if isinstance(program.values[arg.value].location, (Input, Heap)):
                    yield arg.value


def tensor_type(value: ValueSpec) -> TensorType:
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        raise InputError(f"value {value.name!r} of type {value.type} cannot lie in a GPU's memory")
    return value.type


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
