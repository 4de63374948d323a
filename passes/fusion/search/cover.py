"""A complete plan during search: which atoms are stored, by which kernel, and what each kernel computes accordingly.

A stored atom is computed by one kernel. One that is not stored is computed by every kernel with a reader of it; several
such kernels recompute it. So a plan is the set of stored atoms, partitioned into kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilestitch.passes.fusion.bitsets import bits, mask_of
from tilestitch.passes.fusion.search.space import Space

LEAST_GAIN = 1e-9
"""Relative gain, of the latency of what changes, below which a change counts as noise."""

MOVE, KERNEL_OF_MOVE = 1 / 8, 1 / 64
"""Work of examining a move, and each kernel that it changes, if these are in the cache."""


@dataclass(frozen=True)
class Move:
    """Kernels that store `new` instead of those that store `old`.

    Atoms of `old` in none of `new` are no longer stored; atoms of `new` in none of `old` now are.
    """

    old: tuple[int, ...]
    new: tuple[int, ...]


@dataclass(frozen=True)
class _Change:
    """Effect of a move: removed kernels, new ones and what they compute, and all atoms stored afterwards."""

    gone: set[int]
    made: dict[int, int]
    stored: int


class Cover:
    """Kernels by what they store, their *part* (disjoint sets of atoms), with what they compute."""

    def __init__(self, space: Space, patterns: Iterable[int]) -> None:
        """Initialise with disjoint `patterns`; other atoms are alone."""
        self.space = space
        masks = list(patterns)
        taken = 0
        for mask in masks:
            taken |= mask
        masks += [1 << i for i in bits(space.everything & ~taken)]
        parts = [space.border(m) or m for m in masks]
        self.stored = sum(parts)
        self.touched = 0
        """Atoms of kernels that changes made; for callers to reset."""
        self.kernels: dict[int, int] = {}
        self.home: dict[int, int] = {}
        self.computing: dict[int, frozenset[int]] = dict.fromkeys(range(len(space.atoms)), frozenset())
        for part in parts:
            self._add(part, self._computed(part, self.stored))

    def copy(self) -> Cover:
        """Return an independent copy."""
        other = object.__new__(Cover)
        other.space, other.stored, other.touched = self.space, self.stored, self.touched
        other.kernels, other.home, other.computing = dict(self.kernels), dict(self.home), dict(self.computing)
        return other

    @property
    def total_us(self) -> float:
        """The full estimate of all kernels."""
        return sum(self.space.latency_us(mask, part) for part, mask in sorted(self.kernels.items()))

    @property
    def key(self) -> tuple[tuple[int, int], ...]:
        """Identity of the plan."""
        return tuple(sorted(self.kernels.items()))

    # -- looking -------------------------------------------------------------------------------------------------

    def readers(self, atom: int) -> list[int]:
        """Return the kernels that compute a reader of an atom, but not the atom."""
        found = {part for r in bits(self.space.after[atom]) for part in self.computing[r]}
        return sorted(found - self.computing[atom])

    def beside(self, atom: int) -> list[int]:
        """Return the kernels that store what an atom reads, or compute a reader of it, but not the atom."""
        near = {self.home[i] for i in bits(self.space.before[atom] & self.stored)} | set(self.readers(atom))
        return sorted(near - self.computing[atom])

    def neighbours(self, part: int) -> list[int]:
        """Return the kernels that store what a kernel reads, read what it stores, or compute something that it
        computes, too.
        """
        mask = self.kernels[part]
        near = {self.home[i] for i in bits(self._reads(mask))}
        near.update(other for i in bits(mask & ~self.stored) for other in self.computing[i])
        near.update(other for i in bits(part) for other in self.readers(i))
        return sorted(near - {part})

    def _computed(self, part: int, stored: int) -> int:
        """Return the atoms of `part` and all that these need and is not `stored`."""
        before, missing = self.space.before, ~stored
        mask = frontier = part
        while frontier:
            near = 0
            for i in bits(frontier):
                near |= before[i]
            frontier = near & missing & ~mask
            mask |= frontier
        return mask

    def _reads(self, mask: int) -> int:
        found = 0
        for i in bits(mask):
            found |= self.space.before[i]
        return found & ~mask

    # -- changing ------------------------------------------------------------------------------------------------

    def change(self, move: Move, *, forced: bool = False) -> bool:
        """Make a move if it is legal and (unless `forced`) faster. Returns whether it was made."""
        change = self._change(move)
        if change is None:
            return False
        if not (forced or self._is_faster(change)) or not self._is_ordered(change):
            return False
        for part in change.gone:
            for i in bits(self.kernels.pop(part)):
                self.computing[i] -= {part}
        self.stored = change.stored
        for part, mask in change.made.items():
            self._add(part, mask)
            self.touched |= mask
        return True

    def change_us(self, move: Move) -> float | None:
        """Return the microseconds that a move would add; None if it is illegal."""
        change = self._change(move)
        return -self._saved_us(change) if change is not None and self._is_ordered(change) else None

    def _is_faster(self, change: _Change) -> bool:
        """Return whether a change gains anything. Schedules are chosen only if it might."""
        before, least = self._before_us(change), self.space.at_least_us
        if sum(least(mask, part) for part, mask in sorted(change.made.items())) >= before:
            return False
        after = self._after_us(change)
        return before - after > LEAST_GAIN * after

    def _saved_us(self, change: _Change) -> float:
        return self._before_us(change) - self._after_us(change)

    def _before_us(self, change: _Change) -> float:
        return sum(self.space.latency_us(self.kernels[part], part) for part in sorted(change.gone))

    def _after_us(self, change: _Change) -> float:
        return sum(self.space.latency_us(mask, part) for part, mask in sorted(change.made.items()))

    def _add(self, part: int, mask: int) -> None:
        self.kernels[part] = mask
        for i in bits(part):
            self.home[i] = part
        for i in bits(mask):
            self.computing[i] |= {part}

    def _change(self, move: Move) -> _Change | None:
        """Return the effect of a move; None if it is illegal."""
        space, old, new = self.space, set(move.old), [part for part in move.new if part]
        before, after = sum(old), sum(new)
        if before & ~after & (space.results | ~space.native) or not old <= self.kernels.keys():
            return None
        stored = self.stored & ~before | after
        made = {part: self._computed(part, stored) for part in new}
        space.work += MOVE + KERNEL_OF_MOVE * len(made)
        # All kernels that read an atom change with it, and may be many: other reasons for illegality are checked first.
        if not all(self._may_be_kernel(mask, part) for part, mask in made.items()):
            return None
        gone = set(old)
        for i in bits(before ^ after):
            gone |= self.computing[i]
            for r in bits(space.after[i]):
                gone |= self.computing[r]
        made |= {part: self._computed(part, stored) for part in sorted(gone - old)}
        space.work += KERNEL_OF_MOVE * (len(made) - len(new))
        needed = self._needed(gone, made, stored)
        if needed is None:
            return None
        only_once = ~space.copyable & self._repeated(gone, made)
        for part, mask in made.items():
            if (mask & (mask - 1) and not space.is_kernel(mask, part)) or mask & only_once:
                return None
        return _Change(gone, made, needed)

    def _may_be_kernel(self, mask: int, part: int) -> bool:
        """Return whether a kernel may compute `mask` and store what others need of `part`."""
        kept = self._kept(mask, part)
        return not kept or not mask & (mask - 1) or self.space.is_kernel(mask, kept)

    def _kept(self, mask: int, part: int) -> int:
        """Return the atoms of `part` that are results, or have readers that a kernel which computes `mask` does not."""
        after, kept = self.space.after, part & (self.space.results | ~self.space.native)
        return kept | mask_of(i for i in bits(part & ~kept) if after[i] & ~mask)

    def _repeated(self, gone: set[int], made: Mapping[int, int]) -> int:
        """Return the atoms of `made` that several kernels compute after a change."""
        once = twice = 0
        for mask in made.values():
            twice |= once & mask
            once |= mask
        return twice | mask_of(i for i in bits(once & ~twice) if not self.computing[i] <= gone)

    def _computed_elsewhere(self, atom: int, gone: set[int], made: Mapping[int, int]) -> bool:
        """Return whether a remaining kernel, or one of `made`, computes an atom."""
        return not self.computing[atom] <= gone or any(mask >> atom & 1 for mask in made.values())

    def _needed(self, gone: set[int], made: dict[int, int], stored: int) -> int | None:
        """Stop the kernels of `made` from storing what they alone read; returns what is stored then.

        None where a kernel would store an atom and compute all its readers, which others compute as well.
        """
        after = self.space.after
        for part in list(made):
            mask = made.pop(part)
            kept = self._kept(mask, part)
            readers = (r for i in bits(part & ~kept) for r in bits(after[i]))
            if any(self._computed_elsewhere(r, gone, made) for r in readers):
                return None
            if kept != part:
                stored &= ~(part & ~kept)
            if kept:
                made[kept] = mask
        return stored

    def _is_ordered(self, change: _Change) -> bool:
        """Return whether no new kernel depends on itself."""
        home = {i: part for part in change.made for i in bits(part)}
        for part, mask in change.made.items():
            seen, frontier = 0, self._reads(mask)
            while frontier:
                if frontier & part:
                    return False
                seen |= frontier
                near = 0
                for other in {home[i] if i in home else self.home[i] for i in bits(frontier)}:
                    near |= self._reads(change.made[other] if other in change.made else self.kernels[other])
                frontier = near & ~seen
        return True


def placing(cover: Cover, pattern: int) -> Move:
    """Return the move that makes a pattern a kernel: others store its operands, and compute what remains to them."""
    space, read = cover.space, 0
    for i in bits(pattern):
        read |= space.before[i]
    old: dict[int, int] = {}
    for i in bits(pattern & cover.stored):
        old.setdefault(cover.home[i], cover.home[i] & ~pattern)
    for i in bits(read & ~pattern & ~cover.stored):
        part = min(cover.computing[i])
        old[part] = old.get(part, part & ~pattern) | 1 << i
    return Move(tuple(sorted(old)), (space.border(pattern), *(m for _, m in sorted(old.items()))))
