"""Transitive closure of a graph whose nodes are merged incrementally: sets of node numbers as bit masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(eq=False)
class Reach:
    """A merged set of nodes (`mask`), all that it depends on (`above`), and all that depends on it (`below`)."""

    mask: int
    above: int = 0
    below: int = 0


class Closure:
    """The reach of every node by its number; numbers are a topological order."""

    def __init__(self, before: Sequence[Iterable[int]]) -> None:
        """Compute the closure. `before`: the operands of each node."""
        self.of = [Reach(1 << number) for number in range(len(before))]
        direct = [list(numbers) for numbers in before]
        for reach, numbers in zip(self.of, direct, strict=True):
            for number in numbers:
                reach.above |= self.of[number].above | self.of[number].mask
        for reach, numbers in zip(reversed(self.of), reversed(direct), strict=True):
            for number in numbers:
                self.of[number].below |= reach.below | reach.mask

    def between(self, merged: Iterable[Reach]) -> int:
        """Return the nodes outside `merged` that would both depend on it and be needed by it if it were one node."""
        mask = above = below = 0
        for reach in merged:
            mask |= reach.mask
            above |= reach.above
            below |= reach.below
        return above & below & ~mask

    def merge(self, parts: Sequence[Reach]) -> Reach:
        """Merge `parts`. Nothing may be between them."""
        mask = above = below = 0
        for part in parts:
            mask |= part.mask
            above |= part.above
            below |= part.below
        whole = Reach(mask, above & ~mask, below & ~mask)
        for reach in self._lacking(whole.above, [(p.above, p.below | p.mask) for p in parts], below | mask):
            reach.below |= whole.below | mask
        for reach in self._lacking(whole.below, [(p.below, p.above | p.mask) for p in parts], above | mask):
            reach.above |= whole.above | mask
        self._put(whole)
        return whole

    def _lacking(self, around: int, parts: Sequence[tuple[int, int]], everything: int) -> Iterable[Reach]:
        """Yield what is `around` a merged node, but on this side of no part on whose other side `everything` was
        already.

        `parts`: for each, the nodes on this side, and on the other side with itself. Whatever is on this side of all
        parts has everything on the other.
        """
        beside_all = around
        for near, far in parts:
            beside_all &= near
            if not everything & ~far:
                around &= ~near
        around &= ~beside_all
        while around:
            reach = self.of[(around & -around).bit_length() - 1]
            around &= ~reach.mask
            yield reach

    def _put(self, whole: Reach) -> None:
        mask = whole.mask
        while mask:
            low = mask & -mask
            self.of[low.bit_length() - 1] = whole
            mask ^= low
