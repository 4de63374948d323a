"""Start and end times of kernels that share a GPU: a discrete-event model of thread blocks on multiprocessors.

A kernel is ready a launch gap after all that it waits for has ended. Ready kernels are in one queue, ordered by
priority, then by ready time, then by launch order. The head of the queue places as many thread blocks as there is room
for (threads, registers, shared memory, blocks); as long as blocks of it are left, no other kernel places any, even
where one of its blocks would fit. Blocks that were placed together end together; fewer than a quarter of those that the
device could hold are not placed. Each block needs an equal part of what its kernel uses (DRAM, the L2 cache, arithmetic
units) while it runs. Resources are divided in proportion to what each would use alone, so that nothing exceeds its
capacity, and no graph ends before everything used has been delivered; kernels whose data fit the L2 cache alone, but
not together, use DRAM for them.

Sources. The queue: Amert et al., GPU Scheduling on the NVIDIA TX2: Hidden Details Revealed (RTSS 2017). At most 128
grids at a time: CUDA C++ Programming Guide, compute capability 7.0 and later. Room is counted over the whole device,
not for each multiprocessor.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from operator import truediv
from typing import NamedTuple

MOST_GRIDS = 128
MOST_ROUNDS = 8
"""Kernels with more waves than this are modelled with larger blocks, so that they have this many."""
LEAST_LOT = 0.25
"""Fraction of a kernel's resident blocks; no fewer are placed at a time, which bounds the number of events."""
NOTHING = 1e-9
"""Microseconds, or a share of the device, that count as zero."""


@dataclass(frozen=True)
class Work:
    """A kernel from the point of view of a device that runs several concurrently.

    gap_us: from the end of its dependences until its blocks may start, during which it occupies nothing. body_us: from
    the start of its first block to the end of its last one, alone on the device. resident: blocks that the device holds
    at a time. room: use by one block of each resource that limits residency, as a share of the device. whole: all
    blocks must be resident together. rates: its average use, when alone, of each resource that running kernels share,
    as a share of the device; the first is DRAM. cache: the share of the L2 cache that its data fill. uncached: its
    share of DRAM if they do not fit there. Raises ValueError for an invalid share: only room may exceed the device.
    """

    gap_us: float
    body_us: float
    blocks: int = 1
    resident: int = 1
    room: tuple[float, ...] = ()
    whole: bool = False
    rates: tuple[float, ...] = ()
    cache: float = 0.0
    uncached: float = 0.0

    def __post_init__(self) -> None:
        shares = (*self.rates, self.cache, self.uncached)
        if not all(0 <= one <= 1 for one in shares) or not all(one >= 0 and isfinite(one) for one in self.room):
            raise ValueError(
                f"room {self.room}, rates {self.rates}, cache {self.cache}, uncached {self.uncached}:"
                " give shares of the device from 0 on, up to 1 except of room"
            )

    @property
    def alone_us(self) -> float:
        return self.gap_us + self.body_us

    @property
    def used_us(self) -> tuple[float, ...]:
        """Least time in which the device can provide its total use of each resource: shared rates, and room."""
        rounds = self.rounds
        held_us = self.body_us * (rounds.full * rounds.part + (rounds.blocks - rounds.full) * rounds.last_part)
        return (*(self.body_us * rate for rate in self.rates), *(held_us * min(1.0, each) for each in self.room))

    @cached_property
    def rounds(self) -> Rounds:
        return Rounds.of(self)

    @cached_property
    def takes(self) -> tuple[tuple[int, float], ...]:
        """Nonzero use of room by a block, by kind."""
        return tuple((kind, each) for kind, each in enumerate(self.room) if each > 0)

    @cached_property
    def uses(self) -> tuple[tuple[int, float], ...]:
        """Nonzero use of shared resources, by kind."""
        return tuple((kind, rate) for kind, rate in enumerate(self.rates) if rate > 0)

    @cached_property
    def most_dram(self) -> float:
        """Its share of DRAM if its data do not fit the cache."""
        return max(self.uncached, self.rates[0]) if self.rates else 0.0


class Span(NamedTuple):
    """ready_us: when its blocks may start; start_us: when the first starts; end_us: when the last has ended."""

    ready_us: float
    start_us: float
    end_us: float


def makespan_us(found: Iterable[Span]) -> float:
    """Return the microseconds until the last kernel has ended; 0 if there is none."""
    return max((span.end_us for span in found), default=0.0)


def spans(works: Sequence[Work], edges: Iterable[tuple[int, int]], priorities: Sequence[int] = ()) -> list[Span]:
    """Return when each kernel runs. edges: (before, after). priorities: higher ones go first; if empty, all are equal.

    Raises ValueError for times that are negative or not finite, for a cycle of edges, and for edges and priorities of
    other kernels than these.
    """
    return Simulation(works, edges, priorities).run()


class Simulation:
    """A simulated device. Lots are blocks of a kernel that were placed together, in four parallel lists: the kernel,
    the number of blocks, their fraction of its rates, and the microseconds until they end without slowdown.
    """

    def __init__(self, works: Sequence[Work], edges: Iterable[tuple[int, int]], priorities: Sequence[int]) -> None:
        for number, work in enumerate(works):
            if not (0 <= work.gap_us < inf and 0 <= work.body_us < inf):
                raise ValueError(
                    f"kernel {number} takes {work.gap_us} + {work.body_us} us; times are finite, and at least 0"
                )
        count = len(works)
        if priorities and len(priorities) != count:
            raise ValueError(f"there are {len(priorities)} priorities of {count} kernels; give one of each, or none")
        self._works = works
        self._priorities = priorities or [0] * count
        self._waits = [0] * count
        self._readers: list[list[int]] = [[] for _ in works]
        for before, after in edges:
            if not (0 <= before < count and 0 <= after < count):
                raise ValueError(f"edge {before} -> {after} is not between two of {count} kernels; number them from 0")
            self._waits[after] += 1
            self._readers[before].append(after)
        self._rounds = [work.rounds for work in works]
        self._blocks = [rounds.blocks for rounds in self._rounds]
        self._together = [rounds.together for rounds in self._rounds]
        self._least = [max(1, int(LEAST_LOT * together)) for together in self._together]
        self._unplaced = list(self._blocks)
        self._unended = list(self._blocks)
        self._free = [1.0] * max((len(work.room) for work in works), default=0)
        self._busy = [0.0] * max((len(work.rates) for work in works), default=0)
        self._busy_uncached = self._cached = 0.0
        self._grids = 0
        self._arrivals: list[tuple[float, int]] = []
        self._queue: list[tuple[int, float, int]] = []
        self._lots: list[int] = []
        self._lot_blocks: list[int] = []
        self._lot_shares: list[float] = []
        self._left_us: list[float] = []
        self._ready_us = [0.0] * len(works)
        self._start_us = [0.0] * len(works)
        self._end_us = [0.0] * len(works)

    def run(self) -> list[Span]:
        now_us = 0.0
        self._begin()
        while self._arrivals or self._queue or self._lots:
            self._place(now_us)
            now_us = self._next(now_us)
        waiting = [number for number, left in enumerate(self._unended) if left]
        if waiting:
            raise ValueError(f"kernels {waiting[:8]} wait for each other; take an edge of their cycle away")
        return list(map(Span, self._ready_us, self._start_us, self._end_us))

    def _begin(self) -> None:
        for number, count in enumerate(self._waits):
            if not count:
                self._arrive(number, 0.0)

    def _next(self, now_us: float) -> float:
        """Advance the time until blocks end or a kernel becomes ready; return that time."""
        paces = self._paces()
        if paces is None:
            step_us = min(self._left_us, default=inf)
        else:
            step_us = min(map(truediv, self._left_us, paces))
        if self._arrivals:
            step_us = min(step_us, max(0.0, self._arrivals[0][0] - now_us))
        now_us += step_us
        self._advance(step_us, paces, now_us)
        return now_us

    def _arrive(self, number: int, now_us: float) -> None:
        self._ready_us[number] = now_us + self._works[number].gap_us
        heapq.heappush(self._arrivals, (self._ready_us[number], number))

    def _place(self, now_us: float) -> None:
        """Place blocks of ready kernels."""
        while self._arrivals and self._arrivals[0][0] <= now_us + NOTHING:
            ready_us, number = heapq.heappop(self._arrivals)
            heapq.heappush(self._queue, (-self._priorities[number], ready_us, number))
        while self._queue:
            number = self._queue[0][2]
            started = self._unplaced[number] < self._blocks[number]
            if not started and self._grids == MOST_GRIDS:
                return
            count = self._fitting(number)
            if not count:
                return
            if not started:
                self._start_us[number] = now_us
                self._grids += 1
            share, lasts_us = self._rounds[number].lot(count, self._unplaced[number], self._works[number].body_us)
            self._unplaced[number] -= count
            self._occupy(number, count, share)
            self._lots.append(number)
            self._lot_blocks.append(count)
            self._lot_shares.append(share)
            self._left_us.append(lasts_us)
            if self._unplaced[number]:
                return
            heapq.heappop(self._queue)

    def _fitting(self, number: int) -> int:
        """Return how many blocks of a kernel fit now."""
        work, free, unplaced = self._works[number], self._free, self._unplaced[number]
        running = self._unended[number] - unplaced
        count = min(unplaced, self._together[number] - running)
        for kind, each in work.takes:
            if (fits := int((free[kind] + NOTHING) / each)) < count:
                count = fits
        if not self._lots:
            return max(1, count)  # a kernel that does not fit the device is launched all the same
        wanted = self._blocks[number] if work.whole else min(unplaced, self._least[number])
        return count if count >= wanted else 0

    def _occupy(self, number: int, count: int, share: float) -> None:
        """Add `count` blocks of a kernel to the occupied resources, or remove them if negative."""
        work, free, busy = self._works[number], self._free, self._busy
        for kind, each in work.takes:
            free[kind] -= count * each
        for kind, rate in work.uses:
            busy[kind] += rate * share
        self._busy_uncached += work.most_dram * share
        self._cached += work.cache * count / self._together[number]

    def _paces(self) -> list[float] | None:
        """Return the speed of each lot, relative to running alone; None if all run at full speed."""
        crowded = self._cached > 1.0 + NOTHING
        busy = [self._busy_uncached, *self._busy[1:]] if crowded else self._busy
        if not busy or max(busy) <= 1.0 + NOTHING:
            return None
        dram = max(1.0, busy[0])
        others = [(kind, one) for kind, one in enumerate(busy) if kind and one > 1.0]
        paces = []
        for number in self._lots:
            work = self._works[number]
            rates = work.rates
            most = dram if rates and (rates[0] > 0 or (crowded and work.uncached > 0)) else 1.0
            for kind, one in others:
                if one > most and kind < len(rates) and rates[kind] > 0:
                    most = one
            paces.append(1 / most)
        return paces

    def _advance(self, step_us: float, paces: Sequence[float] | None, now_us: float) -> None:
        """Advance the time by `step_us`."""
        if paces is None:
            self._left_us = [left - step_us for left in self._left_us]
        else:
            self._left_us = [left - step_us * pace for left, pace in zip(self._left_us, paces)]
        if min(self._left_us, default=1.0) > NOTHING:
            return
        ended = [place for place, left in enumerate(self._left_us) if left <= NOTHING]
        lots = [(self._lots[place], self._lot_blocks[place], self._lot_shares[place]) for place in ended]
        for place in reversed(ended):
            del self._lots[place], self._lot_blocks[place], self._lot_shares[place], self._left_us[place]
        for number, blocks, share in lots:
            self._occupy(number, -blocks, -share)
            self._unended[number] -= blocks
            if not self._unended[number]:
                self._end(number, now_us)

    def _end(self, number: int, now_us: float) -> None:
        self._end_us[number] = now_us
        self._grids -= 1
        for reader in self._readers[number]:
            self._waits[reader] -= 1
            if not self._waits[reader]:
                self._arrive(reader, now_us)


class Rounds(NamedTuple):
    """The waves ("rounds") of a kernel's blocks when it is alone on the device.

    together: blocks that run at a time; full: blocks in full rounds, after which fewer may remain for the last. part:
    fraction of the kernel's time that a full round takes; last_part: that of the last one, if it is not full.
    """

    blocks: int
    together: int
    full: int
    part: float
    last_part: float

    @staticmethod
    def of(work: Work) -> Rounds:
        blocks, resident = max(1, work.blocks), max(1, work.resident)
        if blocks > MOST_ROUNDS * resident:
            blocks = MOST_ROUNDS * resident
        together = min(blocks, resident)
        rounds, whole = -(-blocks // together), blocks // together
        if rounds == whole:
            return Rounds(blocks, together, blocks, 1 / rounds, 0.0)
        # Rounds take equally long, unless a full one would then exceed some resource.
        part = max(1 / rounds, min(1.0, max(work.rates, default=0.0)) * together / blocks)
        return Rounds(blocks, together, whole * together, part, 1 - whole * part)

    def lot(self, count: int, unplaced: int, body_us: float) -> tuple[float, float]:
        """Return, for `count` blocks placed together when `unplaced` were left, their fraction of the kernel's rates,
        and their duration.
        """
        part = self.part if self.blocks - unplaced < self.full else self.last_part
        return (count / (self.blocks * part) if part > 0 else 0.0), body_us * part
