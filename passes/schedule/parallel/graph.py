"""A launch graph for the comparison of orders: what each launch needs of the device, and which wait for which."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

from tilestitch.cost_model.laws.makespan import Span, Work, spans
from tilestitch.passes.plan.launches.launch import HIGHEST_PRIORITY

LEVELS = HIGHEST_PRIORITY + 1
"""Priorities are 0 to 5."""


@dataclass(frozen=True)
class LaunchGraph:
    """Numbered launches, and edges (before, after) with before < after."""

    works: tuple[Work, ...]
    edges: tuple[tuple[int, int], ...]

    @cached_property
    def before(self) -> list[list[int]]:
        return self._neighbours(1, 0)

    @cached_property
    def after(self) -> list[list[int]]:
        return self._neighbours(0, 1)

    def _neighbours(self, of: int, which: int) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.works]
        for edge in self.edges:
            found[edge[of]].append(edge[which])
        return found

    @cached_property
    def rest_us(self) -> list[float]:
        """Per launch, the longest path from its start to the end of all."""
        found = [0.0] * len(self.works)
        for number in reversed(range(len(self.works))):
            found[number] = self.works[number].alone_us + max((found[n] for n in self.after[number]), default=0.0)
        return found

    @cached_property
    def least_us(self) -> float:
        """A lower bound on any schedule: the longest path, and the total use of each resource."""
        kinds = zip_longest(*(work.used_us for work in self.works), fillvalue=0.0)
        gap_us = min((work.gap_us for work in self.works), default=0.0)
        return max([*self.rest_us, *(gap_us + sum(kind) for kind in kinds)], default=0.0)

    @cached_property
    def slack_us(self) -> list[float]:
        """Per launch, how much later it could start without delaying anything, with unlimited concurrency."""
        start_us = [0.0] * len(self.works)
        for number, before in enumerate(self.before):
            start_us[number] = max((start_us[n] + self.works[n].alone_us for n in before), default=0.0)
        longest_us = max(self.rest_us, default=0.0)
        return [longest_us - start - rest for start, rest in zip(start_us, self.rest_us)]

    def ordered(self, key: Callable[[int], Any]) -> tuple[int, ...]:
        """Return the launches in a topological order, always taking the ready one with the least key."""
        waits = [len(before) for before in self.before]
        ready = [(key(number), number) for number, count in enumerate(waits) if not count]
        heapq.heapify(ready)
        found = []
        while ready:
            _, number = heapq.heappop(ready)
            found.append(number)
            for other in self.after[number]:
                waits[other] -= 1
                if not waits[other]:
                    heapq.heappush(ready, (key(other), other))
        return tuple(found)

    @cached_property
    def above(self) -> list[int]:
        """For each launch, those that end before it starts, as bits."""
        found = [0] * len(self.works)
        for number, before in enumerate(self.before):
            for other in before:
                found[number] |= found[other] | 1 << other
        return found

    def parts(self) -> list[tuple[int, ...]]:
        """Return the graph split into runs of launches such that each ends before the next begins, in any order. A
        launch that waits for all before it, and for which all after it wait, is its own part.
        """
        count = len(self.works)
        above, below = self.above, [0] * count
        for number in reversed(range(count)):
            for other in self.after[number]:
                below[number] |= below[other] | 1 << other
        found: list[tuple[int, ...]] = []
        between: list[int] = []
        for number in range(count):
            if above[number].bit_count() + below[number].bit_count() + 1 < count:
                between.append(number)
                continue
            found += [tuple(between)] if between else []
            found.append((number,))
            between = []
        return [*found, tuple(between)] if between else found

    def part(self, numbers: Sequence[int]) -> LaunchGraph:
        """Return the subgraph of some launches, in that order, with the edges between them."""
        place = {number: at for at, number in enumerate(numbers)}
        edges = tuple((place[i], place[j]) for j in numbers for i in self.before[j] if i in place)
        return LaunchGraph(tuple(self.works[number] for number in numbers), edges)


class Order(NamedTuple):
    """The order in which launches are added to a CUDA graph, and the priority of each (by its number, not its
    position).

    held: additional edges (before, after) that no dependence needs, which reduce concurrency.
    """

    order: tuple[int, ...]
    levels: tuple[int, ...]
    held: tuple[tuple[int, int], ...] = ()


def spans_in(graph: LaunchGraph, chosen: Order) -> list[Span]:
    """Return when each launch runs, by its number."""
    place = {number: at for at, number in enumerate(chosen.order)}
    works = [graph.works[number] for number in chosen.order]
    edges = [(place[i], place[j]) for i, j in (*graph.edges, *chosen.held)]
    found = spans(works, edges, [chosen.levels[number] for number in chosen.order])
    return [found[place[number]] for number in range(len(found))]
