"""A GPU that kernels are tuned on. Only forked processes use it: tuners, and those that measure whole models.

Tuners compile side by side, which takes most of the time, and take turns in measuring: kernels of several processes run
one after the other, in slices of time, and would disturb each other's times. Where the model was planned for a part of
the GPU, a tuner measures on a partition of that size. With NVIDIA's multi-process service, kernels of several processes
run at a time, and as many tuners as there are partitions measure side by side, as those of Dhakal et al. do ("Spatial
Sharing of GPU for Autotuning DNN models", arXiv 2008.03602).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, TypeVar, cast

import numpy as np

from tilestitch.compiler.cli.errors import UsageError
from tilestitch.compiler.errors import TuningError
from tilestitch.passes.plan import StitchPlan
from tilestitch.runtime import load
from tilestitch.runtime.cuda.array import DeviceArray
from tilestitch.runtime.cuda.backend import open_device
from tilestitch.runtime.cuda.driver import Allocation, CudaError, Device, host_address
from tilestitch.runtime.cuda.partition import Partition, divisible
from tilestitch.runtime.cuda.queue import LEGACY_STREAM
from tilestitch.runtime.device import DeviceName
from tilestitch.runtime.errors import DeviceError, ExecutionError, InputError
from tilestitch.runtime.session import LaunchTime, Module

from .bench import Compiler
from .machine import Builds, Share, Turn
from .shares import CONTEXT

Result = TypeVar("Result")
_EXPECTED = (DeviceError, ExecutionError, InputError, UsageError, TuningError)
"""Errors that are raised as such; all others are faults of ours."""


@dataclass(frozen=True)
class _Raised:
    kind: type[Exception]
    message: str


def apart(call: Callable[[], Result]) -> Result:
    """Return the result of a function that is called in a forked process.

    Raises the errors that users are to see as they are, with their messages, and TuningError for all others, and for a
    process that ends by itself.
    """
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_answer, args=(call, theirs, ours))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
        process.join()
    except EOFError:
        process.join()
        raise TuningError(
            f"the process that used the GPU ended with code {process.exitcode}; report this as a bug"
        ) from None
    finally:
        process.kill()  # if an interrupt ended the waiting
        process.join()
        ours.close()
    if isinstance(found, _Raised):
        raise found.kind(found.message)
    return cast(Result, found)


def _answer(call: Callable[[], object], pipe: Connection, of_parent: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    of_parent.close()
    try:
        found = call()
    except Exception as error:  # noqa: BLE001 - raised by the parent
        kind = next((each for each in _EXPECTED if isinstance(error, each)), TuningError)
        unexpected = f"{type(error).__name__}: {error}; report this as a bug"
        found = _Raised(kind, str(error) if isinstance(error, kind) else unexpected)
    with suppress(BrokenPipeError):  # the parent was killed
        pipe.send(found)


MOST_TUNERS = 8
"""Most tuners by default; each has a context of its own, with hundreds of MB of the GPU's memory."""
MOST_PROCESSES = 48
"""Most tuners of a GPU: as many processes as NVIDIA's multi-process service takes."""
EXCLUSIVE = 3  # CU_COMPUTEMODE_EXCLUSIVE_PROCESS
FILLED_BYTES = 256 << 20
"""Bytes that are written before a measurement: more than the caches of any GPU hold."""
QUEUED_RUNS = 5
"""Runs that are queued one after the other to time one of them."""
HOST_US, HOST_US_A_LAUNCH = 200.0, 60.0
"""Time that the GPU has other work while the host queues a run and its launches: without it, short kernels would be
timed by how fast they are queued.
"""


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine. parts: partitions on which tuners measure side by side; most: tuners that it takes at a
    time; folder: of the files of turns.
    """

    builds: Builds
    loads: Loads
    parts: int
    most: int
    folder: TemporaryDirectory[str]

    recorded = None

    @staticmethod
    def of(builds: Builds, device: str, multiprocessors: int | None) -> Gpu:
        """Return a GPU of which kernels use so many multiprocessors (None: all). Raises `DeviceError` if there is
        none.
        """
        loads = Loads(device, multiprocessors)
        return Gpu(builds, loads, *apart(loads.room), TemporaryDirectory(prefix="tilestitch-tune-"))

    def compiler(self, plan: StitchPlan, trying: bool) -> Compiler:
        threads = 1 if trying else len(os.sched_getaffinity(0))
        cache = not trying and self.builds.cache
        return self.builds.compiler(plan, threads, cache, self.loads, lambda: None, OnGpu.run_us)

    def apart(self, call: Callable[[], Result]) -> Result:
        return apart(call)

    def shares(self, wanted: int | None) -> Sequence[Share]:
        cores = sorted(os.sched_getaffinity(0))
        turns = [Turn(Path(self.folder.name, str(part))) for part in range(self.parts)]
        for turn in turns:
            assert turn.path is not None
            turn.path.touch()
        return [
            PartOfGpu([core], turns[number % self.parts], loads=self.loads, part=number % self.parts)
            for number, core in enumerate(cores[: min(wanted or MOST_TUNERS, self.most)])
        ]


@dataclass(frozen=True)
class PartOfGpu(Share):
    """The share of a tuner. part: the number of the partition on which it measures."""

    loads: Loads = field(kw_only=True)
    part: int = field(kw_only=True)

    def enter(self) -> None:
        super().enter()
        self.loads.part = self.part


class Loads:
    """Loads artifacts on a GPU, in a process that was forked for it. multiprocessors: of each partition; None: the
    whole GPU is used. part: the partition of this process.
    """

    def __init__(self, device: str, multiprocessors: int | None) -> None:
        name = DeviceName.parse(device)
        if name.kind != "cuda":
            raise DeviceError(f"kernels of GPUs are not measured on the device {device!r}; give cuda:N")
        self._ordinal, self._multiprocessors, self.part = name.ordinal, multiprocessors, 0
        self._used: _Used | None = None

    def __call__(self, artifact: bytes) -> OnGpu:
        used = self._used = self._used or _Used(_opened(self._ordinal), self._multiprocessors, self.part)
        device = f"cuda:{self._ordinal}"
        return OnGpu(load(artifact, device=device, num_threads=1, multiprocessors=used.partition), used)

    def room(self) -> tuple[int, int]:
        """Return on how many partitions processes measure side by side, and how many may use the GPU. Raises
        `DeviceError` if there is no such GPU, or no such partition of it.
        """
        device, parts = _opened(self._ordinal), 1
        if self._multiprocessors is not None:
            units = divisible(device)
            Partition(device, self._multiprocessors).close()
            parts = len(units.resources) // ceil(self._multiprocessors / units.size)
        if device.attribute("MPS_ENABLED"):
            return parts, MOST_PROCESSES
        return 1, 1 if device.attribute("COMPUTE_MODE") == EXCLUSIVE else MOST_PROCESSES


def _opened(ordinal: int) -> Device:
    try:
        device = open_device(ordinal)
        device.call("cuDeviceGetCount")  # fails where the object was made before the fork
        return device
    except CudaError as error:
        if error.status != "CUDA_ERROR_NOT_INITIALIZED":
            raise
        raise DeviceError(
            "this process has used the GPU, so that processes forked from it cannot; tune in another one, as the "
            "command `tilestitch tune` does"
        ) from error


class _Used:
    """The GPU as a process uses it: its partition, the operands that it has uploaded, and memory that it fills."""

    def __init__(self, device: Device, multiprocessors: int | None, part: int) -> None:
        self.device = device
        # All processes have partitions in the same order, so that those of different numbers have nothing in common.
        taken = [Partition(device, multiprocessors) for _ in range(part + 1)] if multiprocessors is not None else []
        self.partition, self._before = taken[-1] if taken else None, taken[:-1]
        self._arrays: dict[int, tuple[np.ndarray, DeviceArray]] = {}
        self._memory = Allocation(device, FILLED_BYTES, "what is written between measurements")
        self.microseconds(self._fill)  # the first one finds the GPU asleep
        self._fill_us = self.microseconds(self._fill)

    def uploaded(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return feeds whose tensors are on the GPU; each is uploaded once."""
        return {name: self._array(one) if _is_tensor(one) else one for name, one in feeds.items()}

    def _array(self, array: np.ndarray) -> DeviceArray:
        if id(array) not in self._arrays:
            self._arrays[id(array)] = array, self._copy(np.ascontiguousarray(array).reshape(array.shape))
        return self._arrays[id(array)][1]

    def _copy(self, array: np.ndarray) -> DeviceArray:
        memory = Allocation(self.device, array.nbytes, "an operand")
        if array.nbytes:
            with self.device.current():
                self.device.call("cuMemcpyHtoD", memory.address, host_address(array), array.nbytes)
                self.device.call("cuCtxSynchronize")
        return DeviceArray(self.device, memory.address, array.dtype, array.shape, memory)

    def occupy(self, us: float) -> None:
        """Queue writes that take the GPU so long, and leave nothing else in its caches."""
        with self.device.current():
            for _ in range(ceil(us / self._fill_us)):
                self._fill()

    def _fill(self) -> None:
        self.device.call("cuMemsetD8Async", self._memory.address, 0, FILLED_BYTES, LEGACY_STREAM)

    def microseconds(self, queue: Callable[[], object]) -> float:
        """Return how long the GPU takes for what is queued in the legacy stream, at least one."""
        call = self.device.call
        with self.device.current():
            events = [call("cuEventCreate", 0) for _ in range(2)]
            try:
                call("cuEventRecord", events[0], LEGACY_STREAM)
                queue()
                call("cuEventRecord", events[1], LEGACY_STREAM)
                call("cuEventSynchronize", events[1])
                return max(1000 * float(call("cuEventElapsedTime", *events)), 1.0)
            finally:
                for event in events:
                    call("cuEventDestroy", event)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "OUST"


class OnGpu:
    """A module whose operands and results stay on the GPU, and whose launches are timed with cold caches, and without
    the time in which they are queued.
    """

    def __init__(self, module: Module, used: _Used) -> None:
        self._module, self._used = module, used
        self._launches: int | None = None

    @property
    def inputs(self) -> Any:
        return self._module.inputs

    @property
    def specialisations(self) -> Any:
        return self._module.specialisations

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return self._module.run(self._used.uploaded(feeds), on_device=True)

    def run_us(self, feeds: Mapping[str, Any]) -> float:
        """Return the time on the GPU of one of several runs, which are queued while it has other work."""
        operands = self._used.uploaded(feeds)

        def queue(runs: int) -> None:
            for _ in range(runs):
                self._module.run(operands, on_device=True, stream=LEGACY_STREAM)

        self._used.occupy(QUEUED_RUNS * HOST_US)
        queue(1)  # so that caches are as after a run
        return self._used.microseconds(lambda: queue(QUEUED_RUNS)) / QUEUED_RUNS

    def profile(self, feeds: Mapping[str, Any]) -> list[LaunchTime]:
        operands = self._used.uploaded(feeds)
        if self._launches is None:
            self._launches = len(self._module.profile(operands))
        self._used.occupy(HOST_US + HOST_US_A_LAUNCH * self._launches)
        return self._module.profile(operands)

    def close(self) -> None:
        self._module.close()

    def __enter__(self) -> OnGpu:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
