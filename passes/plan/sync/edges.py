"""How the blocks of one kernel wait for those of another, tile by tile: semaphores, posts and waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import Any, ClassVar

from tilestitch.compiler.ir.indexing import ravel

MOST_POSTS = 1 << 31
"""Limit for the posts of a semaphore per run: below it, differences of 32-bit counters are exact even after
wrap-around.
"""


@dataclass(frozen=True)
class Grouping:
    """`size` tiles along a dimension of the producer, each `group` neighbours of which share a semaphore.

    modulus: if not 0, tiles a multiple of it apart share theirs, too.
    """

    template: ClassVar[str] = "grouping"
    size: int
    group: int = 1
    modulus: int = 0

    @property
    def count(self) -> int:
        """Semaphores along the dimension."""
        return ceil(min(self.size, self.modulus or self.size) / self.group)

    def of(self, tile: Any) -> Any:
        """Return the semaphore of a tile."""
        within = tile % self.modulus if self.modulus else tile
        return within // self.group if self.group > 1 else within

    def posts(self, semaphore: int) -> int:
        """Return the number of tiles that share a semaphore."""
        if self.modulus:
            return self.group * (self.size // self.modulus)
        return min(self.group, self.size - semaphore * self.group)

    @property
    def even(self) -> bool:
        """Whether every semaphore is shared by the same number of tiles."""
        return self.size % (self.modulus or self.group) == 0 and (self.modulus or self.size) % self.group == 0

    def why_not(self) -> str | None:
        """Return why it is no valid grouping; None if it is one."""
        if not all(isinstance(number, int) for number in (self.size, self.group, self.modulus)):
            return f"{self.size} tiles, {self.modulus} apart, in groups of {self.group} are no whole numbers"
        if self.size < 1 or self.group < 1:
            return f"{self.size} tiles in groups of {self.group}"
        if self.modulus < 0:
            return f"tiles that lie {self.modulus} apart"
        if self.modulus and (self.size % self.modulus or self.modulus % self.group):
            return f"{self.size} tiles, {self.modulus} apart, in groups of {self.group}: they do not divide each other"
        return None


@dataclass(frozen=True)
class Bound:
    """A semaphore along one dimension, by the coordinates of the consumer's tile:
    `(sum of scale * coordinate + first - before) // divisor`, clamped to the dimension.
    """

    template: ClassVar[str] = "bound"
    scales: tuple[int, ...]
    first: int
    before: int
    divisor: int

    def at(self, place: Sequence[Any]) -> Any:
        return self.dividend(place) // self.divisor

    def dividend(self, place: Sequence[Any]) -> Any:
        terms = (at if scale == 1 else at * scale for scale, at in zip(self.scales, place, strict=True) if scale)
        return sum(terms, self.first - self.before)

    def why_not(self, place: Sequence[int]) -> str | None:
        """Return why a kernel cannot compute it for tiles of a grid with these extents; None if it can."""
        if len(self.scales) != len(place):
            return f"a bound has {len(self.scales)} scales for {len(place)} coordinates"
        if self.divisor < 1:
            return "a bound divides by 0"
        terms = (abs(scale) * at for scale, at in zip(self.scales, place, strict=True))
        most = sum(terms, abs(self.first) + abs(self.before))
        return f"a bound reaches {most}, beyond 32 bits" if most + self.divisor >= MOST_POSTS else None

    @property
    def constant(self) -> int | None:
        """The semaphore, if it is the same for all tiles; else None."""
        return None if any(self.scales) else (self.first - self.before) // self.divisor


@dataclass(frozen=True)
class TileEdge:
    """Tiles of part number `consumer` wait for tiles of part number `producer`, which comes before it.

    semaphores: along each dimension of the producer's grid; every block posts to one of them after storing its tile.
    first, last: a tile of the consumer waits until these and all between, dimension by dimension, have received all
    posts. policy: the name of the policy that chose this, for information.
    """

    template: ClassVar[str] = "tile_edge"
    producer: int
    consumer: int
    policy: str
    semaphores: tuple[Grouping, ...]
    first: tuple[Bound, ...]
    last: tuple[Bound, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(grouping.count for grouping in self.semaphores)

    @property
    def count(self) -> int:
        return prod(self.counts)

    def post(self, place: Sequence[int]) -> int:
        """Return the number of the semaphore that a tile of the producer posts."""
        found: int = ravel([g.of(at) for g, at in zip(self.semaphores, place, strict=True)], self.counts)
        return found

    def posts(self, semaphore: Sequence[int]) -> int:
        """Return the number of posts that a semaphore receives per run."""
        return prod(g.posts(at) for g, at in zip(self.semaphores, semaphore, strict=True))

    def waits(self, place: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Return the semaphores that a tile of the consumer waits for, by their position along each dimension."""
        ends = zip(self.first, self.last, self.counts, strict=True)
        return product(*(range(_inside(f.at(place), n), _inside(e.at(place), n) + 1) for f, e, n in ends))

    @property
    def none_along(self) -> int | None:
        """A dimension along which no tile waits for any semaphore, whatever its coordinates; None if there is none."""
        for axis, (first, last, count) in enumerate(zip(self.first, self.last, self.counts, strict=True)):
            known = (first.constant, last.constant)
            if None not in known and _inside(known[0] or 0, count) > _inside(known[1] or 0, count):
                return axis
        return None

    def number(self, semaphore: Sequence[int]) -> int:
        found: int = ravel(semaphore, self.counts)
        return found


def _inside(at: int, count: int) -> int:
    return min(max(0, at), count - 1)


def semaphores_at(edges: Sequence[TileEdge]) -> tuple[dict[tuple[int, tuple[Grouping, ...]], int], int]:
    """Return where the semaphores of each (producer, groupings) begin, and their total number; edges with equal keys
    share them.
    """
    starts: dict[tuple[int, tuple[Grouping, ...]], int] = {}
    total = 0
    for edge in edges:
        key = edge.producer, edge.semaphores
        if key not in starts:
            starts[key] = total
            total += edge.count
    return starts, total
