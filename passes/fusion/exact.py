"""The best partition of a small graph, by dynamic programming over sets of atoms that are closed under "depends on"."""

from __future__ import annotations

from tilestitch.passes.errors import PassError

from .bitsets import bits
from .space import Space

MOST_ATOMS = 20


class TooLargeError(PassError):
    """A graph has too many nodes to be solved exactly."""


def exact(space: Space) -> tuple[list[int], float]:
    """The partition into connected patterns with the least full estimate: its patterns of several atoms, and its
    microseconds. Every partition into kernels that can be put in an order is considered.

    Raises TooLargeError beyond 20 atoms.
    """
    if len(space.atoms) > MOST_ATOMS:
        raise TooLargeError(f"{len(space.atoms)} nodes are too many to solve exactly; give a graph of {MOST_ATOMS}")
    kernels = [(m, _needs(space, m), space.latency_us(m)) for m in _patterns(space)]
    # Kernels are launched one after another; `best[done]` is the fastest way to have computed the atoms `done`.
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}
    order = [[0]] + [[] for _ in space.atoms]
    for size in range(len(order)):
        for done in sorted(order[size]):
            so_far = best[done][0]
            for mask, needs, latency in kernels:
                if mask & done or needs & ~done:
                    continue
                then = done | mask
                if then not in best:
                    order[then.bit_count()].append(then)
                if then not in best or so_far + latency < best[then][0]:
                    best[then] = (so_far + latency, mask)
    return _trace(best, space.everything), best[space.everything][0]


def _needs(space: Space, mask: int) -> int:
    found = 0
    for i in bits(mask):
        found |= space.before[i]
    return found & ~mask


def _patterns(space: Space) -> list[int]:
    """Single atoms, and all connected sets of native atoms that may be one kernel."""
    connected = {1 << i for i in bits(space.native)}
    frontier = connected
    while frontier:
        frontier = {m | 1 << n for m in frontier for n in bits(space.neighbours(m))} - connected
        connected = connected | frontier
    legal = [m for m in sorted(connected) if m & (m - 1) and space.is_pattern(m)]
    return [1 << i for i in range(len(space.atoms))] + legal


def _trace(best: dict[int, tuple[float, int]], done: int) -> list[int]:
    masks = []
    while done:
        mask = best[done][1]
        if mask & (mask - 1):
            masks.append(mask)
        done &= ~mask
    return sorted(masks)
