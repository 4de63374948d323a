"""Dependences between launches: those that access the same memory are ordered, unless both only read it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.buffers import BufferPlan, TemporaryBuffer
from tilestitch.passes.plan.launches.launch import Edge, Launch
from tilestitch.passes.plan.stitch_plan import Segment

FAR = 1 << 62
"""Beyond all bytes."""


class Region(NamedTuple):
    """Bytes `start` to `end` of a separate memory, such as the arena or one heap array."""

    memory: str
    start: int
    end: int


@dataclass(frozen=True)
class Accesses:
    """The reads and writes of one launch, by the name of the value or temporary; a region may be in both. overlaps:
    distances back to the launches that it may run concurrently with, as in `Launch`.
    """

    reads: tuple[tuple[str, Region], ...]
    writes: tuple[tuple[str, Region], ...]
    overlaps: tuple[int, ...] = ()


class Memory:
    """The memory locations of a plan's values and temporaries."""

    def __init__(self, graph: Graph, buffers: BufferPlan) -> None:
        self._values = {v.name: v for v in (*graph.inputs, *(o for n in graph.nodes for o in n.outputs))}
        self._aliases, self._places = buffers.aliases, buffers.places
        self._arena = {b.value: b for b in buffers.buffers}
        self._temporaries = {(t.group, t.name): t for t in buffers.temporaries}
        self._first = next((t.offset_bytes for t in buffers.temporaries), 0)
        self._open = buffers.is_open
        """Whether memory consists of slots, each for whole values, so that locations have no order."""

    def accesses(self, launch: Launch) -> Accesses:
        """Return the regions that a launch reads and writes."""
        reads = [(name, self._region(name)) for name in launch.reads]
        writes = [(name, self._region(name)) for name in launch.writes]
        for temporary in launch.temporaries:
            placed = self._temporaries[launch.group, temporary.name]
            writes.append((temporary.name, self._region_of(placed)))
        return Accesses(tuple(reads), tuple(writes), launch.overlaps)

    def _region_of(self, placed: TemporaryBuffer) -> Region:
        """Return where a temporary is: in open memory relative to the first one."""
        if not self._open:
            return Region("arena", placed.offset_bytes, placed.end)
        start = placed.offset_bytes - self._first
        return Region("temporaries", *((-FAR, FAR) if is_open(start) else (start, start + placed.nbytes)))

    def _region(self, name: str) -> Region:
        root = self._aliases.get(name, name)
        place = self._places.get(root)
        if place is not None:
            start = self._arena[place.whole].offset_bytes + place.offset_bytes
            return Region("arena", start, start + self._values[root].tensor_type.nbytes)
        buffer = self._arena.get(root)
        if buffer is not None and self._open:
            return Region(f"arena {buffer.offset_bytes}", 0, 1)
        if buffer is not None:
            return Region("arena", buffer.offset_bytes, buffer.offset_bytes + buffer.nbytes)
        return Region(f"%{root}", 0, 1)


@dataclass
class _Piece:
    """A range of bytes, with the launch that last wrote it and those that have read it since."""

    start: int
    end: int
    writer: int | None = None
    readers: list[int] = field(default_factory=list)


class _Contents:
    """One memory as an ordered list of ranges with uniform access; bytes in no range were never accessed."""

    def __init__(self) -> None:
        self.pieces: list[_Piece] = []

    def covered(self, start: int, end: int) -> list[_Piece]:
        """Return the ranges covering exactly these bytes, split at the ends and created where missing."""
        self._cut(start)
        self._cut(end)
        first = bisect_left(self.pieces, start, key=lambda p: p.start)
        last = bisect_left(self.pieces, end, key=lambda p: p.start)
        found, at = [], start
        for piece in self.pieces[first:last]:
            if at < piece.start:
                found.append(_Piece(at, piece.start))
            found.append(piece)
            at = piece.end
        if at < end:
            found.append(_Piece(at, end))
        self.pieces[first:last] = found
        return found

    def overwrite(self, start: int, end: int, launch: int) -> None:
        """Replace the covered ranges with a single one written by `launch`."""
        if start == end:
            return
        self._cut(start)
        self._cut(end)
        first = bisect_left(self.pieces, start, key=lambda p: p.start)
        last = bisect_left(self.pieces, end, key=lambda p: p.start)
        self.pieces[first:last] = [_Piece(start, end, launch)]

    def _cut(self, at: int) -> None:
        number = bisect_right(self.pieces, at, key=lambda p: p.start) - 1
        if number < 0 or not self.pieces[number].start < at < self.pieces[number].end:
            return
        piece = self.pieces[number]
        rest = _Piece(at, piece.end, piece.writer, list(piece.readers))
        piece.end = at
        self.pieces.insert(number + 1, rest)


def dependences(launches: Sequence[Accesses]) -> Iterator[Edge]:
    """Yield the edges between launches, by number, without those implied by others.

    Launches not connected by a chain of edges may run in any order, or concurrently, with the same effect on memory.
    Launches that declare that they overlap are connected by programmatic edges, and wait for each other's tiles.
    """
    memories: dict[str, _Contents] = {}
    ended = Ended()
    for number, accesses in enumerate(launches):
        before = _before(memories, accesses)
        tied = {number - place for place in accesses.overlaps} & set(before)
        kept = [*_nearest(set(before) - tied, ended), *tied]
        edges = [Edge(n, number, "programmatic" if n in tied else "full", before[n]) for n in sorted(kept)]
        yield from edges
        ended.add(edges)
        _remember(memories, accesses, number)


class Ended:
    """For each launch, which launches have certainly ended, with all their writes visible, when it begins, as sets of
    bits: the sources of its full edges, and what had ended before those did. A launch after a programmatic edge waits
    for its predecessor only at its own end; what that predecessor had waited for need not be visible to it.
    """

    def __init__(self) -> None:
        self.at_start: list[int] = []
        self._at_end: list[int] = []

    def add(self, incoming: Iterable[Edge]) -> None:
        """Add the next launch, given the edges that lead to it."""
        start = end = 0
        for edge in incoming:
            start |= self.with_(edge.before) if edge.kind == "full" else 0
            end |= self.with_(edge.before)
        self.at_start.append(start)
        self._at_end.append(end)

    def with_(self, number: int) -> int:
        """Return the set of launch `number` and all that have ended when it has."""
        return self._at_end[number] | 1 << number


def _before(memories: dict[str, _Contents], accesses: Accesses) -> dict[int, str]:
    """Return the launches to wait for, each with the reason: to read what it has written, or to reuse its memory."""
    found: dict[int, str] = {}
    for name, region in accesses.reads:
        for piece in memories.setdefault(region.memory, _Contents()).covered(region.start, region.end):
            if piece.writer is not None:
                found.setdefault(piece.writer, f"%{name}")
    for name, region in accesses.writes:
        for piece in memories.setdefault(region.memory, _Contents()).covered(region.start, region.end):
            for other in (piece.writer, *piece.readers):
                if other is not None:
                    found.setdefault(other, f"memory of %{name}")
    return found


def _nearest(before: Iterable[int], ended: Ended) -> list[int]:
    """Return those of `before`, in order, that are not already known to have ended once the others have."""
    above = 0
    nearest = []
    for other in sorted(before, reverse=True):
        if not above >> other & 1:
            nearest.append(other)
            above |= ended.with_(other)
    return nearest[::-1]


def _remember(memories: dict[str, _Contents], accesses: Accesses, number: int) -> None:
    for _, region in accesses.writes:
        memories[region.memory].overwrite(region.start, region.end, number)
    for _, region in accesses.reads:
        for piece in memories[region.memory].covered(region.start, region.end):
            piece.readers.append(number)


def unordered(launches: Sequence[Accesses], edges: Sequence[Edge]) -> Edge | None:
    """Return a dependence that `edges` (all of them, by number) do not enforce; None if there is none."""
    incoming: dict[int, list[Edge]] = {}
    for edge in edges:
        incoming.setdefault(edge.after, []).append(edge)
    ended = Ended()
    begun: list[int] = []  # for each launch, the set (as bits) of those whose blocks have begun when it does
    for number in range(len(launches)):
        ended.add(incoming.get(number, ()))
        begun.append(reduce(int.__or__, (begun[e.before] | 1 << e.before for e in incoming.get(number, ())), 0))
    kept = {"full": ended.at_start, "programmatic": begun}
    return next((edge for edge in dependences(launches) if not kept[edge.kind][edge.after] >> edge.before & 1), None)


def shared_memory(launches: Sequence[Accesses]) -> tuple[int, int, str] | None:
    """Return two launches that may run concurrently, and a name by which the later one would access memory of the other
    that has another name there; None if there are none. Accesses under the same name are ordered by tiles.
    """
    for number, later in enumerate(launches):
        for earlier in (number - place for place in later.overlaps):
            mine, its = [*later.reads, *later.writes], [*launches[earlier].reads, *launches[earlier].writes]
            written = {*later.writes, *launches[earlier].writes}
            for name, region in mine:
                for other, theirs in its:
                    touch = region.memory == theirs.memory and region.start < theirs.end and theirs.start < region.end
                    if name != other and touch and ({(name, region), (other, theirs)} & written):
                        return earlier, number, name
    return None


def edges_of(
    graph: Graph, launches: Sequence[Launch], segments: Sequence[Segment], buffers: BufferPlan
) -> tuple[Edge, ...]:
    """Return the edges of a plan's launch graph. Segments are ordered anyway."""
    memory = Memory(graph, buffers)
    return tuple(
        replace(edge, before=edge.before + first, after=edge.after + first)
        for first, end in segment_ranges(launches, segments)
        for edge in dependences([memory.accesses(launch) for launch in launches[first:end]])
    )


def segment_ranges(launches: Sequence[Launch], segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Yield the first and one past the last launch number of each native segment."""
    first = 0
    for groups in (set(segment.groups) for segment in segments if segment.native):
        end = first
        while end < len(launches) and launches[end].group in groups:
            end += 1
        yield first, end
        first = end
