"""The interface between sessions and devices, and the lookup of devices by name.

`Execution` walks a program's steps; what touches a device's memory or launches kernels goes through these protocols. A
backend module (`runtime.cpu.backend`, `runtime.cuda.backend`, `runtime.emulator.backend`) provides
`open_backend(artifact, loaded, ordinal, num_threads) -> Backend`, and is imported only when its device is asked for.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .errors import DeviceError, DeviceNameError, InputError
from .launches import RecordTime
from .program import DeviceStep, NativeStep, Program, ValueSpec

if TYPE_CHECKING:
    from .artifact import Artifact
    from .cuda.partition import Partition
    from .emulator import EmulatorOptions
    from .groups import Group, Joined, Present
    from .iterations import Grown, Repetition
    from .loaded import Loaded
    from .sizing import Bound


class OnDevice:
    """A C-contiguous array in memory that the host cannot address; `dtype` is numpy's, `address` the device's.

    Not an abstract base class: runs call isinstance on every array, which is five times slower with one.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    address: int

    @cached_property
    def nbytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numpy(self) -> np.ndarray:
        """Return a copy in host memory, made after all work queued before."""
        raise NotImplementedError


class CacheMemory(Protocol):
    """Growth of caches in a device's memory. A buffer has room for rows along one axis; users hold the first of these.

    Arrays here are the user's or the device's: they have `dtype`, `shape` and `ndim`.
    """

    def given(self, name: str, value: Any, dtype: str, stream: Any) -> Any:
        """Return the user's array for a cache of a data type, for a run in `stream`. Raises `InputError`."""

    def room(self, array: Any, axis: int) -> Any | None:
        """Return the buffer whose first rows are the array, if it may be written to."""

    def place(self, array: Any) -> tuple[int, int]:
        """Return the address and bytes of a C-contiguous array in the memory of buffers; both 0 for another one."""

    def grown(self, array: Any, axis: int, capacity: int, worker: Worker) -> Any:
        """Return a new buffer with the rows of an array and room for `capacity` rows."""

    def copied(self, array: Any, worker: Worker) -> Any:
        """Return a copy of an array."""

    def result(self, buffer: Any, axis: int, length: int, worker: Worker, *, stays: bool, on_device: bool) -> Any:
        """Return the first rows of a buffer for the user. `stays`: the next run will grow them in place; `on_device`:
        other results are in the device's memory.
        """


class Segment(Protocol):
    """A native or device step bound to memory."""

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        """Execute on the program's current values, by number, allocating heap values that do not exist yet.

        Values are arrays of numpy or of the device. Raises `ExecutionError` when a kernel reports a fault.
        """


class Memory(Protocol):
    """A program's memory on a device for one run at a time: its arena, and the steps bound to it.

    For a program with symbols (with a worker that `resizes`), `resize` is called before anything else. `on_host`: all
    values are arrays of numpy.
    """

    on_host: bool

    def fixed(self, value: ValueSpec) -> Any:
        """Return the array, of numpy or of the device, of a value in the arena."""

    def bind(self, step: NativeStep | DeviceStep, fixed: Sequence[Any]) -> Segment:
        """Return a step bound to this memory. `fixed` has the arrays of constants and of arena values by number, None
        for other values.
        """

    def overlaps(self, array: np.ndarray) -> bool:
        """Return whether a host array lies in memory that the next run overwrites."""

    def resize(self, bound: Bound) -> None:
        """Set the sizes to those of `bound`, in the steps bound to the memory, too."""


class Worker(Protocol):
    """What a run needs besides memory: threads, or a stream. All methods but `close` are called within a run.

    `resizes`: its memory supports programs with symbols, and can change their values. `most_kept`: number of values of
    its symbols for which a program keeps memory and bound steps ready.
    """

    resizes: bool
    most_kept: int

    def begin(self, stream: Any) -> None:
        """Begin a run. `stream` is the user's, or None; raises `InputError` if the device has no streams."""

    def end(self) -> None:
        """End a run, also one that failed."""

    def memory(self, program: Program) -> Memory:
        """Return memory for a program. Raises `DeviceError` when there is not enough."""

    def release(self, memory: Memory) -> None:
        """Release memory that is not used any more."""

    def join(self, group: Group, present: Present) -> Joined | None:
        """Return steps as one table of launches; None where that cannot be."""

    def grown(self, program: Program, repetition: Repetition) -> Grown | None:
        """Return iterations of a body whose states change their shapes; None where that cannot be."""

    def empty(self, dtype: np.dtype, shape: tuple[int, ...]) -> OnDevice:
        """Return a new array in the device's memory. Raises `InputError` where there is no such memory."""

    def write(self, target: OnDevice, source: np.ndarray | OnDevice) -> None:
        """Copy into an array of the same type in the device's memory."""

    def read(self, source: OnDevice, target: np.ndarray) -> None:
        """Copy into an array of the same type in the host's memory."""

    def close(self) -> None: ...


class Backend(Protocol):
    """An artifact's kernels, loaded on a device. `max_workers` runs can be under way at once.

    `writes_host_memory`: kernels can write to numpy arrays.
    """

    max_workers: int
    writes_host_memory: bool
    cache_memory: CacheMemory

    @property
    def multiprocessors(self) -> int | None:
        """How many of a GPU's multiprocessors the kernels have; None on other devices."""

    def worker(self) -> Worker: ...

    def adopt(self, value: Any, stream: Any) -> OnDevice | None:
        """Return the device's view of any library's array that lies in its memory, for work in the user's `stream`;
        None for other values.
        """

    def close(self) -> None:
        """Release all that the backend holds. All workers must be closed."""


class HostOnly:
    """The parts of `Backend` and `Worker` that concern a device's own memory, for devices that have none."""

    writes_host_memory = True
    resizes = False
    multiprocessors: int | None = None
    most_kept = 8

    def adopt(self, value: Any, stream: Any) -> OnDevice | None:
        return None

    def begin(self, stream: Any) -> None:
        if stream is not None:
            raise InputError("stream is for GPUs; leave it out")

    def end(self) -> None:
        """Do nothing: runs are synchronous."""

    def release(self, memory: Memory) -> None:
        """Do nothing: memory is freed with its last reference."""

    def join(self, group: Group, present: Present) -> Joined | None:
        return None

    def grown(self, program: Program, repetition: Repetition) -> Grown | None:
        return None

    def empty(self, dtype: np.dtype, shape: tuple[int, ...]) -> OnDevice:
        raise InputError("on_device is for GPUs; results of this device are numpy arrays already")

    def write(self, target: OnDevice, source: np.ndarray | OnDevice) -> None:
        raise InputError("arrays in a GPU's memory cannot be outputs here; give numpy arrays")

    def read(self, source: OnDevice, target: np.ndarray) -> None:
        np.copyto(target, source.numpy())


@dataclass(frozen=True)
class DeviceName:
    """A device as users name it: `cpu`, `cuda`, `cuda:1`, `emulator`, or options of the emulator."""

    kind: str
    ordinal: int = 0
    options: tuple[Any, ...] = ()

    @staticmethod
    def parse(text: str | EmulatorOptions) -> DeviceName:
        """Parse a device's name or options. Raises `DeviceNameError` for anything else."""
        if not isinstance(text, str):
            return _with_options(text)
        match = re.fullmatch(r"(cpu|emulator)|(cuda)(?::(\d{1,4}))?", text)
        if match is None:
            raise DeviceNameError(f"device {text!r} is unknown; give cpu, cuda, cuda:N (GPU number N) or emulator")
        return DeviceName(match[1] or match[2], int(match[3] or 0))

    def on(self, multiprocessors: int | Partition) -> DeviceName:
        """Return the device, of which so many multiprocessors are used. Raises `DeviceError` unless it is a GPU."""
        if self.kind != "cuda":
            raise DeviceError(f"multiprocessors are of GPUs, not of the device {self.kind!r}; give device='cuda:N'")
        return replace(self, options=(multiprocessors,))


def _with_options(value: object) -> DeviceName:
    from .emulator import EmulatorOptions

    if not isinstance(value, EmulatorOptions):
        raise DeviceNameError(
            f"device {value!r} is no name of a device; give cpu, cuda, cuda:N (GPU number N) or emulator"
        )
    return DeviceName("emulator", options=(value,))


_MODULES = {"cpu": "cpu.backend", "cuda": "cuda.backend", "emulator": "emulator.backend"}
_TARGETS = {"cpu": "cpu", "cuda": "cuda", "emulator": "cuda"}
"""Kind of target that artifacts for each device are compiled for."""

_RECOMPILE = {"cpu": "--target cpu", "cuda": "--target cuda:sm_XX", "emulator": "--target cuda:sm_XX --keep-source"}


def check_target(artifact: Artifact, device: DeviceName) -> None:
    """Raise `DeviceError` when the artifact was compiled for another kind of device."""
    kind = artifact.manifest.target.kind
    if kind == _TARGETS[device.kind]:
        return
    fitting = [name for name, target in _TARGETS.items() if target == kind]
    hint = f"load with device={' or '.join(map(repr, fitting))}, or " if fitting else ""
    raise DeviceError(
        f"{artifact.name}: compiled for {kind}, not for the device {device.kind!r}; {hint}compile again: "
        f"tilestitch compile MODEL.onnx {_RECOMPILE[device.kind]}"
    )


def open_backend(artifact: Artifact, loaded: Loaded, device: DeviceName, num_threads: int) -> Backend:
    """Load the artifact's kernels on a device. Raises `DeviceError` when there is no such device or it does not fit."""
    module = importlib.import_module(f".{_MODULES[device.kind]}", __package__)
    opened: Backend = module.open_backend(artifact, loaded, device.ordinal, num_threads, *device.options)
    return opened


def to_host(value: Any) -> Any:
    """Return the value, copied to numpy if it is on a device."""
    if type(value) is np.ndarray:
        return value
    return value.numpy() if isinstance(value, OnDevice) else value
