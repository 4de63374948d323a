"""A2: what launches cost: in a stream, as nodes of a graph, with each kind of edge, side by side, and from the host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.case import Case, Setup
from benchmarks.device.gpu import Gpu, one
from tilestitch.runtime.program import Edge

LENGTH = 100
BRANCHES = (1, 2, 4, 10, 20, 50)
GRIDS = (1, 132)


def in_stream(setup: Setup, grid: int) -> dict[str, Any]:
    gpu = Gpu(setup.kernels("launch"))
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
    return {"us_per_launch": device / LENGTH, "host_us_per_launch": host / LENGTH}


def chain(setup: Setup, kind: str, grid: int, length: int = LENGTH) -> dict[str, Any]:
    """A chain of empty kernels. With programmatic edges they allow the next one at once and wait for the one before."""
    gpu = Gpu(setup.kernels("launch"))
    word = gpu.buffer(4)
    symbol = "empty_programmatic" if kind == "programmatic" else "empty"
    graph = gpu.graph([(one(symbol, grid), (word,))] * length, [Edge(i - 1, i, kind) for i in range(1, length)])
    median = gpu.time_us(lambda: graph.launch(gpu.stream))
    gpu.synchronize()
    start = time.perf_counter_ns()
    graph.launch(gpu.stream)
    host = (time.perf_counter_ns() - start) / 1e3
    return {"us": median, "us_per_node": median / length, "host_us": host}


def branches(setup: Setup, count: int, work_ns: int) -> dict[str, Any]:
    """LENGTH kernels of one block in `count` chains side by side, each busy for `work_ns`."""
    gpu = Gpu(setup.kernels("launch"))
    duration = gpu.upload(np.array([work_ns], np.uint32))
    edges = [Edge(i - count, i) for i in range(count, LENGTH)]
    symbol = "busy" if work_ns else "empty"
    graph = gpu.graph([(one(symbol), (duration,))] * LENGTH, edges)
    median = gpu.time_us(lambda: graph.launch(gpu.stream))
    gpu.synchronize()
    return {"us": median, "us_per_node": median / LENGTH}


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for grid in GRIDS:
        yield Case(part, {"what": "stream", "grid": grid}, partial(in_stream, setup, grid))
        yield Case(part, {"what": "graph of 1", "grid": grid}, partial(chain, setup, "full", grid, 1))
        for kind in ("full", "programmatic", "launch_order"):
            key = {"what": f"graph of {LENGTH}, {kind} edges", "grid": grid}
            yield Case(part, key, partial(chain, setup, kind, grid))
    for work_ns in (0, 5000):
        for count in BRANCHES:
            key = {"what": f"graph of {LENGTH} in branches", "branches": count, "busy_ns": work_ns}
            yield Case(part, key, partial(branches, setup, count, work_ns))
