"""The emulated device as a backend of sessions. Its memory is the host's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilestitch.runtime.artifact import Artifact
from tilestitch.runtime.buffers import aligned_bytes
from tilestitch.runtime.cache_memory import HostCacheMemory
from tilestitch.runtime.device import HostOnly, Memory
from tilestitch.runtime.errors import ArtifactSchemaError, DeviceError, ExecutionError
from tilestitch.runtime.hostmemory import HostArena, empty_tensor
from tilestitch.runtime.launches import RecordTime
from tilestitch.runtime.members import cuda_source_member
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
"""Byte that fills unwritten memory: NaN in every float format, -1 in integers."""


def open_backend(
    artifact: Artifact, loaded: Loaded, ordinal: int, num_threads: int, options: EmulatorOptions | None = None
) -> EmulatorBackend:
    """Compile the kernels whose CUDA text the artifact holds and return a backend.

    Raises `DeviceError` when it holds none, or there is no C++ compiler; `UnsupportedError` when a kernel uses what the
    emulator does not support.
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
    """Backend with kernels compiled for the host; runs of different threads take turns."""

    max_workers = 1
    cache_memory = HostCacheMemory()

    def __init__(self, file: str, kernels: Kernels | None, options: EmulatorOptions) -> None:
        self._file, self._kernels, self._options = file, kernels, options

    def worker(self) -> EmulatorWorker:
        return EmulatorWorker(self._file, self._kernels, self._options)

    def close(self) -> None:
        """Do nothing: the library stays loaded until the process ends."""


class EmulatorWorker(HostOnly):
    """Worker that allocates memory and poisons it before every run."""

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

    on_host = True

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


class _Round(NamedTuple):
    """Concurrent launches, and the edges between them by their numbers here."""

    launches: tuple[DeviceLaunch, ...]
    edges: tuple[tuple[int, int, str], ...]

    @staticmethod
    def of(step: DeviceStep, numbers: Sequence[int]) -> _Round:
        place = {number: at for at, number in enumerate(numbers)}
        inside = (edge for edge in step.dependences if edge.before in place and edge.after in place)
        edges = tuple((place[edge.before], place[edge.after], edge.kind) for edge in inside)
        return _Round(tuple(step.launches[number] for number in numbers), edges)


class BoundLaunches:
    """The launches of a step, one after the other or, with `side_by_side`, concurrently where their edges allow. One
    after the other, launches that no edge orders run in a random order if that of blocks is random or adversarial.
    Launches tied by programmatic or launch-order edges always run concurrently.
    """

    def __init__(self, program: Program, step: DeviceStep, kernels: Kernels, options: EmulatorOptions) -> None:
        self._values = program.values
        self._kernels, self._options = kernels, options
        self._counters = {
            number: np.zeros(value.location.nbytes // 4, np.uint32)
            for number, value in enumerate(program.values)
            if isinstance(value.location, Counters)
        }
        self._idle = [arg for launch in step.launches if not launch.has_blocks for arg in launch.args]
        step = _with_blocks(step)
        count = len(step.launches)
        rounds = [tuple(range(count))] if count else []
        if not options.side_by_side:
            rounds = _sequence(count, step.dependences, options)
        self._rounds = [_Round.of(step, numbers) for numbers in rounds]

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        """Run all launches. Raises `ExecutionError` when a kernel reports a fault, `KernelFaultError` when it commits
        one.
        """
        for arg in self._idle:  # values of which no argument is launched are allocated all the same
            self._argument(values, arg, np.zeros(1, np.int32))
        for each in self._rounds:
            for launch, ran in zip(each.launches, self._run(each, values)):
                if record is not None:
                    record(launch.symbol, launch.origins, ran.us, launch.branch)

    def _run(self, each: _Round, values: list[Any]) -> list[Ran]:
        """Run launches concurrently and return their times."""
        launches = each.launches
        words = [np.zeros(1, np.int32) for _ in launches]
        requests = [self._request(launch, values, word) for launch, word in zip(launches, words)]
        try:
            found = self._kernels.run(requests, each.edges)
        except ValueError as error:
            raise DeviceError(f"{error}: its text is not what was compiled; compile the model again") from error
        except KernelFaultError as error:
            for counters in self._counters.values():
                counters[...] = 0  # as after reloading, which a fault on a GPU requires
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
        """Return the grid of a launch; a cooperative one gets no more blocks than are resident together."""
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


def _sequence(count: int, edges: Sequence[Edge], options: EmulatorOptions) -> list[tuple[int, ...]]:
    """Return launch numbers in an order that the edges allow; those that are concurrent are one entry."""
    unit = _together(count, edges)
    members = {first: tuple(n for n in range(count) if unit[n] == first) for first in dict.fromkeys(unit)}
    waiting = {first: {unit[edge.before] for edge in edges if unit[edge.after] == first} - {first} for first in members}
    in_order = options.block_order in ("in_order", "reversed")
    chooser = random.Random(options.seed)
    order: list[int] = []
    done: set[int] = set()
    while len(order) < len(members):
        ready = [first for first in members if first not in done and waiting[first] <= done]
        order.append(ready[0] if in_order else chooser.choice(ready))
        done.add(order[-1])
    return [members[first] for first in order]


def _with_blocks(step: DeviceStep) -> DeviceStep:
    """Return the step without launches that have no blocks; edges through these are bridged."""
    kept = [number for number, launch in enumerate(step.launches) if launch.has_blocks]
    if len(kept) == len(step.launches):
        return step
    place = {number: at for at, number in enumerate(kept)}
    edges: dict[tuple[int, int], Edge] = {(edge.before, edge.after): edge for edge in step.dependences}
    for number, launch in enumerate(step.launches):
        if launch.has_blocks:
            continue
        before = [edge.before for edge in edges.values() if edge.after == number]
        after = [edge.after for edge in edges.values() if edge.before == number]
        edges.update({(a, b): Edge(a, b) for a in before for b in after})
    inside = (edge for edge in edges.values() if edge.before in place and edge.after in place)
    bridged = tuple(replace(edge, before=place[edge.before], after=place[edge.after]) for edge in inside)
    return replace(step, launches=tuple(step.launches[number] for number in kept), edges=bridged)


def _together(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return for each launch the first of those that it is concurrent with: edges other than full ones connect them,
    and whatever lies between two of them joins them.
    """
    unit = list(range(count))
    before = [{edge.before for edge in edges if edge.after == number} for number in range(count)]
    above: list[set[int]] = []
    for number in range(count):
        above.append(before[number].union(*(above[other] for other in before[number])))

    def join(one: int, other: int) -> None:
        low, high = sorted((unit[one], unit[other]))
        unit[:] = [low if each == high else each for each in unit]

    for edge in edges:
        if edge.kind != "full":
            join(edge.before, edge.after)
    changed = len(set(unit)) < count
    while changed:
        changed = False
        for last in range(count):
            for between in above[last]:
                reaches = any(unit[first] == unit[last] for first in above[between])
                if reaches and unit[between] != unit[last]:
                    join(between, last)
                    changed = True
    return unit
