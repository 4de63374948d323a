"""Register tiles and evenly split extents: the building blocks of contractions on CPUs."""

from dataclasses import dataclass
from math import gcd

from tilestitch.compiler.ir.errors import UndecidedError
from tilestitch.compiler.ir.sizes import Size, bounds_of, ceil_div, is_open, largest

LINE_BYTES = 64
"""Bytes of a cache line."""
SAME_SET_BYTES = 4096
"""Lines this far apart map to the same set of a first-level cache of 64 sets, as on x86 cores."""
SET_LINES = 8
"""Lines per cache set; 12 on some cores."""


@dataclass(frozen=True)
class RegisterTile:
    """`rows` x (`vectors` * `lanes`) accumulators."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Split:
    """`extent` split into `parts` runs whose sizes differ by at most one; the larger ones come first."""

    extent: int
    parts: int

    @property
    def small(self) -> int:
        return self.extent // self.parts

    @property
    def larger_parts(self) -> int:
        return self.extent % self.parts

    @property
    def largest(self) -> int:
        return self.small + (self.larger_parts > 0)

    def sizes(self) -> list[tuple[int, int]]:
        """Return (size, number of parts with that size), for the sizes that occur."""
        both = [(self.small + 1, self.larger_parts), (self.small, self.parts - self.larger_parts)]
        return [(size, count) for size, count in both if count]

    def all_sizes(self) -> list[int]:
        """Return the sizes of the parts in order."""
        return [self.small + (part < self.larger_parts) for part in range(self.parts)]


LOW = 8
"""From this many rows on, a tile's time per row hardly improves."""


@dataclass(frozen=True)
class OpenSplit(Split):
    """An extent of open size split into parts of `limit`. The remainder comes in `large_pieces`, each present or not,
    and then, being less than twice `LOW`, in one piece of up to `LOW` or in two that are as equal as possible.
    """

    limit: int

    @property
    def small(self) -> int:
        return self.limit

    @property
    def larger_parts(self) -> int:
        return 0

    @property
    def largest(self) -> int:
        return self.limit

    @property
    def whole_parts(self) -> Size:
        return self.extent // self.limit

    @property
    def large_pieces(self) -> list[int]:
        """Powers of two, in descending order."""
        return [1 << bit for bit in reversed(range((self.limit - 1).bit_length())) if 1 << bit >= 2 * LOW]

    @property
    def low_pieces(self) -> list[int]:
        return list(range(min(LOW, self.limit - 1), 0, -1))

    def sizes(self) -> list[tuple[int, int]]:
        return [(size, 1) for size in dict.fromkeys((self.limit, *self.large_pieces, *self.low_pieces))]

    def all_sizes(self) -> list[int]:
        raise UndecidedError(f"the number of parts of {self.extent}")


FEW = 4
"""Rows of a small block of an `OverlappingSplit`."""


@dataclass(frozen=True)
class OverlappingSplit(OpenSplit):
    """An extent of open size split into parts of `limit`. A remainder repeats elements before it, to be one more part,
    or a few of `FEW`; single ones are left only where there are fewer than that. So there is code for three sizes.
    """

    def sizes(self) -> list[tuple[int, int]]:
        return [(size, 1) for size in dict.fromkeys((self.limit, min(self.limit, FEW), 1))]


@dataclass(frozen=True)
class EvenSplit(Split):
    """An extent of open size split as evenly as a known one: parts may have any size up to `limit`."""

    limit: int

    @property
    def small(self) -> Size:
        return self.extent // self.parts

    @property
    def larger_parts(self) -> Size:
        return self.extent % self.parts

    @property
    def largest(self) -> int:
        return self.limit

    def sizes(self) -> list[tuple[int, int]]:
        return [(size, 1) for size in range(self._least, self.limit + 1)]

    @property
    def _least(self) -> int:
        """The smallest part over all extents in range: that of the shortest, or of the first that has one part more."""
        shortest = max(1, bounds_of(self.extent)[0])
        parts = -(-shortest // self.limit)
        return min(shortest // parts, (parts * self.limit + 1) // (parts + 1))

    def all_sizes(self) -> list[int]:
        raise UndecidedError(f"the sizes of the parts of {self.extent}")


def split_evenly(extent: Size, limit: int) -> Split:
    """Return an extent split as by `split_at_most`, but evenly for open ones too: there is code for every size of a
    part.
    """
    if is_open(extent):
        return EvenSplit(extent, largest(1, ceil_div(extent, limit)), limit)
    return split_at_most(extent, limit)


def split_at_most(extent: int, limit: int) -> Split:
    """Split `extent` into as few nearly equal parts as possible, none above `limit`."""
    if is_open(extent):
        return OpenSplit(extent, ceil_div(extent, limit), limit)
    return Split(extent, max(1, -(-extent // limit)))


def meet_in_a_set(streams: int, stride_bytes: Size) -> bool:
    """Return whether streams this far apart exceed what a set of the first-level cache holds, counting other reads
    too.
    """
    return streams > SET_LINES and not is_open(stride_bytes) and stride_bytes % SAME_SET_BYTES == 0


def lines_kept(stride_bytes: int) -> int:
    """Return how many lines this far apart the first-level cache keeps: those of the sets that they meet."""
    return SET_LINES * (SAME_SET_BYTES // gcd(SAME_SET_BYTES, max(stride_bytes, LINE_BYTES)))


def align(size_bytes: Size) -> Size:
    """Round up to whole cache lines."""
    return ceil_div(size_bytes, LINE_BYTES) * LINE_BYTES
