"""A whole model in one launch whose blocks draw tiles, or in as few as can be.

What cannot be part of such a launch, host steps among it, lies between launches: kernels that need it come after it,
and all others before, so that there is one launch more than the longest path has of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilestitch.passes.plan import WhyNot
from tilestitch.passes.plan.launches.cuda.group import ticketing_of

from .choose import COMPUTED_TOGETHER, Chooser, Drawn


def synchronise_whole(chooser: Chooser) -> Iterator[WhyNot]:
    """Put all kernels that can be in as few launches as possible; yields what cannot, and why."""
    refused = {name: why for name in chooser.kernels.groups if (why := _why_alone(chooser, name)) is not None}
    yield from refused.values()
    for names in _launches(chooser, set(refused)):
        yield from _tied(chooser, names)


def _why_alone(chooser: Chooser, name: str) -> WhyNot | None:
    """Why a kernel is no part of any launch whose blocks draw tiles; None if it can be."""
    kernels = chooser.kernels
    group = kernels.groups[name]
    if not any(part.schedule for part in (group, *group.parts)):
        return WhyNot(name, "sync.part", f"{name} has no schedule of tilestitch's, or stores nothing")
    parts = [chooser.drawable(part, group.tie in COMPUTED_TOGETHER) for part in group.parts or (group,)]
    alone = replace(group, stages=tuple((part,) for part in parts))
    problem = ticketing_of(kernels.nodes, alone).why_not(chooser.device.shared_bytes_per_block)
    return None if problem is None else WhyNot(name, "sync.part", problem)


def _launches(chooser: Chooser, refused: set[str]) -> list[list[str]]:
    """The kernels of each launch, in an order that dependences allow."""
    kernels, level, launches = chooser.kernels, dict[str, int](), list[list[str]]()
    for name in kernels.order:
        alone = name in refused or name not in kernels.groups
        level[name] = max(
            (level[p] + ((p in refused or p not in kernels.groups) and not alone) for p in kernels.producers[name]),
            default=0,
        )
        if not alone:
            launches += [[] for _ in range(level[name] + 1 - len(launches))]
            launches[level[name]].append(name)
    return launches


def _losing(chooser: Chooser, names: Sequence[str], found: Drawn) -> Iterator[WhyNot]:
    """What speaks against a launch that was asked for, if anything does."""
    apart_us = sum(chooser.kernels.latency_us(chooser.kernels.groups[name], chooser.model) for name in names)
    if found.latency_us > apart_us:
        numbers = {"apart_us": round(apart_us, 3), "together_us": round(found.latency_us, 3)}
        yield WhyNot(found.group.name, "sync.gain", "it was asked for, but is predicted to be slower", numbers)


def _tied(chooser: Chooser, names: Sequence[str]) -> Iterator[WhyNot]:
    """Kernels in one launch, or in two where one cannot be, and so on."""
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
