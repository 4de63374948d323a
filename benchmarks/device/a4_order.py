"""A4: does the hardware place the blocks of two launches in launch order, and can a waiting kernel starve its producer?

Both kernels have more blocks than fit at once. Blocks draw tickets when they start; a block of the second launch that
starts before the last of the first is counted as early. Starvation: a consumer that fills the card waits, for at most
LIMIT_NS, for a flag that a kernel launched after it sets. Meeting: two grids in branches of a graph, each of which
fits the card alone, wait for all of their own blocks, as kernels with a barrier of the grid do; cooperative ones should
never be there in part.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.case import Case, Setup
from benchmarks.device.gpu import Gpu, one
from tilestitch.runtime.launches import MAX_PRIORITY
from tilestitch.runtime.program import Edge

REPEATS = 30
LIMIT_NS = 50_000_000
THREADS = 1024
"""A block: two of them fill a multiprocessor."""


def early_blocks(order: np.ndarray) -> int:
    """How many of the second launch's blocks (tag 2) started before the last of the first's (tag 1)."""
    last = int(np.flatnonzero(order == 1)[-1])
    return int((order[:last] == 2).sum())


def placement(setup: Setup, how: str, waves: float) -> dict[str, Any]:
    gpu = Gpu(setup.kernels("order"))
    blocks = int(waves * 2 * gpu.multiprocessors)
    counter, order = gpu.buffer(4), gpu.buffer(8 * blocks)
    tags = [gpu.upload(np.array([tag, 20_000], np.uint32)) for tag in (1, 2)]
    priorities = (0, MAX_PRIORITY) if how == "graph branches, second has priority" else (0, 0)
    launches = [
        (one("draw", blocks, THREADS, priority=priority), (counter, order, tag))
        for tag, priority in zip(tags, priorities, strict=True)
    ]
    early = []
    streams = _streams(gpu, how)
    graph = gpu.graph(launches, [Edge(0, 1, "launch_order")] if how == "graph, launch-order edge" else [])
    for _ in range(REPEATS):
        gpu.call("cuMemsetD8Async", counter, 0, 4, gpu.stream)
        gpu.synchronize()
        if how.startswith("graph"):
            graph.launch(gpu.stream)
        else:
            for stream, (launch, pointers) in zip(streams, launches):
                gpu.launch(gpu.function(launch.symbol), blocks, THREADS, pointers, stream)
        drawn = gpu.read(order, "uint32", 2 * blocks)
        early.append(early_blocks(drawn) if setup.executes else 0)
    return {
        "blocks": blocks,
        "runs_with_early_blocks": sum(count > 0 for count in early),
        "runs": REPEATS,
        "most_early_blocks": max(early),
    }


def _streams(gpu: Gpu, how: str) -> list[int]:
    """Streams for the first and the second launch."""
    if how == "streams":
        return [gpu.new_stream(), gpu.new_stream()]
    if how == "streams, second has priority":
        return [gpu.new_stream(0), gpu.new_stream(-5)]
    if how == "streams, first has priority":
        return [gpu.new_stream(-5), gpu.new_stream(0)]
    return []


def starvation(setup: Setup, how: str, waves: float) -> dict[str, Any]:
    gpu = Gpu(setup.kernels("order"))
    blocks = max(1, int(waves * 2 * gpu.multiprocessors))
    flag, seen = gpu.buffer(4), gpu.buffer(8)
    limit = gpu.upload(np.array([LIMIT_NS], np.uint32))
    streams = _streams(gpu, how)
    launches = [(one("wait_for", blocks, THREADS), (flag, seen, limit)), (one("post"), (flag,))]
    graph = gpu.graph(launches, [])
    gave_up = []
    for _ in range(5):
        gpu.call("cuMemsetD8Async", flag, 0, 4, gpu.stream)
        gpu.call("cuMemsetD8Async", seen, 0, 8, gpu.stream)
        gpu.synchronize()
        if how.startswith("graph"):
            graph.launch(gpu.stream)
        else:
            for stream, (launch, pointers) in zip(streams, launches):
                gpu.launch(gpu.function(launch.symbol), launch.blocks[0], launch.block[0], pointers, stream)
        gave_up.append(int(gpu.read(seen, "uint32", 2)[1]))
    return {"blocks": blocks, "runs_that_starved": sum(count > 0 for count in gave_up), "runs": len(gave_up)}


def meeting(setup: Setup, cooperative: bool, waves: float) -> dict[str, Any]:
    gpu = Gpu(setup.kernels("order"))
    blocks = max(1, int(waves * 2 * gpu.multiprocessors))
    arrived, seen = [gpu.buffer(4) for _ in range(2)], gpu.buffer(8)
    limit = gpu.upload(np.array([LIMIT_NS], np.uint32))
    launch = one("meet", blocks, THREADS, cooperative=cooperative)
    graph = gpu.graph([(launch, (word, seen, limit)) for word in arrived], [])
    gave_up = []
    for _ in range(5):
        for word, nbytes in ((arrived[0], 4), (arrived[1], 4), (seen, 8)):
            gpu.call("cuMemsetD8Async", word, 0, nbytes, gpu.stream)
        graph.launch(gpu.stream)
        gave_up.append(int(gpu.read(seen, "uint32", 2)[1]))
    return {"blocks": blocks, "runs_that_starved": sum(count > 0 for count in gave_up), "runs": len(gave_up)}


def cases(part: str, setup: Setup) -> Iterator[Case]:
    ways = ("streams", "streams, second has priority", "streams, first has priority", "graph branches",
            "graph, launch-order edge", "graph branches, second has priority")  # fmt: skip
    for how in ways:
        for waves in (0.25, 0.75, 1.5, 4.0):
            yield Case(part, {"what": "placement", "how": how, "waves": waves}, partial(placement, setup, how, waves))
    for how in ways[:4]:
        for waves in (0.5, 1.0, 2.0):
            key = {"what": "consumer first", "how": how, "waves": waves}
            yield Case(part, key, partial(starvation, setup, how, waves))
    for cooperative in (True, False):
        for waves in (0.5, 0.75, 1.0):
            key = {"what": "two grids that meet", "how": "cooperative" if cooperative else "plain", "waves": waves}
            yield Case(part, key, partial(meeting, setup, cooperative, waves))
