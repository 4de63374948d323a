"""The little that part A needs of CUDA: compile, launch, time. Built on the driver layer of the runtime."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.runtime.cuda.driver import Allocation, Device, load_driver
from tilestitch.runtime.cuda.graph import LaunchGraph, Parameters
from tilestitch.runtime.program import DeviceLaunch, Edge

KERNELS = Path(__file__).parent / "kernels"
SOURCES = ("ceilings", "launch", "sync", "order")


def compile_cubin(source: str, architecture: str = "sm_90a") -> bytes:
    """Machine code by NVRTC. Raises `RuntimeError` with the compiler's log."""
    from cuda.bindings import nvrtc

    def checked(result: tuple[Any, ...]) -> Any:
        status, *values = result
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"NVRTC: {status.name}")
        return values[0] if values else None

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, None, None))
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"-default-device"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"NVRTC: {status.name}\n{log.decode(errors='replace')}")
    image = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, image))
    return image


class Gpu:
    """GPU 0 with its context current, and one file of kernels, or `text` in its place. Kernels take pointers only;
    numbers travel in memory.
    """

    def __init__(self, source: str, text: str | None = None) -> None:
        self.device = Device(load_driver(), 0)
        self._context = self.device.current()
        self._context.__enter__()
        major, minor = self.device.capability
        suffix = "a" if major >= 9 else ""
        text = (KERNELS / f"{source}.cu").read_text() if text is None else text
        image = compile_cubin(text, f"sm_{major}{minor}{suffix}")
        self.call = self.device.call
        self._module = self.call("cuModuleLoadData", image)
        self.multiprocessors = self.device.attribute("MULTIPROCESSOR_COUNT")
        self.stream = self.new_stream()
        self._memory: list[Allocation] = []

    def new_stream(self, priority: int = 0) -> int:
        return int(self.call("cuStreamCreateWithPriority", 1, priority))  # CU_STREAM_NON_BLOCKING

    def function(self, name: str) -> Any:
        return self.call("cuModuleGetFunction", self._module, name.encode())

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

    def free(self) -> None:
        self.synchronize()
        while self._memory:
            self._memory.pop().close()

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

    def launch(self, function: Any, grid: int, block: int, pointers: Sequence[int], stream: int | None = None) -> None:
        parameters = Parameters(len(pointers))
        parameters.pointers[: len(pointers)] = pointers
        where = self.stream if stream is None else stream
        self.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, where, parameters.address, 0)

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
