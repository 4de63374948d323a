"""The numbers of a schedule and of the shape that it is for, by name: what a latency model may learn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

WORDS = {"form": ("across", "channels", "columns", "line")}
"""Fields that are words, and the words that there are: each is a flag, `schedule.form.line`."""
MOST_OF_A_LIST = 3
"""Last entries of a list that have names; extents are counted from the last dimension."""


def choices_of(**parts: Any) -> tuple[tuple[str, int], ...]:
    """Integers, flags and `WORDS` in dataclasses, each named after its field: `schedule.rows`, `shape.kernel.0` (the
    last).
    """
    return tuple(pair for name, data in parts.items() for pair in _numbers(name, data))


def _numbers(name: str, data: Any) -> Iterator[tuple[str, int]]:
    if isinstance(data, int):
        yield name, int(data)
    elif isinstance(data, str):
        yield from ((f"{name}.{word}", int(word == data)) for word in WORDS.get(name.rpartition(".")[2], ()))
    elif isinstance(data, tuple):
        for place, entry in enumerate(reversed(data[-MOST_OF_A_LIST:])):
            yield from _numbers(f"{name}.{place}", entry)
    elif is_dataclass(data):
        for field in fields(data):
            yield from _numbers(f"{name}.{field.name}", getattr(data, field.name))
