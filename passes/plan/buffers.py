"""Where values live: one arena, in which values that are not needed at the same time share memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilestitch.passes.errors import PlanError
from tilestitch.runtime.jsonfields import Fields, string

ALIGNMENT = 64


@dataclass(frozen=True)
class Buffer:
    """A value in the arena: `nbytes` at `offset_bytes`, alive from launch `first` to launch `last`.

    Both launches are included; they are counted over all segments.
    """

    value: str
    offset_bytes: int
    nbytes: int
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
            and all(type(n) is int and n >= 0 for n in data[1:])
        ):
            raise PlanError(f"{where} is not [value, offset_bytes, nbytes, first, last]")
        return Buffer(*data)


@dataclass(frozen=True)
class Place:
    """A part of the memory of the value `whole`, from `offset_bytes` on."""

    whole: str
    offset_bytes: int


@dataclass(frozen=True)
class BufferPlan:
    """One arena with reuse. Values that are graph outputs, or that a host step reads or writes, are not in it."""

    arena_bytes: int = 0
    buffers: tuple[Buffer, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for b in self.buffers:
            if b.offset_bytes % ALIGNMENT or b.offset_bytes + b.nbytes > self.arena_bytes or b.first > b.last:
                raise PlanError(
                    f"buffer {b.value}: {b.nbytes} bytes at {b.offset_bytes}, launches {b.first} to {b.last}, "
                    f"do not fit an arena of {self.arena_bytes}"
                )
        if len({b.value for b in self.buffers}) != len(self.buffers):
            raise PlanError("a value has two buffers")
        if any(root in self.aliases for root in self.aliases.values()):
            raise PlanError("the root of an alias is an alias itself")
        _check_no_overlap(self.buffers)

    def offset_of(self, value: str) -> int | None:
        """Where `value` lies in the arena, None if it does not."""
        return next((b.offset_bytes for b in self.buffers if b.value == value), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "arena_bytes": self.arena_bytes,
            "buffers": [b.to_json() for b in self.buffers],
            "aliases": dict(self.aliases),
            "places": {part: [place.whole, place.offset_bytes] for part, place in self.places.items()},
        }

    @staticmethod
    def from_json(data: Any, where: str = "buffers") -> BufferPlan:
        fields = Fields(data, where)
        aliases = {k: string(v, f"{where}.aliases") for k, v in fields.mapping("aliases").items()}
        places = {k: _place_from_json(v, f"{where}.places[{k!r}]") for k, v in fields.mapping("places").items()}
        plan = BufferPlan(fields.integer("arena_bytes"), fields.sequence("buffers", Buffer.from_json), aliases, places)
        fields.done()
        return plan


def _place_from_json(data: Any, where: str) -> Place:
    if not (isinstance(data, list) and len(data) == 2 and isinstance(data[0], str) and type(data[1]) is int):
        raise PlanError(f"{where} is not [whole, offset_bytes]")
    return Place(*data)


def wholes_of(places: Mapping[str, Place]) -> dict[str, tuple[str, ...]]:
    """The parts of each whole, in the order of their places."""
    found: dict[str, list[str]] = {}
    for part in sorted(places, key=lambda name: (places[name].whole, places[name].offset_bytes)):
        found.setdefault(places[part].whole, []).append(part)
    return {whole: tuple(parts) for whole, parts in found.items()}


def _check_no_overlap(buffers: tuple[Buffer, ...]) -> None:
    """Sweep over launches; only buffers alive together are compared. Raises PlanError on the first clash."""
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
