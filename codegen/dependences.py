"""Which launches must wait for which: those that touch the same memory, unless both only read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Region(NamedTuple):
    """Bytes `start` to `end` of a memory of its own, such as the arena or one array on the heap."""

    memory: str
    start: int
    end: int


@dataclass(frozen=True)
class Accesses:
    """What one launch reads and writes; a region may be in both."""

    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


@dataclass(frozen=True)
class _Access:
    region: Region
    launch: int
    write: bool


def dependences(launches: Sequence[Accesses]) -> list[tuple[int, int]]:
    """Pairs (before, after) of launch numbers, without those that follow from others.

    Launches that no chain of pairs connects may run in any order, or at the same time, and leave the same memory.
    """
    live: dict[str, list[_Access]] = {}
    ancestors: list[int] = []  # of each launch, as a set of bits
    pairs = []
    for number, accesses in enumerate(launches):
        before = {
            old.launch
            for regions, write in ((accesses.reads, False), (accesses.writes, True))
            for region in regions
            for old in live.get(region.memory, ())
            if (write or old.write) and _overlap(region, old.region)
        }
        nearest = _nearest(before, ancestors)
        pairs += [(other, number) for other in sorted(nearest)]
        reached = 0
        for other in nearest:
            reached |= ancestors[other] | 1 << other
        ancestors.append(reached)
        _remember(live, accesses, number)
    return pairs


def _overlap(a: Region, b: Region) -> bool:
    return max(a.start, b.start) < min(a.end, b.end)


def _nearest(before: Iterable[int], ancestors: Sequence[int]) -> set[int]:
    """Those of `before` that are not ancestors of another one."""
    behind = 0
    nearest = set()
    for other in sorted(before, reverse=True):
        if not behind >> other & 1:
            nearest.add(other)
            behind |= ancestors[other]
    return nearest


def _remember(live: dict[str, list[_Access]], accesses: Accesses, number: int) -> None:
    """What is overwritten as a whole need not be remembered: whoever touches it later waits for this launch."""
    for region in accesses.writes:
        olds = live.get(region.memory, [])
        kept = [old for old in olds if not (region.start <= old.region.start and old.region.end <= region.end)]
        live[region.memory] = [*kept, _Access(region, number, True)]
    for region in accesses.reads:
        live.setdefault(region.memory, []).append(_Access(region, number, False))
