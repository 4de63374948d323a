"""The best plan of a small graph, by dynamic programming over what has been stored and computed.

Kernels are launched one after another. Which ones may follow depends on which atoms are stored by then, and which have
been computed at all, not on how that came about. So every plan is a path through such states.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from tilestitch.passes.errors import PassError
from tilestitch.passes.fusion.bitsets import bits, mask_of
from tilestitch.passes.fusion.search.space import Space

MOST_ATOMS = 20

Kernel = tuple[int, int]
"""What a kernel computes, and what it stores of that."""


class TooLargeError(PassError):
    """A graph has too many nodes for the exact solution."""


def exact(space: Space) -> tuple[list[Kernel], float]:
    """Return the plan with the least full estimate: its kernels in the order of launches, and its microseconds.

    Every plan is considered whose kernels are connected and can be put in an order: what several kernels read is stored
    once, or computed again by each of them (`space.copyable`).

    Raises TooLargeError beyond 20 atoms.
    """
    count = len(space.atoms)
    if count > MOST_ATOMS:
        raise TooLargeError(f"{count} nodes are too many to solve exactly; give a graph of {MOST_ATOMS}")
    kernels = list(_kernels(space))
    # A state has a bit for each stored atom, and above these one for each computed atom.
    once = space.everything & ~space.copyable
    leaves = np.array([stored | mask << count for mask, stored in kernels])
    needs = np.array([_needs(space, mask) for mask, _ in kernels])
    # Stored atoms are not computed again; computed ones are not stored later, and some not computed again either.
    spoils = np.array([mask | (stored | (mask & once)) << count for mask, stored in kernels])
    latencies = np.array([space.latency_us(mask, stored) for mask, stored in kernels])
    best: dict[int, tuple[float, int, int]] = {0: (0.0, -1, 0)}
    waiting = [0]
    # A kernel only adds bits: in numeric order, a state is final when it is reached.
    while waiting:
        state = heapq.heappop(waiting)
        so_far = best[state][0]
        able = np.flatnonzero((needs & ~state | spoils & state) == 0)
        for number, then in zip(able.tolist(), (leaves[able] | state).tolist(), strict=True):
            then_us = so_far + float(latencies[number])
            known = best.get(then)
            if known is None:
                heapq.heappush(waiting, then)
            if known is None or then_us < known[0]:
                best[then] = then_us, number, state
    end = min((s for s in best if not space.results & ~s), key=lambda s: (best[s][0], s))
    least_us, plan, state = best[end][0], list[Kernel](), end
    while state:
        _, number, state = best[state]
        plan.append(kernels[number])
    return plan[::-1], least_us


def _needs(space: Space, mask: int) -> int:
    found = 0
    for i in bits(mask):
        found |= space.before[i]
    return found & ~mask


def _kernels(space: Space) -> Iterator[Kernel]:
    """Yield atoms alone, and all connected sets of native atoms with every set that each might store, as far as
    legal.
    """
    connected = {1 << i for i in bits(space.native)}
    frontier = connected
    while frontier:
        frontier = {m | 1 << n for m in frontier for n in bits(space.neighbours(m))} - connected
        connected = connected | frontier
    for i in range(len(space.atoms)):
        yield 1 << i, 1 << i
    for mask in sorted(m for m in connected if m & (m - 1)):
        ends = mask_of(i for i in bits(mask) if not space.after[i] & mask)
        choice = list(bits(space.border(mask) & ~ends))
        for pick in range(1 << len(choice)):
            stored = ends | mask_of(c for n, c in enumerate(choice) if pick >> n & 1)
            if space.shape(mask, stored) is not None:
                yield mask, stored
