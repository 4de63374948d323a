"""Heuristics to order launches: the given order, Opara's, and ours by the longest path."""

from __future__ import annotations

import heapq

from tilestitch.cost_model.laws.makespan import Work

from .graph import LEVELS, LaunchGraph, Order

DRAM, L2 = 0, 1
"""Indices of memory resources in `Work.rates`."""
SLACKS = (0.01, 0.05, 0.15, 0.3, 0.6)
"""Thresholds relative to the longest path: launches with no more slack than the first have the highest priority, and so
on.
"""


def as_given(graph: LaunchGraph) -> Order:
    """Return the launches in the order of their numbers, which is also that of Nimble (NeurIPS 2020), as it keeps the
    model's order.
    """
    return Order(tuple(range(len(graph.works))), (0,) * len(graph.works))


def by_longest_path(graph: LaunchGraph) -> Order:
    """Return the launches by decreasing longest path to the end, without priorities."""
    return Order(graph.ordered(lambda number: -graph.rest_us[number]), (0,) * len(graph.works))


def by_slack(graph: LaunchGraph) -> Order:
    """Return the same order with priorities: the less slack, the higher."""
    longest_us = max(graph.rest_us, default=0.0) or 1.0
    levels = [LEVELS - 1 - sum(slack > share * longest_us for share in SLACKS) for slack in graph.slack_us]
    return Order(by_longest_path(graph).order, tuple(levels))


def in_order(graph: LaunchGraph) -> Order:
    """Return the same order with priorities that fall from the first launch to the last."""
    order = by_longest_path(graph).order
    levels = [0] * len(order)
    for place, number in enumerate(order):
        levels[number] = LEVELS - 1 - place * LEVELS // len(order)
    return Order(order, tuple(levels))


def at_most(graph: LaunchGraph, side_by_side: int) -> Order:
    """Return the order by longest path, with each launch waiting for the one `side_by_side` positions before it."""
    order = by_longest_path(graph).order
    pairs = zip(order, order[side_by_side:])
    held = tuple(pair for pair in pairs if not graph.above[pair[1]] >> pair[0] & 1)
    return Order(order, (0,) * len(order), held)


def opara(graph: LaunchGraph) -> Order:
    """Return Opara's launch order (IEEE TC 2025, algorithm 2): of the ready launches, memory-bound and compute-bound
    ones alternate, each time the one whose blocks need the least.
    """
    waits = [len(before) for before in graph.before]
    ready: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    found: list[int] = []

    def add(number: int) -> None:
        work = graph.works[number]
        heapq.heappush(ready[_is_memory_bound(work)], (max(work.room, default=0.0), number))

    for number, count in enumerate(waits):
        if not count:
            add(number)
    memory_next = True
    while ready[True] or ready[False]:
        kind = memory_next if ready[memory_next] else not memory_next
        _, number = heapq.heappop(ready[kind])
        memory_next = not kind
        found.append(number)
        for other in graph.after[number]:
            waits[other] -= 1
            if not waits[other]:
                add(other)
    return Order(tuple(found), (0,) * len(found))


def _is_memory_bound(work: Work) -> bool:
    return max(work.rates[: L2 + 1], default=0.0) >= max(work.rates[L2 + 1 :], default=0.0)


CANDIDATES = (as_given, opara, by_longest_path, by_slack, in_order)
"""Candidate heuristics; the first is kept where no other is better."""
FEWER = (1, 2, 3, 4, 6, 8)
"""Limits on concurrency that are tried if there is time."""
