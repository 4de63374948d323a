"""The numbers of a schedule and of the shape that it is for, by name: what a latency model may learn from."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from tilestitch.cost_model.facts import Choices

WORDS = {"form": ("across", "channels", "columns", "line")}
"""Fields that are words, and the words that there are: each is a flag, `schedule.form.line`."""
MOST_OF_A_LIST = 3
"""Last entries of a list that have names; extents are counted from the last dimension."""


def choices_of(**parts: Any) -> Choices:
    """Integers, flags and `WORDS` in dataclasses, each named after its field: `schedule.rows`, `shape.kernel.0` (the
    last).
    """
    names: list[str] = []
    numbers: list[int] = []
    for name, data in parts.items():
        _add(names, numbers, name, data)
    return Choices(tuple(names), tuple(numbers))


def _add(names: list[str], numbers: list[int], name: str, data: Any) -> None:
    if isinstance(data, int):
        names.append(name)
        numbers.append(int(data))
    elif isinstance(data, str):
        for word, flag in _flags(name):
            names.append(flag)
            numbers.append(int(word == data))
    elif isinstance(data, tuple):
        for place, entry in enumerate(reversed(data[-MOST_OF_A_LIST:])):
            _add(names, numbers, _within(name, str(place)), entry)
    elif is_dataclass(data):
        kind: Any = type(data)
        for field, own in _fields(name, kind):
            _add(names, numbers, own, getattr(data, field))


@cache
def _within(name: str, part: str) -> str:
    """Return the same string each time: a model that looks names up by the thousand compares what is equal at a
    glance.
    """
    return f"{name}.{part}"


@cache
def _flags(name: str) -> tuple[tuple[str, str], ...]:
    """Return the words of a field, and the names of their flags."""
    return tuple((word, _within(name, word)) for word in WORDS.get(name.rpartition(".")[2], ()))


@cache
def _fields(name: str, kind: Any) -> tuple[tuple[str, str], ...]:
    """Return the fields of a kind of dataclass, and the names of their numbers."""
    return tuple((field.name, _within(name, field.name)) for field in fields(kind))
