"""A whole model in one launch whose blocks draw tiles, or in as few as can be.

What cannot be part of such a launch, host steps among it, lies between launches: kernels that need it come after it,
and all others before, so that there is one launch more than the longest path has of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilestitch.passes.plan import WhyNot
from tilestitch.passes.plan.launches.cuda.group import ticketing_of

from .choose import COMPUTED_TOGETHER, Chooser, Drawn


def synchronise_whole(chooser: Chooser) -> Iterator[WhyNot]:
    """Put all kernels that can be in as few launches as possible; yields what cannot, and why."""
    refused = {name: why for name in chooser.kernels.groups if (why := _why_alone(chooser, name)) is not None}
    yield from refused.values()
    levels = _levels(chooser, set(refused))
    yield from _between(chooser, levels)
    launches: dict[int, list[str]] = {}
    for name, level in levels.items():
        if name in chooser.kernels.groups and name not in refused:
            launches.setdefault(level, []).append(name)
    for level in sorted(launches):
        yield from _tied(chooser, launches[level])


def _why_alone(chooser: Chooser, name: str) -> WhyNot | None:
    """Return why a kernel is no part of any launch whose blocks draw tiles; None if it can be."""
    kernels = chooser.kernels
    group = kernels.groups[name]
    if not any(part.schedule for part in (group, *group.parts)):
        return _unscheduled(name, name)
    parts = [chooser.drawable(part, group.tie in COMPUTED_TOGETHER) for part in group.parts or (group,)]
    odd = next((part.name for part in parts if part.schedule is None), None)  # packed with one that stores something
    if odd is not None:
        return _unscheduled(name, odd)
    alone = replace(group, stages=tuple((part,) for part in parts))
    problem = ticketing_of(kernels.nodes, alone).why_not(chooser.device.shared_bytes_per_block)
    return None if problem is None else WhyNot(name, "sync.part", problem)


def _unscheduled(name: str, part: str) -> WhyNot:
    return WhyNot(name, "sync.part", f"{part} has no schedule of tilestitch's, or stores nothing")


def _levels(chooser: Chooser, refused: set[str]) -> dict[str, int]:
    """In an order that dependences allow, the number of the launch that each kernel is in, or of the one that comes
    before what is in none; -1 where none does.
    """
    kernels, level = chooser.kernels, dict[str, int]()
    outside = {name for name in kernels.order if name in refused or name not in kernels.groups}
    for name in kernels.order:
        own = name in outside
        after = (level[p] + (p in outside and not own) for p in kernels.producers[name])
        level[name] = max(after, default=-1 if own else 0)
    return level


def _between(chooser: Chooser, levels: Mapping[str, int]) -> Iterator[WhyNot]:
    """Yield the steps of the host that come after a launch and before another one."""
    kernels = chooser.kernels
    reason = "it is computed on the host; kernels that need it are launched after it"
    for host in kernels.host_groups:
        if levels[host.name] >= 0 and any(name in kernels.groups for name in kernels.readers[host.name]):
            yield WhyNot(host.name, "sync.host", reason)


def _losing(chooser: Chooser, names: Sequence[str], found: Drawn) -> Iterator[WhyNot]:
    """Yield what speaks against a launch that was asked for, if anything does."""
    apart_us = sum(chooser.kernels.latency_us(chooser.kernels.groups[name], chooser.model) for name in names)
    if found.latency_us > apart_us:
        numbers = {"apart_us": round(apart_us, 3), "together_us": round(found.latency_us, 3)}
        yield WhyNot(found.group.name, "sync.gain", "it was asked for, but is predicted to be slower", numbers)


def _tied(chooser: Chooser, names: Sequence[str]) -> Iterator[WhyNot]:
    """Yield the kernels in one launch, or in two where one cannot be, and so on."""
    group = chooser.kernels.groups[names[0]] if len(names) == 1 else None
    if not names or (group is not None and not group.stages):
        return
    found = chooser.drawn(names)
    if not isinstance(found, WhyNot):
        yield from _losing(chooser, names, found)
        chooser.kernels.replace(found.group)
        return
    yield found
    if len(names) > 1:
        yield from _tied(chooser, names[: len(names) // 2])
        yield from _tied(chooser, names[len(names) // 2 :])
