"""A5: how two kernels share the card, by number of blocks; and how small and how isolated a partition is.

A multiprocessor divides its memory into L1 cache and shared memory, and changes that only while it is empty. So kernels
that ask for different amounts may follow each other where the plan has them side by side: that is asked with and
without the hint that both get all of it as shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.case import Case, Setup
from benchmarks.device.gpu import Gpu
from tilestitch.runtime.cuda.modules import LibraryCode
from tilestitch.runtime.cuda.partition import Partition, divisible

READ_BYTES = 1 << 30
KINDS = {"bandwidth": "read", "compute": "fma32"}
BLOCKS_PER_SM = (0.25, 0.5, 1.0, 2.0)
BLOCKS_EACH = 2
"""Blocks for each multiprocessor of a partition."""
SMALLER, LONGER = 8, 4
"""The neighbour reads so many times as much, and runs so many times, that work on a partition ends before it does."""
THREADS = 512
SHARED_BYTES = 96 << 10
"""Of a block that leaves little of a multiprocessor's memory to the L1 cache."""


class Work:
    """One kernel with its arguments, sized to run for about half a millisecond on the whole card."""

    def __init__(
        self, gpu: Gpu, kind: str, grid: int, read_bytes: int, shared_bytes: int = 0, function: Any = None
    ) -> None:
        self.gpu, self.grid, self.shared_bytes = gpu, grid, shared_bytes
        self.function = gpu.function(KINDS[kind]) if function is None else function
        if shared_bytes:
            gpu.allow_shared(self.function, shared_bytes)
        amount = read_bytes // 16 if kind == "bandwidth" else 20_000
        self.pointers = (
            gpu.buffer(read_bytes if kind == "bandwidth" else 16),
            gpu.buffer(16),
            gpu.upload(np.array([amount], np.int64)),
        )

    def launch(self, stream: int) -> None:
        self.gpu.launch(self.function, self.grid, THREADS, self.pointers, stream, self.shared_bytes)


def together_us(gpu: Gpu, works: list[Work], streams: list[int]) -> float:
    """The time until all are done, each in a stream of its own, forked from and joined to the main stream."""

    def work() -> None:
        with gpu.events(1 + len(works)) as (fork, *joins):
            gpu.call("cuEventRecord", fork, gpu.stream)
            for item, stream, join in zip(works, streams, joins):
                gpu.call("cuStreamWaitEvent", stream, fork, 0)
                item.launch(stream)
                gpu.call("cuEventRecord", join, stream)
                gpu.call("cuStreamWaitEvent", gpu.stream, join, 0)

    return gpu.time_us(work, repeats=11)


def pair(setup: Setup, first: str, second: str, blocks_per_sm: float) -> dict[str, Any]:
    gpu = Gpu(setup.kernels("ceilings"))
    grid = max(1, int(blocks_per_sm * gpu.multiprocessors))
    room = setup.room(READ_BYTES)
    return _beside(gpu, [Work(gpu, kind, grid, room) for kind in (first, second)])


def _beside(gpu: Gpu, works: list[Work]) -> dict[str, Any]:
    streams = [gpu.new_stream(), gpu.new_stream()]
    alone = [together_us(gpu, [work], streams[:1]) for work in works]
    both = together_us(gpu, works, streams)
    return {"first_us": alone[0], "second_us": alone[1], "both_us": both, "both_over_sum": both / sum(alone)}


def unlike(setup: Setup, hint: bool) -> dict[str, Any]:
    """A kernel without shared memory beside one with much of it, a block of each on every multiprocessor."""
    gpu = Gpu(setup.kernels("ceilings"))
    works = [
        Work(gpu, "bandwidth", gpu.multiprocessors, setup.room(READ_BYTES)),
        Work(gpu, "compute", gpu.multiprocessors, 0, SHARED_BYTES),
    ]
    if hint:
        name = gpu.device.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        for work in works:
            gpu.call("cuFuncSetAttribute", work.function, name, 100)  # CU_SHAREDMEM_CARVEOUT_MAX_SHARED
    return _beside(gpu, works)


def beside(setup: Setup, wanted: int) -> dict[str, Any]:
    """What a neighbour on all other multiprocessors does to work on a partition of at least `wanted`."""
    image = setup.kernels("ceilings")
    gpu, most = Gpu(image), setup.room(READ_BYTES)
    code = LibraryCode(gpu.device)
    library = code.load(image)
    with Partition(gpu.device, wanted) as inside:
        rest = divisible(gpu.device).multiprocessors - inside.multiprocessors
        with Partition(gpu.device, rest) as outside, _stream(inside) as here, _stream(outside) as there:

            def works(partition: Partition, read_bytes: int) -> dict[str, Work]:
                grid = BLOCKS_EACH * partition.multiprocessors
                found = {kind: code.find(library, name.encode()) for kind, name in KINDS.items()}
                return {kind: Work(gpu, kind, grid, read_bytes, function=found[kind]) for kind in KINDS}

            def disturb(work: Work) -> None:
                for _ in range(LONGER):
                    work.launch(there)

            row: dict[str, Any] = {"multiprocessors": inside.multiprocessors, "of_others": outside.multiprocessors}
            others = works(outside, most)
            for kind, work in works(inside, most // SMALLER).items():
                row[f"{kind}_us"] = alone = _inside_us(gpu, work, here, lambda: None)
                for neighbour, other in others.items():
                    row[f"{kind}_beside_{neighbour}"] = _inside_us(gpu, work, here, partial(disturb, other)) / alone
            row["GB_per_s"] = most // SMALLER / row["bandwidth_us"] / 1e3
    code.unload(library)
    return row


@contextmanager
def _stream(partition: Partition) -> Iterator[int]:
    stream = partition.new_stream()
    try:
        yield stream
    finally:
        partition.device.call("cuStreamDestroy", stream)


def _inside_us(gpu: Gpu, work: Work, stream: int, neighbour: Callable[[], None]) -> float:
    """The median time of `work` in its own stream while the neighbour's launch runs in another."""
    times = []
    with gpu.events(2) as (start, end):
        for _ in range(11):
            neighbour()
            gpu.call("cuEventRecord", start, stream)
            work.launch(stream)
            gpu.call("cuEventRecord", end, stream)
            gpu.call("cuEventSynchronize", end)
            gpu.call("cuCtxSynchronize")
            times.append(1000 * float(gpu.call("cuEventElapsedTime", start, end)))
    return float(np.median(times))


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for first, second in (("bandwidth", "bandwidth"), ("compute", "compute"), ("bandwidth", "compute")):
        for blocks in BLOCKS_PER_SM:
            key = {"what": f"{first} + {second}", "blocks_per_sm_each": blocks}
            yield Case(part, key, partial(pair, setup, first, second, blocks))
    for hint in (False, True):
        yield Case(part, {"what": "unlike shared memory", "hint": hint}, partial(unlike, setup, hint))
    for wanted in (1, 16, 32, 64):
        yield Case(part, {"what": "on a partition", "wanted": wanted}, partial(beside, setup, wanted))
