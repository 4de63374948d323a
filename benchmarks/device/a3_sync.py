"""A3: what synchronisation within a launch costs, in nanoseconds a round: medians over launches of many rounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.case import Case, Setup
from benchmarks.device.gpu import Gpu, one

ROUNDS = 1000
GRIDS = (1, 2, 4, 8, 16, 33, 66, 132, 264)
CLUSTERS = (2, 4, 8)


def rounds_of(setup: Setup, symbol: str, grid: int, block: int, hand_overs: int = 1, **more: Any) -> dict[str, Any]:
    """Time of a launch with ROUNDS rounds less one with a tenth of them, a round: the launch itself drops out."""
    gpu = Gpu(setup.kernels("sync"))
    word = gpu.buffer(4)
    sizes = {count: gpu.upload(np.array([count], np.uint32)) for count in (ROUNDS // 10, ROUNDS)}
    times = {}
    for count, address in sizes.items():
        graph = gpu.graph([(one(symbol, grid, block, **more), (word, address))])

        def work(graph: Any = graph) -> None:
            gpu.call("cuMemsetD8Async", word, 0, 4, gpu.stream)
            graph.launch(gpu.stream)

        times[count] = gpu.time_us(work)
    span = 1000 * (times[ROUNDS] - times[ROUNDS // 10]) / (ROUNDS - ROUNDS // 10)
    return {"ns_per_round": span, "ns_per_hand_over": span / hand_overs}


def cases(part: str, setup: Setup) -> Iterator[Case]:
    def case(what: str, symbol: str, grid: int, block: int, hand_overs: int = 1, **more: Any) -> Case:
        key = {"what": what, "grid": grid, "block": block}
        return Case(part, key, partial(rounds_of, setup, symbol, grid, block, hand_overs, **more))

    for grid in GRIDS:
        for block in (32, 256):
            yield case("grid barrier", "grid_barrier", grid, block, cooperative=True)
    yield case("semaphore between two blocks", "ping_pong", 2, 32, 2, cooperative=True)
    for size in CLUSTERS:
        yield case("cluster barrier", "cluster_barrier", size, 128, cluster=(size, 1, 1))
    for block in (64, 256, 1024):
        yield case("__syncthreads", "block_barrier", 1, block)
    yield case("mbarrier between two warps", "mbarrier_ping_pong", 1, 64, 2)
