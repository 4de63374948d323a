"""A3: what synchronisation within a launch costs, in nanoseconds a round: medians over launches of many rounds."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.gpu import Gpu, one
from benchmarks.device.record import Recorder, run_part

ROUNDS = 1000
GRIDS = (1, 2, 4, 8, 16, 33, 66, 132, 264)
CLUSTERS = (2, 4, 8)


def rounds_of(gpu: Gpu, symbol: str, grid: int, block: int, hand_overs: int = 1, **more: Any) -> dict[str, Any]:
    """Time of a launch with ROUNDS rounds less one with a tenth of them, a round: the launch itself drops out."""
    word = gpu.buffer(4)
    sizes = {count: gpu.upload(np.array([count], np.uint32)) for count in (ROUNDS // 10, ROUNDS)}
    times = {}
    for count, address in sizes.items():
        graph = gpu.graph([(one(symbol, grid, block, **more), (word, address))])

        def work(graph: Any = graph) -> None:
            gpu.call("cuMemsetD8Async", word, 0, 4, gpu.stream)
            graph.launch(gpu.stream)

        times[count] = gpu.time_us(work)
        gpu.synchronize()
        graph.close()
    gpu.free()
    span = 1000 * (times[ROUNDS] - times[ROUNDS // 10]) / (ROUNDS - ROUNDS // 10)
    return {"ns_per_round": span, "ns_per_hand_over": span / hand_overs}


def measure(recorder: Recorder) -> None:
    gpu = Gpu("sync")
    for grid in GRIDS:
        if grid > 2 * gpu.multiprocessors:
            continue
        for block in (32, 256):
            key = {"what": "grid barrier", "grid": grid, "block": block}
            recorder.measure(key, partial(rounds_of, gpu, "grid_barrier", grid, block, cooperative=True))
    key = {"what": "semaphore between two blocks", "grid": 2, "block": 32}
    recorder.measure(key, lambda: rounds_of(gpu, "ping_pong", 2, 32, 2, cooperative=True))
    for size in CLUSTERS:
        key = {"what": "cluster barrier", "grid": size, "block": 128}
        recorder.measure(key, partial(rounds_of, gpu, "cluster_barrier", size, 128, cluster=(size, 1, 1)))
    for block in (64, 256, 1024):
        key = {"what": "__syncthreads", "grid": 1, "block": block}
        recorder.measure(key, partial(rounds_of, gpu, "block_barrier", 1, block))
    key = {"what": "mbarrier between two warps", "grid": 1, "block": 64}
    recorder.measure(key, lambda: rounds_of(gpu, "mbarrier_ping_pong", 1, 64, 2))


if __name__ == "__main__":
    run_part("A3", measure)
