"""A CUDA GPU as a device: kernels and weights are loaded once, runs take turns, and each device step is one graph
launch.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilestitch.runtime.artifact import Artifact
from tilestitch.runtime.device import Memory, OnDevice
from tilestitch.runtime.errors import PartitionWarning
from tilestitch.runtime.groups import Group, Joined, Present
from tilestitch.runtime.iterations import Grown, Repetition
from tilestitch.runtime.loaded import Loaded
from tilestitch.runtime.program import Constant, DeviceLaunch, DeviceStep, Program

from . import array as arrays
from .array import DeviceArray
from .driver import Allocation, Device, host_address, load_driver
from .memory import CudaMemory, aligned
from .modules import Modules
from .partition import Lease, Partition
from .queue import LEGACY_STREAM, Queue, StreamMemory
from .rows import CudaCacheMemory, Pitched, copy_pitched

MOST_KEPT = 8
"""Graphs kept for a program with symbols, each for other values of these, to be relaunched when a shape recurs."""

_devices: weakref.WeakValueDictionary[int, Device] = weakref.WeakValueDictionary()
_devices_lock = threading.Lock()


def open_device(ordinal: int) -> Device:
    """Return GPU number `ordinal`; concurrent users share the object. Raises `DeviceError` when there is none."""
    with _devices_lock:
        device = _devices.get(ordinal)
        if device is None:
            device = _devices[ordinal] = Device(load_driver(), ordinal)
        return device


def open_backend(
    artifact: Artifact,
    loaded: Loaded,
    ordinal: int,
    num_threads: int,
    multiprocessors: int | Partition | None = None,
) -> CudaBackend:
    """Return the CUDA backend of an artifact, whose kernels run on so many multiprocessors or on a partition. Raises
    `DeviceError` when there is no such GPU, no machine code fits it, or it has too little memory or multiprocessors.
    """
    device = open_device(ordinal)
    steps = [step for program in loaded.programs for step in program.steps if isinstance(step, DeviceStep)]
    kernels = [one for step in steps for launch in step.launches for one in launch.kernels]
    lease = Lease.of(device, multiprocessors)
    try:
        _compare(artifact, lease.partition)
        modules = Modules(artifact, device, kernels, lease.partition)
        try:
            return CudaBackend(artifact.name, device, modules, loaded, lease)
        except BaseException:
            modules.close()
            raise
    except BaseException:
        lease.end()
        raise


def _compare(artifact: Artifact, partition: Partition | None) -> None:
    """Warn where the kernels were planned for another number of multiprocessors: they are right, but slower."""
    planned = artifact.manifest.target.multiprocessors
    if partition is None or planned in (partition.asked, partition.multiprocessors):
        return
    given = partition.multiprocessors
    warnings.warn(
        f"{artifact.name}: planned for {'all' if planned is None else planned} multiprocessors of the GPU, runs on "
        f"{given} of them; it is faster when compiled for these: tilestitch compile MODEL.onnx --target "
        f"cuda:NAME/{given}",
        PartitionWarning,
        stacklevel=6,
    )


class CudaBackend:
    """Kernels and weights on one GPU. Runs take turns: they share one arena."""

    max_workers = 1
    writes_host_memory = False

    def __init__(self, file: str, device: Device, modules: Modules, loaded: Loaded, lease: Lease) -> None:
        self._file, self._device, self._modules = file, device, modules
        weights, self._addresses = _upload_weights(file, device, loaded)
        self._workers: list[WorkerParts] = []
        self._close = weakref.finalize(self, _close_backend, modules, weights, self._workers, lease)

    @property
    def multiprocessors(self) -> int | None:
        return self._modules.multiprocessors

    @property
    def cache_memory(self) -> CudaCacheMemory:
        return CudaCacheMemory(self.adopt)

    def worker(self) -> CudaWorker:
        parts = WorkerParts(Queue(self._device), [])
        self._workers.append(parts)
        return CudaWorker(self._file, self._device, self._modules, self._addresses, parts)

    def adopt(self, value: Any, stream: Any) -> OnDevice | None:
        if isinstance(value, np.ndarray):
            return None
        if stream is None:  # the run waits for its work
            return arrays.adopt(self._device, value, LEGACY_STREAM)
        handle = stream if type(stream) is int and stream else arrays.stream_handle(stream)
        adopted = arrays.adopt(self._device, value, handle)
        if adopted is not None:
            adopted.use_in(handle)
        return adopted

    def close(self) -> None:
        self._close()


class WorkerParts(NamedTuple):
    """What a worker holds on the GPU. The backend knows it too: graphs must be destroyed before the kernels that they
    launch, in whatever order a dropped module is taken apart.
    """

    queue: Queue
    memories: list[CudaMemory]

    def close(self) -> None:
        """Wait for the last run, and release everything."""
        self.queue.wait()
        with self.queue.device.current():
            while self.memories:
                self.memories.pop().close()
        self.queue.close()


def _close_backend(modules: Modules, weights: Allocation | None, workers: list[WorkerParts], lease: Lease) -> None:
    for parts in workers:
        parts.close()
    modules.close()
    if weights is not None:
        weights.close()
    lease.end()


class CudaWorker:
    """A stream, and the memory of the programs that run in it."""

    resizes = True
    most_kept = MOST_KEPT

    def __init__(
        self, file: str, device: Device, modules: Modules, weights: Mapping[str, int], parts: WorkerParts
    ) -> None:
        self._file, self._device, self._modules, self._weights = file, device, modules, weights
        self._queue, self._memories = parts

    def begin(self, stream: Any) -> None:
        self._queue.begin(None if stream is None else arrays.stream_handle(stream), stream)

    def end(self) -> None:
        self._queue.end()

    def memory(self, program: Program) -> CudaMemory:
        memory = CudaMemory(program, self._file, self._queue, self._modules, self._weights)
        self._memories.append(memory)
        return memory

    def join(self, group: Group, present: Present) -> Joined | None:
        return None

    def grown(self, program: Program, repetition: Repetition) -> Grown | None:
        return None

    def release(self, memory: Memory) -> None:
        """Release a program's memory after the last run, which may use it."""
        self._queue.wait()
        for kept in [one for one in self._memories if one is memory]:
            self._memories.remove(kept)
            with self._device.current():
                kept.close()

    def empty(self, dtype: np.dtype, shape: tuple[int, ...]) -> DeviceArray:
        queue, nbytes = self._queue, dtype.itemsize * prod(shape)
        if not self._device.has_pools:
            kept = Allocation(self._device, nbytes, "an output")
            return DeviceArray(
                self._device, kept.address, dtype, shape, kept, queue.stream if queue.is_asynchronous else None
            )
        if not queue.is_asynchronous:
            memory = StreamMemory(self._device, nbytes, "an output", queue.stream, LEGACY_STREAM, None)
            return DeviceArray(self._device, memory.address, dtype, shape, memory)
        memory = StreamMemory(self._device, nbytes, "an output", queue.stream, queue.stream, queue.owner)
        return DeviceArray(self._device, memory.address, dtype, shape, memory, queue.stream)

    def queued(self, array: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
        """Return the first elements of an array as the run under way leaves them."""
        return array.written(shape, self._queue.stream if self._queue.is_asynchronous else None)

    def copy_pitched(self, target: Pitched, source: Pitched, rows: int) -> None:
        copy_pitched(self._device, target, source, rows, self._queue.stream)

    def write(self, target: OnDevice, source: np.ndarray | OnDevice) -> None:
        self._queue.write(target.address, source)

    def read(self, source: OnDevice, target: np.ndarray) -> None:
        self._queue.read(source.address, target)

    def close(self) -> None:
        """Do nothing: the backend, which is closed next, releases everything."""


def _upload_weights(file: str, device: Device, loaded: Loaded) -> tuple[Allocation | None, dict[str, int]]:
    """Allocate one block for all weights that kernels take, upload them, and return it with their addresses."""
    names: dict[str, None] = {}
    for program in loaded.programs:
        for step in program.steps:
            for launch in step.launches if isinstance(step, DeviceStep) else ():
                names.update(dict.fromkeys(_tensors(program, launch)))
    if not names:
        return None, {}
    sizes = {name: loaded.weights[name].nbytes for name in names}
    memory = Allocation(device, sum(map(aligned, sizes.values())), f"weights of {file}")
    addresses: dict[str, int] = {}
    address = memory.address
    with device.current():
        for name, nbytes in sizes.items():
            addresses[name] = address
            if nbytes:
                device.call("cuMemcpyHtoD", address, host_address(loaded.weights[name]), nbytes)
            address += aligned(nbytes)
        device.call(
            "cuCtxSynchronize"
        )  # copies from pageable memory may end after the call, and streams need not wait for them
    return memory, addresses


def _tensors(program: Program, launch: DeviceLaunch) -> list[str]:
    locations = [program.values[arg.value].location for arg in launch.args]
    return [location.tensor for location in locations if isinstance(location, Constant)]
