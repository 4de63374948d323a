"""Differences between two plans: decisions only, by the names of groups and fields."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .stitch_plan import StitchPlan

NO_DECISIONS = frozenset({"refusals", "stitches", "origins", "fingerprint", "plugins", "format", "version"})


def differences(before: StitchPlan | None, after: StitchPlan | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, value before, value after) of every decision that differs; None where one plan has no such value.

    Groups are matched by name, so that an additional group is one line. Where there is only one plan, that is one line
    as well: the path `plan`, and its number of kernels.
    """
    if before is None or after is None:
        old, new = (None if plan is None else f"{plan.kernel_count} kernels" for plan in (before, after))
        yield "plan", old, new
        return
    yield from _between("", _told_apart(before), _told_apart(after))


def _told_apart(plan: StitchPlan) -> dict[str, Any]:
    """Return a plan as JSON data, with launches named after their groups, and edges by the names of launches."""
    data = plan.to_json()
    counts: Counter[str] = Counter()
    names: list[str] = []
    for launch in plan.launches or ():
        names.append(f"{launch.group}.{counts[launch.group]}")
        counts[launch.group] += 1
    data["launches"] = dict(zip(names, data["launches"] or (), strict=True))
    data["edges"] = {
        f"{_launch(names, e.before)} -> {_launch(names, e.after)}": [e.kind, e.reason] for e in plan.edges or ()
    }
    data["buffers"]["temporaries"] = {f"{t.group}.{t.name}": t.to_json()[2:] for t in plan.buffers.temporaries}
    data["bodies"] = {key: _told_apart(body) for key, body in plan.bodies.items()}
    return data


def _launch(names: Sequence[str], number: int) -> str:
    """Return the name of a launch; its number where an edited plan has no such launch."""
    return names[number] if number < len(names) else f"launch {number}"


def _between(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            if key not in NO_DECISIONS:
                yield from _between(f"{path}.{key}" if path else str(key), before.get(key), after.get(key))
        return
    old, new = _named(before), _named(after)
    if old is not None and new is not None:
        for name in dict.fromkeys((*old, *new)):
            yield from _between(f"{path}[{name}]", old.get(name), new.get(name))
        return
    yield path, before, after


def _named(data: Any) -> dict[str, Any] | None:
    """Return a list of named objects, or of buffers, as a mapping by name; None for other data."""
    if not isinstance(data, Sequence) or isinstance(data, str):
        return None
    if all(isinstance(item, Mapping) and "name" in item for item in data):
        return {item["name"]: item for item in data}
    if data and all(isinstance(item, list) and item and isinstance(item[0], str) for item in data):
        return {item[0]: item[1:] for item in data}
    return None
