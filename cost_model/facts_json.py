"""Kernels as JSON data: lists of their contents, without defaults."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from .errors import MeasurementError
from .facts import Arithmetic, Choices, KernelFacts, Launch, Part, Tail, Traffic

LISTS: Mapping[str, Callable[[Any], Any]] = {
    "reads": lambda data: Traffic(*data), "writes": lambda data: Traffic(*data),
    "arithmetic": lambda data: Arithmetic(*data),
}  # fmt: skip
"""Fields of a part that are lists, and how an entry is read."""
DEFAULTS = {field.name: field.default for field in fields(Part)}


def facts_to_json(kernel: KernelFacts) -> list[dict[str, Any]]:
    """Return the launches of a kernel as JSON data."""
    return [
        {"stages": [[_part(part) for part in stage] for stage in launch.stages], "tie": launch.tie,
         "blocks": launch.blocks}
        for launch in kernel.sequence
    ]  # fmt: skip


def facts_from_json(data: Any) -> KernelFacts:
    """Return the kernel in JSON data. Raises MeasurementError unless `data` is as `facts_to_json` writes it."""
    try:
        launches = tuple(
            Launch(tuple(tuple(map(_part_of, stage)) for stage in one["stages"]), one["tie"], one["blocks"])
            for one in data
        )
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        raise MeasurementError(f"a record's kernel is not what this version writes ({error}); measure again") from None
    if not launches or not all(launch.stages and all(launch.stages) for launch in launches):
        raise MeasurementError("a record's kernel has no launches, or an empty one; measure again")
    return KernelFacts(launches)


def facts_key(kernel: KernelFacts) -> str:
    """Return a key that is equal for kernels which differ only in the names of their tensors."""
    numbers: dict[str, str] = {}
    named = kernel.renamed(lambda name: numbers.setdefault(name, str(len(numbers))))
    return digest_of(facts_to_json(named))


def digest_of(data: Any) -> str:
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _part(part: Part) -> dict[str, Any]:
    found = {}
    for name, default in DEFAULTS.items():
        value = getattr(part, name)
        if value == default:
            continue
        if isinstance(value, Choices):
            value = [list(pair) for pair in zip(*value, strict=True)]
        elif name in LISTS:
            value = [list(_plain(entry)) for entry in value]
        elif isinstance(value, Tail):
            value = list(_plain(value))
        found[name] = value
    return found


def _plain(entry: Any) -> Sequence[Any]:
    return entry if isinstance(entry, tuple) else [getattr(entry, field.name) for field in fields(entry)]


def _part_of(data: Mapping[str, Any]) -> Part:
    given = dict(data)
    for name, make in LISTS.items():
        if name in given:
            given[name] = tuple(map(make, given[name]))
    if "choices" in given:
        pairs = [(sys.intern(name), int(number)) for name, number in given["choices"]]
        given["choices"] = Choices(*zip(*pairs, strict=True))
    if given.get("tail") is not None:
        given["tail"] = Tail(*given["tail"])
    return Part(**given)
