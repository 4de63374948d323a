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
    last = 0  # these, as bits
    found: list[int] = []
    for number in range(count):
        above = 0
        for other in waits_for[number]:
            above |= earlier[other] | 1 << other
        earlier.append(above)
        free = above & last
        if free & (free - 1):
            branch = next(branch for branch, end in enumerate(ends) if free >> end & 1)
        else:
            branch = found[free.bit_length() - 1] if free else len(ends)
        last |= 1 << number
        if branch < len(ends):
            last ^= 1 << ends[branch]
        ends[branch : branch + 1] = [number]
        found.append(branch)
    return tuple(found)
