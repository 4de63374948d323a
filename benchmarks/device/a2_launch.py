"""A2: what launches cost: in a stream, as nodes of a graph, with each kind of edge, side by side, and from the host."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.gpu import Gpu, one
from benchmarks.device.record import Recorder, run_part
from tilestitch.runtime.program import Edge

LENGTH = 100
BRANCHES = (1, 2, 4, 10, 20, 50)
GRIDS = (1, 132)


def in_stream(gpu: Gpu, grid: int) -> dict[str, Any]:
    word = gpu.buffer(4)
    function = gpu.function("empty")

    def work() -> None:
        for _ in range(LENGTH):
            gpu.launch(function, grid, 32, (word,))

    device = gpu.time_us(work)
    gpu.synchronize()
    start = time.perf_counter_ns()
    work()
    host = (time.perf_counter_ns() - start) / 1e3
    gpu.free()
    return {"us_per_launch": device / LENGTH, "host_us_per_launch": host / LENGTH}


def chain(gpu: Gpu, kind: str, grid: int, length: int = LENGTH) -> dict[str, Any]:
    """A chain of empty kernels. With programmatic edges they allow the next one at once and wait for the one before."""
    word = gpu.buffer(4)
    symbol = "empty_programmatic" if kind == "programmatic" else "empty"
    graph = gpu.graph([(one(symbol, grid), (word,))] * length, [Edge(i - 1, i, kind) for i in range(1, length)])
    median = gpu.time_us(lambda: graph.launch(gpu.stream))
    gpu.synchronize()
    start = time.perf_counter_ns()
    graph.launch(gpu.stream)
    host = (time.perf_counter_ns() - start) / 1e3
    gpu.synchronize()
    graph.close()
    gpu.free()
    return {"us": median, "us_per_node": median / length, "host_us": host}


def branches(gpu: Gpu, count: int, work_ns: int) -> dict[str, Any]:
    """LENGTH kernels of one block in `count` chains side by side, each busy for `work_ns`."""
    duration = gpu.upload(np.array([work_ns], np.uint32))
    edges = [Edge(i - count, i) for i in range(count, LENGTH)]
    symbol = "busy" if work_ns else "empty"
    graph = gpu.graph([(one(symbol), (duration,))] * LENGTH, edges)
    median = gpu.time_us(lambda: graph.launch(gpu.stream))
    gpu.synchronize()
    graph.close()
    gpu.free()
    return {"us": median, "us_per_node": median / LENGTH}


def measure(recorder: Recorder) -> None:
    gpu = Gpu("launch")
    for grid in GRIDS:
        recorder.measure({"what": "stream", "grid": grid}, partial(in_stream, gpu, grid))
        recorder.measure({"what": "graph of 1", "grid": grid}, partial(chain, gpu, "full", grid, 1))
        for kind in ("full", "programmatic", "launch_order"):
            key = {"what": f"graph of {LENGTH}, {kind} edges", "grid": grid}
            recorder.measure(key, partial(chain, gpu, kind, grid))
    for work_ns in (0, 5000):
        for count in BRANCHES:
            key = {"what": f"graph of {LENGTH} in branches", "branches": count, "busy_ns": work_ns}
            recorder.measure(key, partial(branches, gpu, count, work_ns))


if __name__ == "__main__":
    run_part("A2", measure)
