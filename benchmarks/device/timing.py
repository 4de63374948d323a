"""The time of work that is queued in a stream: on the device, on the wall, and of the host that queues it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.device.case import Setup
from benchmarks.device.gpu import Gpu

REPEATS = 9
WARM_UP_S = 0.2
LONG_ENOUGH_US = 10_000.0
MOST_CALLS = 50
RESERVE_US = 200.0


@contextmanager
def torch_stream(gpu: Gpu) -> Iterator[None]:
    """PyTorch queues into the GPU's stream, after all that it has queued elsewhere."""
    import torch

    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream)):
        yield


class Timer:
    """Times work in `gpu.stream`. The GPU has the kernels of `launch.cu`. On a stand-in, once must do."""

    def __init__(self, gpu: Gpu, setup: Setup) -> None:
        self.gpu = gpu
        self.repeats = REPEATS if setup.executes else 1
        self.warm_up_s = WARM_UP_S if setup.executes else 0.0
        self._busy = gpu.function("busy")
        self._duration = gpu.upload(np.zeros(1, np.uint32))

    def times(self, queue: Callable[[], Any]) -> dict[str, float]:
        """Medians, for one call of `queue`.

        device_us: by events around calls that were all queued while the GPU was kept busy, so that none waits for the
        host. wall_us: of a call and the wait for its end. host_us: until the call returns.
        """
        wall_us, host_us = self._warm_up(queue)
        calls = max(1, min(MOST_CALLS, int(LONG_ENOUGH_US / wall_us)))
        device = [self._device_us(queue, calls, host_us) for _ in range(self.repeats)]
        walls, hosts = zip(*[self._one(queue) for _ in range(3 * self.repeats)])
        return {
            "device_us": statistics.median(device),
            "wall_us": statistics.median(walls),
            "host_us": statistics.median(hosts),
        }

    def _one(self, queue: Callable[[], Any]) -> tuple[float, float]:
        start = time.perf_counter_ns()
        queue()
        queued = time.perf_counter_ns()
        self.gpu.synchronize()
        return (time.perf_counter_ns() - start) / 1e3, (queued - start) / 1e3

    def _warm_up(self, queue: Callable[[], Any]) -> tuple[float, float]:
        """At least three calls; the fastest."""
        end = time.monotonic() + self.warm_up_s
        found = [self._one(queue) for _ in range(3)]
        while time.monotonic() < end:
            found.append(self._one(queue))
        return min(found)

    def _device_us(self, queue: Callable[[], Any], calls: int, host_us: float) -> float:
        busy_ns = 1000 * (2 * calls * host_us + RESERVE_US)
        self.gpu.write(self._duration, np.array([min(busy_ns, 1e9)], np.uint32))
        with self.gpu.events(2) as (start, end):
            self.gpu.launch(self._busy, 1, 1, (self._duration,))
            self.gpu.call("cuEventRecord", start, self.gpu.stream)
            for _ in range(calls):
                queue()
            self.gpu.call("cuEventRecord", end, self.gpu.stream)
            self.gpu.call("cuEventSynchronize", end)
            return 1000 * float(self.gpu.call("cuEventElapsedTime", start, end)) / calls
