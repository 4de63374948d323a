"""Patterns, and sets of disjoint ones.

PatternReduction: for every atom, the few most promising patterns that begin or end with it.

FusionStitching (arXiv 2009.10924, section 5.2). Atoms are visited from the outputs backwards; the patterns of an atom
are combined from those of its readers. To avoid all combinations of all readers, two readers at a time are combined,
the best k are kept, and pairs are combined further. The same is done from the inputs forwards with producers in place
of readers, since a kernel with several producers begins with none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilestitch.passes.fusion.bitsets import bits
from tilestitch.passes.fusion.search.space import Budget, Pattern, Space


class OutOfBudget(Exception):
    """The budget is used up; results so far are in `found`."""

    def __init__(self, found: dict[int, Pattern]) -> None:
        super().__init__()
        self.found = found


def candidates(space: Space, k: int, budget: Budget) -> list[Pattern]:
    """Return the patterns of more than one atom that PatternReduction finds, each once, deterministically.

    Raises OutOfBudget when `budget` is spent.
    """
    found: dict[int, Pattern] = {}
    _reduce(space, list(reversed(range(len(space.atoms)))), space.after, k, budget, found)
    _reduce(space, list(range(len(space.atoms))), space.before, k, budget, found)
    return list(found.values())


def _reduce(
    space: Space, order: Sequence[int], onwards: Sequence[int], k: int, budget: Budget, found: dict[int, Pattern]
) -> None:
    best: dict[int, list[int]] = {}
    for atom in order:
        if not space.native >> atom & 1:
            continue
        if budget.is_spent:
            raise OutOfBudget(found)
        start = 1 << atom
        options = [[1 << n, *best[n]] for n in bits(onwards[atom] & space.native)]
        masks = _combine(space, start, options, k)
        best[atom] = masks
        found.update((m, Pattern(m, space.gain(m))) for m in masks if m not in found)


def _combine(space: Space, start: int, options: Sequence[Sequence[int]], k: int) -> list[int]:
    """Return the best k patterns of `start` with at most one of each of `options`: first pairs, then pairs of pairs."""
    if not options:
        return []
    level = [list(o) for o in options]
    if len(level) == 1:
        return _best(space, start, level[0], [0], k)
    while len(level) > 1:
        pairs = [(level[i], level[i + 1] if i + 1 < len(level) else []) for i in range(0, len(level), 2)]
        level = [_best(space, start, [0, *a], [0, *b], k) for a, b in pairs]
    return level[0]


def _best(space: Space, start: int, first: Sequence[int], second: Sequence[int], k: int) -> list[int]:
    unions = {start | a | b for a in first for b in second} - {start}
    legal = [m for m in unions if space.is_pattern(m)]
    return sorted(legal, key=lambda m: (-space.gain(m), m))[:k]


@dataclass(frozen=True)
class _Choice:
    gain: float = 0.0
    used: int = 0
    masks: tuple[int, ...] = ()


def beam_search(space: Space, patterns: Iterable[Pattern], width: int) -> list[tuple[int, ...]]:
    """Return the best `width` sets of disjoint patterns by the sum of their quick scores, best first.

    Atoms are visited from producers to consumers; at each, every set may add one pattern that begins with it.
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
