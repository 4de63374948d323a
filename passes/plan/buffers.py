"""Memory planning: one arena, in which values with disjoint live ranges share memory.

With open sizes a plan has to be valid for all of them: values share memory either from their common first byte and at
disjoint times, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

from tilestitch.compiler.ir.proofs import is_at_most
from tilestitch.compiler.ir.sizes import Size, Symbol, at, ceil_div, divisor_of, is_open, over
from tilestitch.passes.errors import PlanError
from tilestitch.runtime.jsonfields import Fields, string

from .open_sizes import open_size, with_empty

ALIGNMENT = 64


def aligned(nbytes: Size) -> Size:
    """Return a number of bytes rounded up to `ALIGNMENT`."""
    return ceil_div(nbytes, ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Buffer:
    """A value in the arena: `nbytes` at `offset_bytes`, alive from launch `first` to launch `last`.

    Both launches are included; they are counted over all segments.
    """

    value: str
    offset_bytes: Size
    nbytes: Size
    first: int
    last: int

    def to_json(self) -> list[Any]:
        return [self.value, self.offset_bytes, self.nbytes, self.first, self.last]

    @staticmethod
    def from_json(data: Any, where: str = "buffer") -> Buffer:
        if not (
            isinstance(data, list)
            and len(data) == 5
            and isinstance(data[0], str)
            and all(isinstance(n, str) or (type(n) is int and n >= 0) for n in data[1:3])
            and all(type(n) is int and n >= 0 for n in data[3:])
        ):
            raise PlanError(f"{where} is not [value, offset_bytes, nbytes, first, last]")
        offset = open_size(data[1], f"{where}.offset_bytes of {data[0]}", may_be_empty=True)
        return Buffer(data[0], offset, open_size(data[2], f"{where}.nbytes of {data[0]}"), *data[3:])


@dataclass(frozen=True)
class Place:
    """A part of the memory of the value `whole`, beginning at `offset_bytes`."""

    whole: str
    offset_bytes: int


@dataclass(frozen=True)
class TemporaryBuffer:
    """A temporary of a group's launches, placed after all values in the arena."""

    group: str
    name: str
    offset_bytes: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset_bytes + self.nbytes

    def to_json(self) -> list[Any]:
        return [self.group, self.name, self.offset_bytes, self.nbytes]

    @staticmethod
    def from_json(data: Any, where: str = "temporary") -> TemporaryBuffer:
        if not (
            isinstance(data, list)
            and len(data) == 4
            and all(isinstance(name, str) for name in data[:2])
            and (isinstance(data[2], str) or (type(data[2]) is int and data[2] >= 0))
            and type(data[3]) is int
            and data[3] >= 0
        ):
            raise PlanError(f"{where} is not [group, name, offset_bytes, nbytes]")
        offset = open_size(data[2], f"{where}.offset_bytes of {data[0]}.{data[1]}", may_be_empty=True)
        return TemporaryBuffer(data[0], data[1], offset, data[3])


@dataclass(frozen=True)
class BufferPlan:
    """One arena with reuse. Values that are graph outputs, or that a host step reads or writes, are not in it."""

    arena_bytes: int = 0
    buffers: tuple[Buffer, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    temporaries: tuple[TemporaryBuffer, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the arena consists of slots, each for whole values, whose sizes or offsets may be expressions."""
        return any(is_open(n) for b in self.buffers for n in (b.nbytes, b.offset_bytes)) or is_open(self.arena_bytes)

    def __post_init__(self) -> None:
        if len({b.value for b in self.buffers}) != len(self.buffers):
            raise PlanError("a value has two buffers")
        if any(root in self.aliases for root in self.aliases.values()):
            raise PlanError("the root of an alias is an alias itself")
        if any(b.first > b.last for b in self.buffers):
            raise PlanError("a buffer is needed until before it is")
        if self.is_open:
            return  # what overlaps then depends on the symbols: `open_buffers`
        for b in self.buffers:
            if b.offset_bytes % ALIGNMENT or b.offset_bytes + b.nbytes > self.arena_bytes:
                raise PlanError(
                    f"buffer {b.value}: {b.nbytes} bytes at {b.offset_bytes}, launches {b.first} to {b.last}, "
                    f"do not fit an arena of {self.arena_bytes}"
                )
        _check_no_overlap(self.buffers)
        self._check_temporaries()

    def _check_temporaries(self) -> None:
        values_end = max((b.offset_bytes + b.nbytes for b in self.buffers), default=0)
        groups: dict[str, list[TemporaryBuffer]] = {}
        for t in self.temporaries:
            if t.offset_bytes % ALIGNMENT or t.end > self.arena_bytes or t.offset_bytes < values_end:
                raise PlanError(
                    f"temporary {t.name} of {t.group}: {t.nbytes} bytes at {t.offset_bytes} do not fit between the "
                    f"values, which end at {values_end}, and the end of the arena at {self.arena_bytes}"
                )
            groups.setdefault(t.group, []).append(t)
        for name, own in groups.items():
            ordered = sorted(own, key=lambda t: t.offset_bytes)
            if any(a.end > b.offset_bytes for a, b in pairwise(ordered)) or len({t.name for t in own}) != len(own):
                raise PlanError(f"temporaries of {name} overlap, or have one name")

    def offset_of(self, value: str) -> int | None:
        """Return the offset of `value` in the arena; None if it is not there."""
        return next((b.offset_bytes for b in self.buffers if b.value == value), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "arena_bytes": self.arena_bytes,
            "buffers": [b.to_json() for b in self.buffers],
            "aliases": dict(self.aliases),
            "places": {part: [place.whole, place.offset_bytes] for part, place in self.places.items()},
            "temporaries": [t.to_json() for t in self.temporaries],
        }

    @staticmethod
    def from_json(data: Any, where: str = "buffers") -> BufferPlan:
        fields = Fields(data, where)
        aliases = {k: string(v, f"{where}.aliases") for k, v in fields.mapping("aliases").items()}
        places = {k: _place_from_json(v, f"{where}.places[{k!r}]") for k, v in fields.mapping("places").items()}
        temporaries = fields.sequence("temporaries", TemporaryBuffer.from_json)
        buffers = fields.sequence("buffers", Buffer.from_json)
        arena_bytes = open_size(fields.take("arena_bytes"), f"{where}.arena_bytes", may_be_empty=True)
        plan = BufferPlan(arena_bytes, buffers, aliases, places, temporaries)
        fields.done()
        return plan


def _place_from_json(data: Any, where: str) -> Place:
    if not (isinstance(data, list) and len(data) == 2 and isinstance(data[0], str) and type(data[1]) is int):
        raise PlanError(f"{where} is not [whole, offset_bytes]")
    return Place(*data)


def wholes_of(places: Mapping[str, Place]) -> dict[str, tuple[str, ...]]:
    """Return the parts of each whole, ordered by offset."""
    found: dict[str, list[str]] = {}
    for part in sorted(places, key=lambda name: (places[name].whole, places[name].offset_bytes)):
        found.setdefault(places[part].whole, []).append(part)
    return {whole: tuple(parts) for whole, parts in found.items()}


def _check_no_overlap(buffers: tuple[Buffer, ...]) -> None:
    """Check that no buffers overlap, by a sweep over launches that compares those alive together. Raises PlanError on
    the first overlap.
    """
    alive: list[Buffer] = []
    for b in sorted(buffers, key=lambda b: b.first):
        alive = [a for a in alive if a.last >= b.first]
        for a in alive:
            if (
                a.nbytes
                and b.nbytes
                and a.offset_bytes < b.offset_bytes + b.nbytes
                and b.offset_bytes < a.offset_bytes + a.nbytes
            ):
                raise PlanError(f"buffers of {a.value} and {b.value} overlap in place and time")
        alive.append(b)


SHORT, LONG = 3, 1 << 16
"""Sizes at which offsets are ordered, where ranges allow them."""


def why_not_apart(buffers: BufferPlan, symbols: Sequence[Symbol]) -> str | None:
    """Return why values may overlap, or exceed the arena, for some sizes of these symbols; None if they never do."""
    return next(_reasons(buffers, symbols), None)


def _reasons(buffers: BufferPlan, symbols: Sequence[Symbol]) -> Iterator[str]:
    empty, points = with_empty(symbols), _points(symbols)

    def typical(size: Size) -> list[int]:
        """Return a sort key under which no offset that always begins earlier comes later."""
        return [int(at(size, point)) for point in points]

    slots: dict[Size, list[Buffer]] = {}
    for buffer in buffers.buffers:
        slots.setdefault(buffer.offset_bytes, []).append(buffer)
    for odd in (o for o in (*slots, *(t.offset_bytes for t in buffers.temporaries)) if divisor_of(o) % ALIGNMENT):
        yield f"memory begins at {odd}, which is no multiple of {ALIGNMENT} at all sizes"
    for inside in slots.values():
        for a, b in combinations(inside, 2):
            if a.first <= b.last and b.first <= a.last and a.nbytes != 0 and b.nbytes != 0:
                yield f"buffers of {a.value} and {b.value} overlap in place and time"
    temporaries = min((t.offset_bytes for t in buffers.temporaries), key=typical, default=buffers.arena_bytes)
    starts = sorted(slots, key=typical)
    for start, end in pairwise([*starts, temporaries]):
        for b in slots[start]:
            if not is_at_most(start + over(b.nbytes, empty), end):
                yield (
                    f"the buffer of {b.value}, {b.nbytes} bytes at {start}, is not shown to end by {end} at all "
                    f"sizes, where {'the arena ends' if end is buffers.arena_bytes else 'other memory begins'}"
                )
    yield from _temporaries(buffers, temporaries)


def _points(symbols: Sequence[Symbol]) -> list[dict[str, int]]:
    """Return sample sizes of all symbols, large ones first."""
    return [
        {s.name: max(s.low, min(wanted + number, s.high)) for number, s in enumerate(symbols)}
        for wanted in (LONG, SHORT, 1)
    ]


def _temporaries(buffers: BufferPlan, first: Size) -> Iterator[str]:
    """Yield why temporaries do not lie after all values, or overlap within a group."""
    for t in buffers.temporaries:
        if not is_at_most(first, t.offset_bytes) or not is_at_most(t.end, buffers.arena_bytes):
            yield (
                f"temporary {t.name} of {t.group}: {t.nbytes} bytes at {t.offset_bytes} are not shown to fit between "
                f"the values and the end of the arena at {buffers.arena_bytes}"
            )
    for a, b in combinations(buffers.temporaries, 2):
        apart = is_at_most(a.end, b.offset_bytes) or is_at_most(b.end, a.offset_bytes)
        if a.group == b.group and (a.name == b.name or not apart):
            yield f"temporaries of {a.group} overlap, or have one name"
