"""Beam search for sets of disjoint patterns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilestitch.passes.fusion.search.space import Pattern, Space


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
