"""The device model of `makespan`, with a free choice of the next kernel.

At each event the next kernel is any ready one for which there is room, or none until the next event. That is more
general than what launch orders, priorities and edges can express: what none of these schedules reaches, no order does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from .makespan import NOTHING, Simulation, Work

_COPIED = (
    "_waits", "_unplaced", "_unended", "_free", "_busy", "_arrivals", "_queue", "_lots", "_lot_blocks", "_lot_shares",
    "_left_us", "_ready_us", "_start_us", "_end_us", "_waiting", "started",
)  # fmt: skip


class Branching(Simulation):
    """A schedule that has been simulated up to some time.

    after_us: per kernel, the longest path from its end to the end of all. started: kernels in the order in which they
    were chosen, and when.
    """

    def __init__(self, works: Sequence[Work], edges: Iterable[tuple[int, int]], after_us: Sequence[float]) -> None:
        super().__init__(works, edges, ())
        self.now_us = 0.0
        self.started: list[tuple[int, float]] = []
        self._waiting: list[int] = []
        self._after_us = after_us
        self._used_us = [work.used_us for work in works]
        self._begin()

    def copy(self) -> Branching:
        other = object.__new__(Branching)
        other.__dict__.update(self.__dict__)
        for name in _COPIED:
            setattr(other, name, list(getattr(self, name)))
        return other

    @property
    def is_over(self) -> bool:
        return not (self._arrivals or self._queue or self._lots or self._waiting)

    @property
    def ready_us(self) -> list[float]:
        """The time at which each kernel could have started."""
        return self._ready_us

    @property
    def end_us(self) -> list[float]:
        return self._end_us

    def proceed(self) -> None:
        """Advance to the next decision point, or to the end."""
        while not self.is_over:
            while self._arrivals and self._arrivals[0][0] <= self.now_us + NOTHING:
                self._waiting.append(heapq.heappop(self._arrivals)[1])
            self._place_chosen()
            if self._waiting and not self._queue:
                return
            self.now_us = self._next(self.now_us)

    def choices(self) -> list[int]:
        """Return the ready kernels for which there is room."""
        return [number for number in self._waiting if self._fitting(number)]

    def start(self, number: int) -> None:
        """Start a kernel next; until all its blocks are placed there is nothing to choose."""
        self._waiting.remove(number)
        self.started.append((number, self.now_us))
        self._queue = [(0, 0.0, number)]
        self._place_chosen()

    def wait(self) -> bool:
        """Advance to the next event and return True; return False if there is none."""
        if not self._lots and not self._arrivals:
            return False
        self.now_us = self._next(self.now_us)
        return True

    def _place_chosen(self) -> None:
        """Place blocks of chosen kernels; those that have arrived wait to be chosen."""
        arrivals, self._arrivals = self._arrivals, []
        self._place(self.now_us)
        self._arrivals = arrivals

    def state(self) -> tuple[object, ...]:
        """Return the state on which the rest of a schedule depends, apart from the elapsed time."""
        shares, left_us = (round(share, 9) for share in self._lot_shares), (round(left, 6) for left in self._left_us)
        lots = sorted(zip(self._lots, self._lot_blocks, shares, left_us))
        arrivals = sorted((number, round(at - self.now_us, 6)) for at, number in self._arrivals)
        return tuple(self._unplaced), tuple(sorted(self._waiting)), tuple(lots), tuple(arrivals)

    def least_us(self) -> float:
        """Return a lower bound on all completions of the schedule: by the longest path, and by the remaining use of
        each resource.
        """
        longest_us, used_us = 0.0, [0.0] * (len(self._busy) + len(self._free))
        running_us: dict[int, float] = {}
        for number, count, share, left_us in zip(self._lots, self._lot_blocks, self._lot_shares, self._left_us):
            running_us[number] = max(left_us, running_us.get(number, 0.0))
            work = self._works[number]
            for kind, rate in enumerate(work.rates):
                used_us[kind] += rate * share * left_us
            for kind, each in enumerate(work.room, len(self._busy)):
                used_us[kind] += min(1.0, each * count) * left_us
        for number, unplaced in enumerate(self._unplaced):
            if not self._unended[number]:
                continue
            takes_us = running_us.get(number, 0.0)
            if unplaced:
                takes_us = max(takes_us, self._rest(number, unplaced, used_us))
            longest_us = max(longest_us, takes_us + self._after_us[number])
        for at_us, number in self._arrivals:
            takes_us = at_us - self.now_us + self._works[number].body_us
            longest_us = max(longest_us, takes_us + self._after_us[number])
        return self.now_us + max([longest_us, *used_us])

    def _rest(self, number: int, unplaced: int, used_us: list[float]) -> float:
        """Add the resource use of unplaced blocks to `used_us`; return their least duration."""
        work, rounds = self._works[number], self._rounds[number]
        if unplaced == rounds.blocks:
            part_us, used = work.body_us, self._used_us[number]
        else:
            last = min(unplaced, rounds.blocks - rounds.full)
            part_us = work.body_us * (rounds.part if unplaced > last else rounds.last_part)
            held_us = work.body_us * ((unplaced - last) * rounds.part + last * rounds.last_part)
            shared = (work.body_us * rate * unplaced / rounds.blocks for rate in work.rates)
            used = (*shared, *(held_us * min(1.0, each) for each in work.room))
        at = 0
        for kind, us in enumerate(used):
            at = kind if kind < len(work.rates) else len(self._busy) + kind - len(work.rates)
            used_us[at] += us
        return part_us
