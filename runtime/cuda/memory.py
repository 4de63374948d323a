"""A program's memory on a GPU for one run at a time: an arena with room for inputs and results, and bound steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from tilestitch.runtime.device import OnDevice
from tilestitch.runtime.dtypes import memory_dtype
from tilestitch.runtime.errors import ArtifactSchemaError, ExecutionError, InputError
from tilestitch.runtime.launches import RecordTime
from tilestitch.runtime.program import (
    Arena,
    Arg,
    Constant,
    Counters,
    DeviceLaunch,
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
from tilestitch.runtime.sizes import Size, known
from tilestitch.runtime.sizing import Bound
from tilestitch.runtime.types import TensorType

from .array import DeviceArray
from .driver import Allocation, CudaError, Device
from .graph import LaunchGraph, Parameters
from .modules import Modules
from .queue import Queue

ALIGNMENT = 256
KERNEL_ALIGNMENT = 16
"""Alignment in bytes of kernel arguments, which vector loads and tensor maps need. A launch's status word takes as
much.
"""


class CudaMemory:
    """One allocation: status words, counters and values of symbols, then the program's arena, and a slot for every
    input and heap value that kernels use, except caches, whose memory every run brings. For a program with symbols it
    is as large as the sizes so far needed.
    """

    on_host = False

    def __init__(self, program: Program, file: str, queue: Queue, modules: Modules, weights: Mapping[str, int]) -> None:
        self.program, self.queue, self.modules = program, queue, modules
        self.device = queue.device
        self.slots: dict[int, int] = {}
        self.spec: Callable[[int], ValueSpec] = program.values.__getitem__
        self.of: Callable[[Size], int] = known
        self.segments: list[CudaSegment] = []
        self._file = file
        self._weights = weights
        self._uploaded: dict[int, np.ndarray | OnDevice] = {}
        self._run = -1
        self._bound_status = 0
        launches = sum(len(step.launches) for step in program.steps if isinstance(step, DeviceStep))
        self._counters = self._sizes = aligned(KERNEL_ALIGNMENT * launches)
        for number, value in enumerate(program.values):
            if isinstance(value.location, Counters):
                self.slots[number] = self._sizes
                self._sizes += aligned(value.location.nbytes)
        self._arena = self._sizes
        for number, value in enumerate(program.values):
            if isinstance(value.location, Sizes):
                self.slots[number] = self._arena
                self._arena += aligned(8 * max(1, len(program.symbols)))
        self._slotted = sorted(set(_slotted(program)) - program.grown)
        self._symbols = np.zeros(0, np.int64)  # its copy may be under way for as long as the memory has these sizes
        self._allocation: Allocation | None = None
        if not program.symbols:
            self._lay_out()

    @property
    def allocation(self) -> Allocation:
        assert self._allocation is not None, "memory of open size was not given sizes yet"
        return self._allocation

    def _lay_out(self) -> bool:
        """Lay values out for the present sizes, reallocating if they do not fit. Returns whether the allocation is a
        new one.
        """
        end = self._arena + aligned(self.of(self.program.arena_bytes))
        for number in self._slotted:
            self.slots[number] = end
            end += aligned(tensor_type(self.spec(number)).nbytes)
        before = self._allocation
        if before is not None and before.nbytes >= end:
            return False
        if before is not None:
            self._allocation = None
            before.close()
            end = max(end, before.nbytes * 3 // 2)
        self._allocation = Allocation(self.device, end, f"values of {self._file}")
        self.clear_counters()
        return True

    def clear_counters(self) -> None:
        """Zero the counters: in fresh memory, and when only some launches of a run could be queued."""
        if self._sizes > self._counters:
            self.queue.clear(self.allocation.address + self._counters, self._sizes - self._counters)

    def resize(self, bound: Bound) -> None:
        """Set other sizes after the last run. Graphs are kept, with other grids and pointers, unless the memory had to
        grow.
        """
        self.queue.wait()
        self.spec, self.of = bound.value, bound.of
        self._uploaded.clear()
        moved = self._lay_out()
        self._symbols = np.array(bound.values, np.int64)
        for number, value in enumerate(self.program.values):
            if isinstance(value.location, Sizes):
                self.queue.write(self.slot(number), self._symbols)
        for segment in self.segments:
            segment.resize(moved)

    def fixed(self, value: ValueSpec) -> DeviceArray:
        if not isinstance(value.location, Arena):
            raise ValueError(f"value {value.name!r} is not in the arena")
        return self._array(value, self.allocation.address + self._arena + known(value.location.offset_bytes))

    def bind(self, step: NativeStep | DeviceStep, fixed: Sequence[Any]) -> CudaSegment:
        if not isinstance(step, DeviceStep):
            raise ArtifactSchemaError("the program has steps for the CPU's kernels", file=self._file)
        segment = CudaSegment(self, step, self._bound_status)
        self._bound_status += KERNEL_ALIGNMENT * len(step.launches)
        self.segments.append(segment)
        if self._allocation is not None:
            segment.resize(moved=True)
        return segment

    def overlaps(self, array: np.ndarray) -> bool:
        return False

    def address(self, arg: Arg) -> int:
        """Return the address of an argument unless a run brings its own memory."""
        value = self.program.values[arg.value]
        match value.location:
            case Arena(offset_bytes):
                base = self.allocation.address + self._arena + self.of(offset_bytes)
            case Constant(tensor, offset_bytes):
                base = self._weights[tensor] + offset_bytes
            case Input() | Heap() | Counters() | Sizes():
                base = self.slot(arg.value)
            case Literal() | Status():
                raise ArtifactSchemaError(f"a kernel takes the value {value.name!r}, no tensor", file=self._file)
        return base + self.of(arg.offset_bytes)

    def slot(self, number: int) -> int:
        """Return the address of a value's slot; for a value without one, any valid address, which runs replace."""
        return self.allocation.address + self.slots.get(number, 0)

    def operand(self, values: list[Any], number: int) -> int:
        """Return the address of an input or heap value in this run. A host array is copied to its slot, and so is a GPU
        array that is not aligned for kernels.
        """
        value = values[number]
        if value is None:
            if number not in self.slots:
                raise ArtifactSchemaError(f"no memory for {self.spec(number).name!r}, a cache", file=self._file)
            values[number] = self._array(self.spec(number), self.slot(number))
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
        return WorkArray(self.device, address, memory_dtype(type_.dtype), type_.static_shape or (), self.queue)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
        self.segments.clear()
        if self._allocation is not None:
            self._allocation.close()


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
    """A device step as a graph. Pointers into the arena and to constants are set with the sizes, the others with each
    run's values.

    `status`: offset in the memory of the launches' status words, an int32 each, `KERNEL_ALIGNMENT` bytes apart.
    """

    def __init__(self, memory: CudaMemory, step: DeviceStep, status: int) -> None:
        self._memory = memory
        self._step = step
        self._status = status
        locations = memory.program.values
        self._has_status = any(
            isinstance(locations[arg.value].location, Status) for launch in step.launches for arg in launch.args
        )
        self._variable: dict[int, list[tuple[int, int, int]]] = {}  # value -> (launch, position, offset in bytes)
        self._bound: dict[int, int] = {}  # value -> the address in the graph
        self._parameters = [Parameters.of(launch) for launch in step.launches]
        self._graph: LaunchGraph | None = None
        self._stale: set[int] = set()  # launches whose grid or pointers in the graph are out of date

    @property
    def graph(self) -> LaunchGraph:
        assert self._graph is not None, "the segment was not given sizes yet"
        return self._graph

    @property
    def _status_address(self) -> int:
        return self._memory.allocation.address + self._status

    def resize(self, moved: bool) -> None:
        """Adopt the sizes of the memory. `moved`: the allocation is new, so the graph is built anew."""
        memory, step = self._memory, self._step
        self._variable.clear()
        self._bound.clear()
        before = [parameters.pointers.tobytes() for parameters in self._parameters]
        for number, launch in enumerate(step.launches):
            for position, arg in enumerate(launch.args):
                self._parameters[number].point(memory.device, position, self._address(number, position, arg))
        launches = [memory.modules.fitted(_sized(launch, memory.of)) for launch in step.launches]
        if self._graph is not None and not moved:
            for number, launch in enumerate(launches):
                pointers = self._parameters[number].pointers.tobytes()
                function = memory.modules.function(launch.symbol)
                if self.graph.relaunch(number, launch, function) or pointers != before[number]:
                    self._stale.add(number)  # until the run has set the addresses of its inputs and results
            return
        self.close()
        functions = [memory.modules.function(launch.symbol) for launch in launches]
        clear = (self._status_address, KERNEL_ALIGNMENT * len(step.launches) if self._has_status else 0)
        self._graph = LaunchGraph(
            memory.device, launches, step.dependences, functions, self._parameters, clear, memory.modules.partition
        )
        self._stale.clear()

    def close(self) -> None:
        if self._graph is not None:
            self._graph.close()
        self._graph = None

    def _address(self, number: int, position: int, arg: Arg) -> int:
        memory, offset_bytes = self._memory, self._memory.of(arg.offset_bytes)
        location = memory.program.values[arg.value].location
        if isinstance(location, Status):
            return self._status_address + KERNEL_ALIGNMENT * number + offset_bytes
        if isinstance(location, (Input, Heap)):
            self._variable.setdefault(arg.value, []).append((number, position, offset_bytes))
            self._bound[arg.value] = memory.slot(arg.value)
        return memory.address(arg)

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        memory = self._memory
        self._bind_values(values)
        if record is None:
            self.graph.launch(memory.queue.stream)
        else:
            for number, microseconds in enumerate(self._timed()):
                launch = self.graph.launched(number)
                if launch.has_blocks:
                    record(launch.symbol, launch.origins, microseconds, launch.branch)
        if self._has_status:
            self._check_status()

    def _timed(self) -> list[float]:
        """Queue the launches one by one and time them. If one cannot be queued, clear the counters that earlier ones
        have posted.
        """
        memory = self._memory
        try:
            return self.graph.launch_timed(memory.queue.stream)
        except CudaError:
            with suppress(CudaError):  # a GPU that has failed runs nothing again
                memory.device.call("cuStreamSynchronize", memory.queue.stream)
                memory.clear_counters()
            raise

    def _bind_values(self, values: list[Any]) -> None:
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
                self._stale.add(number)
        for number in sorted(self._stale):
            self.graph.update(number)
            self._stale.remove(number)

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


def _sized(launch: DeviceLaunch, of: Callable[[Size], int]) -> DeviceLaunch:
    one = launch.at(of)
    x, y, z = one.grid
    return replace(one, grid=(of(x), of(y), of(z)), cases=None)


def _slotted(program: Program) -> Iterator[int]:
    """Yield the inputs and heap values that kernels use."""
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
