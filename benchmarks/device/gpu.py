"""The little that parts need of CUDA beside artifacts: launch, time. Built on the driver layer of the runtime."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilestitch.runtime.cuda.backend import open_device
from tilestitch.runtime.cuda.driver import Allocation
from tilestitch.runtime.cuda.graph import LaunchGraph, Parameters
from tilestitch.runtime.program import DeviceLaunch, Edge


class Gpu:
    """GPU 0 with its context current, and kernels that take pointers only; numbers travel in memory.

    image: their machine code.
    """

    def __init__(self, image: bytes) -> None:
        self.device = open_device(0)
        self._context = self.device.current()
        self._context.__enter__()
        self.call = self.device.call
        self._module = self.call("cuModuleLoadData", image)
        self.multiprocessors = self.device.attribute("MULTIPROCESSOR_COUNT")
        self.stream = self.new_stream()
        self._memory: list[Allocation] = []

    def new_stream(self, priority: int = 0) -> int:
        return int(self.call("cuStreamCreateWithPriority", 1, priority))  # CU_STREAM_NON_BLOCKING

    def function(self, name: str) -> Any:
        return self.call("cuModuleGetFunction", self._module, name.encode())

    def allow_shared(self, function: Any, nbytes: int) -> None:
        """Let a kernel be launched with so much dynamic shared memory."""
        name = self.device.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuFuncSetAttribute", function, name, nbytes)

    def buffer(self, nbytes: int) -> int:
        """Memory that lives as long as this object; filled with a pattern that is neither zero nor a small number."""
        self._memory.append(Allocation(self.device, nbytes, "a measurement"))
        address = self._memory[-1].address
        self.call("cuMemsetD8Async", address, 0x3B, nbytes, self.stream)
        return address

    def upload(self, array: np.ndarray) -> int:
        address = self.buffer(array.nbytes)
        self.write(address, array)
        return address

    def write(self, address: int, array: np.ndarray) -> None:
        contiguous = np.ascontiguousarray(array)
        self.call("cuMemcpyHtoDAsync", address, contiguous.ctypes.data, contiguous.nbytes, self.stream)
        self.synchronize()

    def read(self, address: int, dtype: str, count: int) -> np.ndarray:
        self.call("cuCtxSynchronize")
        result = np.empty(count, dtype)
        self.call("cuMemcpyDtoH", result.ctypes.data, address, result.nbytes)
        return result

    def synchronize(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

    def graph(
        self, launches: Sequence[tuple[DeviceLaunch, Sequence[int]]], edges: Sequence[Edge] | None = None
    ) -> LaunchGraph:
        """A graph of launches and their pointers; None is a chain."""
        parameters = []
        for _, pointers in launches:
            parameters.append(Parameters(len(pointers)))
            parameters[-1].pointers[: len(pointers)] = pointers
        chain = [Edge(i - 1, i) for i in range(1, len(launches))]
        functions = [self.function(launch.symbol) for launch, _ in launches]
        only = [launch for launch, _ in launches]
        return LaunchGraph(self.device, only, chain if edges is None else edges, functions, parameters)

    def launch(
        self, function: Any, grid: int, block: int, pointers: Sequence[int], stream: int | None = None,
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        parameters = Parameters(len(pointers))
        parameters.pointers[: len(pointers)] = pointers
        where = self.stream if stream is None else stream
        self.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared_bytes, where, parameters.address, 0)

    @contextmanager
    def events(self, count: int) -> Iterator[list[Any]]:
        made = [self.call("cuEventCreate", 0) for _ in range(count)]
        try:
            yield made
        finally:
            for event in made:
                self.call("cuEventDestroy", event)

    def time_us(self, work: Callable[[], None], repeats: int = 20, warmup: int = 3) -> float:
        """The median time of `work`, which queues into `stream`, by events."""
        return self.times_us(work, repeats, warmup)[0]

    def times_us(self, work: Callable[[], None], repeats: int = 20, warmup: int = 3) -> tuple[float, float, float]:
        """Median, 10th and 90th percentile."""
        for _ in range(warmup):
            work()
        times = []
        with self.events(2) as (start, end):
            for _ in range(repeats):
                self.call("cuEventRecord", start, self.stream)
                work()
                self.call("cuEventRecord", end, self.stream)
                self.call("cuEventSynchronize", end)
                times.append(1000 * float(self.call("cuEventElapsedTime", start, end)))
        return statistics.median(times), float(np.percentile(times, 10)), float(np.percentile(times, 90))


def one(symbol: str, grid: int = 1, block: int = 32, **more: Any) -> DeviceLaunch:
    """A launch whose arguments are given elsewhere."""
    return DeviceLaunch(symbol, (grid, 1, 1), (block, 1, 1), more.pop("shared_bytes", 0), (), **more)
