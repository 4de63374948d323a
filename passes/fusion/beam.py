"""Beam search for sets of patterns that do not overlap, and hill climbing from there by the full estimate."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .bitsets import bits
from .space import Pattern, Space

MOST_ROUNDS = 20


@dataclass(frozen=True)
class _Choice:
    gain: float = 0.0
    used: int = 0
    masks: tuple[int, ...] = ()


def beam_search(space: Space, patterns: Iterable[Pattern], width: int) -> list[tuple[int, ...]]:
    """The best `width` sets of disjoint patterns by the sum of their quick scores, best first.

    Atoms are visited from producers to consumers; at each, every set may take one pattern whose first atom it is.
    """
    by_first: dict[int, list[Pattern]] = {}
    for pattern in patterns:
        if pattern.gain > 0:
            by_first.setdefault((pattern.mask & -pattern.mask).bit_length() - 1, []).append(pattern)
    beam = [_Choice()]
    for atom in sorted(by_first):
        grown = list(beam)
        for choice in beam:
            for pattern in by_first[atom]:
                if not pattern.mask & choice.used and space.is_acyclic(choice.masks, pattern.mask):
                    masks = (*choice.masks, pattern.mask)
                    grown.append(_Choice(choice.gain + pattern.gain, choice.used | pattern.mask, masks))
        beam = sorted(grown, key=lambda c: (-c.gain, c.masks))[:width]
    return [c.masks for c in beam]


def climb(space: Space, masks: Sequence[int], deadline: float) -> list[int]:
    """Improve a partition by the full estimate: join neighbours, or move one atom, until nothing helps.

    `deadline` is of `time.monotonic`; behind it the partition is returned as far as it got.
    """
    partition = _Partition(space, masks)
    for _ in range(MOST_ROUNDS):
        improved = False
        for atom in bits(space.native):
            if time.monotonic() <= deadline and _try(partition, atom):
                improved = True
        if not improved:
            break
    return sorted(m for m in set(partition.home.values()) if m & (m - 1))


class _Partition:
    def __init__(self, space: Space, masks: Sequence[int]) -> None:
        self.space = space
        self.home = {i: 1 << i for i in range(len(space.atoms))}
        for mask in masks:
            self.home.update((i, mask) for i in bits(mask))

    def replace(self, old: Sequence[int], new: Sequence[int]) -> bool:
        """Put the patterns `new` in place of `old`, which hold the same atoms, if that is legal and faster."""
        space = self.space
        if not all(space.is_connected(m) and space.is_pattern(m) for m in new if m & (m - 1)):
            return False
        if sum(map(space.latency_us, new)) >= sum(map(space.latency_us, old)) * (1 - 1e-9):
            return False
        others = [m for m in dict.fromkeys(self.home.values()) if m & (m - 1) and m not in old]
        for mask in new:
            if mask & (mask - 1):
                if not space.is_acyclic(others, mask):
                    return False
                others.append(mask)
        for mask in new:
            self.home.update((i, mask) for i in bits(mask))
        return True


def _try(partition: _Partition, atom: int) -> bool:
    """Try the moves of one atom: its kernel joins a neighbour's, it changes to a neighbour's, or it leaves."""
    space = partition.space
    improved = False
    for near in bits(space.neighbours(1 << atom)):
        mine, theirs = partition.home[atom], partition.home[near]
        if mine == theirs:
            continue
        moves: list[tuple[int, ...]] = [(mine | theirs,)]
        if mine & ~(1 << atom):
            moves.append((mine & ~(1 << atom), theirs | 1 << atom))
        improved |= any(partition.replace((mine, theirs), move) for move in moves)
    mine = partition.home[atom]
    if mine & (mine - 1) and partition.replace((mine,), (mine & ~(1 << atom), 1 << atom)):
        improved = True
    return improved
