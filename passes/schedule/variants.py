"""Schedules that differ from a given one in one choice: the neighbourhood of a search over schedules."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.parts import Roles
from tilestitch.passes.plan.schedule_check import why_not
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.view import GroupView

from .cpu.choices import WORDS

GIVEN = frozenset({"extents", "reduced", "tiled", "cuts", "branch", "branches", "parts", "pieces", "inserts"})
"""Fields determined by the kernel, or on which other fields depend."""
FEW = 16
"""Up to this, numbers are stepped through one by one, as rows of register tiles are; beyond they double."""


def variants(view: GroupView, kind: GroupKind, roles: Roles, schedule: Schedule) -> list[Schedule]:
    """Return the schedules one step from `schedule` that the templates can emit, in a fixed order."""
    return [other for other in dict.fromkeys(steps(schedule)) if why_not(view, kind, roles, other) is None]


def steps(schedule: Any) -> Iterator[Any]:
    """Yield schedules that differ in one choice, whether or not a template can emit them."""
    for field in fields(schedule):
        if field.name in GIVEN:
            continue
        value = getattr(schedule, field.name)
        for other in _others(field.name, value):
            yield replace(schedule, **{field.name: other})


def _others(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        near = {value + 1, value - 1} if value <= FEW else set()
        yield from sorted({2 * value, value // 2, *near} - {value, 0, -1})
    elif isinstance(value, str):
        yield from (word for word in WORDS.get(name, ()) if word != value)
    elif isinstance(value, tuple):
        yield from (value[:place] + value[place + 1 :] for place in range(len(value)))
    elif is_dataclass(value):
        yield from steps(value)
