"""The emulated device as a backend of sessions. Its memory is the host's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilestitch.runtime.artifact import Artifact, aligned_bytes, cuda_source_member
from tilestitch.runtime.device import HostOnly, Memory, RecordTime
from tilestitch.runtime.errors import ArtifactSchemaError, DeviceError, ExecutionError
from tilestitch.runtime.hostmemory import HostArena, empty_tensor
from tilestitch.runtime.program import (
    Arg,
    Constant,
    Counters,
    DeviceLaunch,
    DeviceStep,
    Edge,
    Input,
    NativeStep,
    Program,
    Sizes,
    Status,
    ValueSpec,
)
from tilestitch.runtime.sizes import known

from .errors import KernelFaultError
from .kernels import Argument, KernelLaunch, Kernels, Ran, TensorArgument
from .options import EmulatorOptions

if TYPE_CHECKING:
    from tilestitch.runtime.loaded import Loaded
    from tilestitch.runtime.sizing import Bound

_POISON = 0xFF
"""What memory that nothing was written to is full of: NaN in every float format, -1 in integers."""


def open_backend(
    artifact: Artifact, loaded: Loaded, ordinal: int, num_threads: int, options: EmulatorOptions | None = None
) -> EmulatorBackend:
    """Compile the kernels whose text the artifact holds.

    Raises `DeviceError` when it holds none, or there is no C++ compiler; `UnsupportedError` when a kernel uses what the
    emulator does not stand in for.
    """
    options = options or EmulatorOptions()
    symbols = sorted(loaded.symbols(DeviceStep))
    missing = [symbol for symbol in symbols if cuda_source_member(symbol) not in artifact.member_names]
    if missing:
        raise DeviceError(
            f"{artifact.name}: has no CUDA text of {missing[0]}, which device 'emulator' runs; compile again with "
            "--keep-source"
        )
    sources = {symbol: _text(artifact, cuda_source_member(symbol)) for symbol in symbols}
    return EmulatorBackend(artifact.name, Kernels(sources, options) if sources else None, options)


def _text(artifact: Artifact, member: str) -> str:
    try:
        return bytes(artifact.member(member)).decode()
    except UnicodeDecodeError as error:
        raise ArtifactSchemaError(f"the member is no text ({error})", file=artifact.name, member=member) from error


class EmulatorBackend(HostOnly):
    """Kernels compiled for the host; runs of different threads wait for one another."""

    max_workers = 1

    def __init__(self, file: str, kernels: Kernels | None, options: EmulatorOptions) -> None:
        self._file, self._kernels, self._options = file, kernels, options

    def worker(self) -> EmulatorWorker:
        return EmulatorWorker(self._file, self._kernels, self._options)

    def close(self) -> None:
        """The library goes with the process."""


class EmulatorWorker(HostOnly):
    """Makes memory, and poisons it before every run."""

    def __init__(self, file: str, kernels: Kernels | None, options: EmulatorOptions) -> None:
        self._file, self._kernels, self._options = file, kernels, options
        self._memories: list[EmulatorMemory] = []

    def memory(self, program: Program) -> Memory:
        memory = EmulatorMemory(program, self._file, self._kernels, self._options)
        self._memories.append(memory)
        return memory

    def release(self, memory: Memory) -> None:
        self._memories = [other for other in self._memories if other is not memory]

    def begin(self, stream: Any) -> None:
        super().begin(stream)
        for memory in self._memories if self._options.checked else ():
            memory.poison()

    def close(self) -> None:
        self._memories.clear()


class EmulatorMemory:
    """An arena on the host."""

    def __init__(self, program: Program, file: str, kernels: Kernels | None, options: EmulatorOptions) -> None:
        self._program, self._file, self._kernels, self._options = program, file, kernels, options
        self._arena = HostArena(program, file)
        self.poison()

    def poison(self) -> None:
        self._arena.raw[...] = _POISON

    def fixed(self, value: ValueSpec) -> np.ndarray:
        return self._arena.view(value)

    def bind(self, step: NativeStep | DeviceStep, fixed: Sequence[Any]) -> BoundLaunches:
        if not isinstance(step, DeviceStep) or self._kernels is None:
            raise DeviceError(f"{self._file}: holds kernels for the CPU; compile again with --target cuda:sm_XX")
        return BoundLaunches(self._program, step, self._kernels, self._options)

    def overlaps(self, array: np.ndarray) -> bool:
        return self._arena.overlaps(array)

    def resize(self, bound: Bound) -> None:
        raise ValueError("the sizes of an emulated device's memory do not change")


class BoundLaunches:
    """The launches of a step, one after the other or, with `side_by_side`, at the same time where their edges allow.
    One after the other, and with a random or adversarial order of blocks, those that no edge orders are run in a random
    order too.
    """

    def __init__(self, program: Program, step: DeviceStep, kernels: Kernels, options: EmulatorOptions) -> None:
        self._values = program.values
        self._kernels, self._options = kernels, options
        self._counters = {
            number: np.zeros(value.location.nbytes // 4, np.uint32)
            for number, value in enumerate(program.values)
            if isinstance(value.location, Counters)
        }
        count = len(step.launches)
        if options.side_by_side:
            self._turns: list[tuple[DeviceLaunch, ...]] = [tuple(step.launches)] if count else []
            self._edges = [(edge.before, edge.after) for edge in step.dependences]
        else:
            order = _sequence(count, step.dependences, options)
            self._turns, self._edges = [(step.launches[number],) for number in order], []

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        """Raises `ExecutionError` when a kernel reports a fault, `KernelFaultError` when it commits one."""
        for launches in self._turns:
            for launch, ran in zip(launches, self._run(launches, values)):
                if record is not None:
                    record(launch.symbol, launch.origins, ran.us, launch.branch)

    def _run(self, launches: Sequence[DeviceLaunch], values: list[Any]) -> list[Ran]:
        """Launches at the same time."""
        words = [np.zeros(1, np.int32) for _ in launches]
        requests = [self._request(launch, values, word) for launch, word in zip(launches, words)]
        try:
            found = self._kernels.run(requests, self._edges)
        except ValueError as error:
            raise DeviceError(f"{error}: its text is not what was compiled; compile the model again") from error
        except KernelFaultError as error:
            for counters in self._counters.values():
                counters[...] = 0  # as after loading anew, which is what a fault on a GPU takes
            raise _at_node(error, launches[error.launch].origins) from error
        for launch, word in zip(launches, words):
            _check_status(launch, int(word[0]))
        return found

    def _request(self, launch: DeviceLaunch, values: list[Any], status: np.ndarray) -> KernelLaunch:
        arguments = [self._argument(values, arg, status) for arg in launch.args]
        return KernelLaunch(
            launch.symbol, self._fitted(launch), launch.block, arguments, launch.shared_bytes, launch.cooperative,
            launch.cluster, launch.priority,
        )  # fmt: skip

    def _fitted(self, launch: DeviceLaunch) -> tuple[int, int, int]:
        """The grid of a launch; of a cooperative one with no more blocks than are resident together."""
        most = self._options.cooperative_blocks
        if not launch.cooperative or most is None or prod(launch.blocks) <= most:
            return launch.blocks
        if launch.elastic:
            return (most, 1, 1)
        raise DeviceError(
            f"kernel {launch.symbol!r} needs {prod(launch.blocks)} blocks at a time, the emulated device holds {most} "
            "of them; raise EmulatorOptions.cooperative_blocks, or compile for a GPU with fewer multiprocessors"
        )

    def _argument(self, values: list[Any], arg: Arg, status: np.ndarray) -> Argument | TensorArgument:
        memory = self._memory(values, arg.value, known(arg.offset_bytes), status)
        return memory if arg.tensor_map is None else TensorArgument(arg.tensor_map, memory)

    def _memory(self, values: list[Any], number: int, offset_bytes: int, status: np.ndarray) -> Argument:
        value = self._values[number]
        if isinstance(value.location, Status):
            return Argument(status.ctypes.data, status.nbytes, status.itemsize, unordered=True)
        array = self._counters.get(number, values[number])
        if array is None:
            values[number] = array = empty_tensor(value)
            array.reshape(-1).view(np.uint8)[...] = _POISON
        elif not array.flags.c_contiguous or not array.flags.aligned:
            values[number] = array = np.array(array, order="C")
        if isinstance(value.location, Input) and array.__array_interface__["data"][0] % 16:
            raw = aligned_bytes(array.nbytes, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            values[number] = array = raw.view(array.dtype).reshape(array.shape)  # GPU memory is always aligned
        item_bytes, nbytes = array.dtype.itemsize, array.nbytes
        read_only = isinstance(value.location, (Constant, Input, Sizes))
        address = int(array.__array_interface__["data"][0])
        return Argument(address + offset_bytes, nbytes - offset_bytes, item_bytes, read_only, name=value.name)


def _at_node(error: KernelFaultError, origins: Sequence[str]) -> KernelFaultError:
    nodes = f"ONNX node {', '.join(origins)}: " if origins else ""
    return KernelFaultError(error.kernel, nodes + error.problem, error.line, error.source, error.launch)


def _check_status(launch: DeviceLaunch, status: int) -> None:
    if not status:
        return
    message = launch.faults[status - 1] if 0 < status <= len(launch.faults) else f"fault {status - 1}"
    where = ", ".join(launch.origins) or launch.symbol
    raise ExecutionError(f"ONNX node {where}: {message}; check the values of the model's inputs")


def _sequence(count: int, edges: Sequence[Edge], options: EmulatorOptions) -> list[int]:
    """Launch numbers in an order that the edges allow."""
    if options.block_order in ("in_order", "reversed"):
        return list(range(count))
    waiting = [{edge.before for edge in edges if edge.after == number} for number in range(count)]
    chooser = random.Random(options.seed)
    order: list[int] = []
    while len(order) < count:
        ready = [number for number in range(count) if number not in order and waiting[number] <= set(order)]
        order.append(chooser.choice(ready))
    return order
