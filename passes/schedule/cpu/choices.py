"""The numbers of a schedule and of its shape, by name, as features for latency models."""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from tilestitch.cost_model.facts import Choices

WORDS = {"form": ("across", "channels", "columns", "line")}
"""Fields with string values, and these values: each is a flag, such as `schedule.form.line`."""
MOST_OF_A_LIST = 3
"""Number of last entries of a list that are named; extents are counted from the last dimension."""


def choices_of(**parts: Any) -> Choices:
    """Return integers, flags and `WORDS` in dataclasses, each named after its field: `schedule.rows`, `shape.kernel.0`
    (the last).
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
    """Return the same string object each time: a model that looks up thousands of names compares them by identity."""
    return f"{name}.{part}"


@cache
def _flags(name: str) -> tuple[tuple[str, str], ...]:
    """Return the values of a string field, and the names of their flags."""
    return tuple((word, _within(name, word)) for word in WORDS.get(name.rpartition(".")[2], ()))


@cache
def _fields(name: str, kind: Any) -> tuple[tuple[str, str], ...]:
    """Return the fields of a dataclass, and the names of their numbers."""
    return tuple((field.name, _within(name, field.name)) for field in fields(kind))
