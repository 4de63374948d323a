"""The branches of a launch graph: chains, several of which can run concurrently."""

from __future__ import annotations

from collections.abc import Iterable


def branches(count: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the branch of each of `count` launches, numbered from 0. Each launch comes after its predecessor in the
    branch.

    edges: pairs (before, after).
    """
    waits_for: list[list[int]] = [[] for _ in range(count)]
    for before, after in edges:
        waits_for[after].append(before)
    earlier: list[int] = []  # for each launch, the set (as bits) of those that end before it starts
    ends: list[int] = []  # the last launch of each branch
    found = []
    for number in range(count):
        above = 0
        for other in waits_for[number]:
            above |= earlier[other] | 1 << other
        earlier.append(above)
        free = (branch for branch, end in enumerate(ends) if above >> end & 1)
        branch = next(free, len(ends))
        ends[branch : branch + 1] = [number]
        found.append(branch)
    return tuple(found)
