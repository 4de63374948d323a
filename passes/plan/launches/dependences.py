"""Which launches must wait for which: those that touch the same memory, unless both only read it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

from tilestitch.compiler.ir import Graph
from tilestitch.passes.plan.buffers import BufferPlan
from tilestitch.passes.plan.launches.launch import Edge, Launch
from tilestitch.passes.plan.stitch_plan import Segment


class Region(NamedTuple):
    """Bytes `start` to `end` of a memory of its own, such as the arena or one array on the heap."""

    memory: str
    start: int
    end: int


@dataclass(frozen=True)
class Accesses:
    """What one launch reads and writes, by the name of the value or temporary; a region may be in both. overlaps: how
    many launches before it those are that it may run beside, as `Launch` has it.
    """

    reads: tuple[tuple[str, Region], ...]
    writes: tuple[tuple[str, Region], ...]
    overlaps: tuple[int, ...] = ()


class Memory:
    """Where the values and temporaries of a plan lie."""

    def __init__(self, graph: Graph, buffers: BufferPlan) -> None:
        self._values = {v.name: v for v in (*graph.inputs, *(o for n in graph.nodes for o in n.outputs))}
        self._aliases, self._places = buffers.aliases, buffers.places
        self._arena = {b.value: b for b in buffers.buffers}
        self._temporaries = {(t.group, t.name): t for t in buffers.temporaries}
        self._open = buffers.is_open
        """Whether memory is slots, each for whole values: where they lie has no order."""

    def accesses(self, launch: Launch) -> Accesses:
        """Return where a launch reads and writes."""
        reads = [(name, self._region(name)) for name in launch.reads]
        writes = [(name, self._region(name)) for name in launch.writes]
        for temporary in launch.temporaries:
            placed = self._temporaries[launch.group, temporary.name]
            end = placed.offset_bytes + placed.nbytes
            region = Region("temporaries", 0, 1) if self._open else Region("arena", placed.offset_bytes, end)
            writes.append((temporary.name, region))
        return Accesses(tuple(reads), tuple(writes), launch.overlaps)

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
    """A run of bytes: the launch that wrote it last, and those that have read it since."""

    start: int
    end: int
    writer: int | None = None
    readers: list[int] = field(default_factory=list)


class _Contents:
    """One memory, cut into pieces that are in order and touched alike; bytes in no piece were never touched."""

    def __init__(self) -> None:
        self.pieces: list[_Piece] = []

    def covered(self, start: int, end: int) -> list[_Piece]:
        """Return the pieces of exactly these bytes, cut out and filled up where there are none."""
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
        """What was covered is one piece that `launch` has written."""
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
    """Edges between launches, by their numbers, without those that follow from others.

    Launches that no chain of edges connects may run in any order, or at the same time, and leave the same memory. Those
    that overlap by their own account are tied by programmatic edges, and wait for each other's tiles.
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
    """Which launches have surely ended, with all that they wrote visible, when each begins, as sets of bits: those at
    the beginning of a full edge, and what had ended when they did. A launch after a programmatic edge waits at its own
    end for the one before it; that this had waited for others says nothing of what the later one sees.
    """

    def __init__(self) -> None:
        self.at_start: list[int] = []
        self._at_end: list[int] = []

    def add(self, incoming: Iterable[Edge]) -> None:
        """The next launch, by the edges that lead to it."""
        start = end = 0
        for edge in incoming:
            start |= self.with_(edge.before) if edge.kind == "full" else 0
            end |= self.with_(edge.before)
        self.at_start.append(start)
        self._at_end.append(end)

    def with_(self, number: int) -> int:
        """Launch `number`, and all that have ended when it has."""
        return self._at_end[number] | 1 << number


def _before(memories: dict[str, _Contents], accesses: Accesses) -> dict[int, str]:
    """Return the launches to wait for, and for whose sake: to read what one has written, or to use its memory again."""
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
    """Return those of `before` that have not ended anyway when others of them have, in order."""
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
    """Return a dependence of launches that `edges` (all of them, by numbers) do not keep; None if they keep all."""
    incoming: dict[int, list[Edge]] = {}
    for edge in edges:
        incoming.setdefault(edge.after, []).append(edge)
    ended = Ended()
    begun: list[int] = []  # of each launch, those whose blocks have begun when it does, as a set of bits
    for number in range(len(launches)):
        ended.add(incoming.get(number, ()))
        begun.append(reduce(int.__or__, (begun[e.before] | 1 << e.before for e in incoming.get(number, ())), 0))
    kept = {"full": ended.at_start, "programmatic": begun}
    return next((edge for edge in dependences(launches) if not kept[edge.kind][edge.after] >> edge.before & 1), None)


def shared_memory(launches: Sequence[Accesses]) -> tuple[int, int, str] | None:
    """Two launches that may run side by side, and what the later one would write or read over the other's memory by
    another name; None if there are none. What has one name, tiles wait for.
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
    """Return the edges of the launch graph of a plan. Segments follow each other anyway."""
    memory = Memory(graph, buffers)
    return tuple(
        replace(edge, before=edge.before + first, after=edge.after + first)
        for first, end in segment_ranges(launches, segments)
        for edge in dependences([memory.accesses(launch) for launch in launches[first:end]])
    )


def segment_ranges(launches: Sequence[Launch], segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the launches of each native segment: the first, and the one after the last."""
    first = 0
    for groups in (set(segment.groups) for segment in segments if segment.native):
        end = first
        while end < len(launches) and launches[end].group in groups:
            end += 1
        yield first, end
        first = end
