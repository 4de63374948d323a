"""Tile-level synchronisation of dependent kernels of a plan: chains of them, or all kernels of a model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.stages import Kernels
from tilestitch.passes.plan import WhyNot
from tilestitch.passes.plan.launches.cuda.group import ticketing_of

from .choose import COMPUTED_TOGETHER, Chain, Chooser, TiedGroup
from .policies import Wanted


def synchronise_whole(chooser: Chooser) -> Iterator[WhyNot]:
    """Put all eligible kernels into as few launches as possible, whose blocks draw tiles; yield those that cannot be
    included, and why.

    Steps that cannot be part of such a launch, such as host steps, lie between launches: kernels that depend on them
    come after, and all others before, so that the number of launches is one more than that of such steps on the longest
    path.
    """
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
    """Return why a kernel cannot be part of a launch whose blocks draw tiles; None if it can."""
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
    """Return, in dependence order, the number of the launch that each kernel is in, or of the preceding one for steps
    in none; -1 if none precedes.
    """
    kernels, level = chooser.kernels, dict[str, int]()
    outside = {name for name in kernels.order if name in refused or name not in kernels.groups}
    for name in kernels.order:
        own = name in outside
        after = (level[p] + (p in outside and not own) for p in kernels.producers[name])
        level[name] = max(after, default=-1 if own else 0)
    return level


def _between(chooser: Chooser, levels: Mapping[str, int]) -> Iterator[WhyNot]:
    """Yield the host steps between two launches."""
    kernels = chooser.kernels
    reason = "it is computed on the host; kernels that need it are launched after it"
    for host in kernels.host_groups:
        if levels[host.name] >= 0 and any(name in kernels.groups for name in kernels.readers[host.name]):
            yield WhyNot(host.name, "sync.host", reason)


def _losing(chooser: Chooser, names: Sequence[str], found: TiedGroup) -> Iterator[WhyNot]:
    """Yield the prediction against a requested launch, if it is slower."""
    apart_us = sum(chooser.kernels.latency_us(chooser.kernels.groups[name], chooser.model) for name in names)
    if found.latency_us > apart_us:
        numbers = {"apart_us": round(apart_us, 3), "together_us": round(found.latency_us, 3)}
        yield WhyNot(found.group.name, "sync.gain", "it was asked for, but is predicted to be slower", numbers)


def _tied(chooser: Chooser, names: Sequence[str]) -> Iterator[WhyNot]:
    """Tie the kernels in one launch, or recursively in two where that is impossible; yield the refusals."""
    group = chooser.kernels.groups[names[0]] if len(names) == 1 else None
    if not names or (group is not None and not group.stages):
        return
    found = chooser.tied(names)
    if not isinstance(found, WhyNot):
        yield from _losing(chooser, names, found)
        chooser.kernels.replace(found.group)
        return
    yield found
    if len(names) > 1:
        yield from _tied(chooser, names[: len(names) // 2])
        yield from _tied(chooser, names[len(names) // 2 :])


def synchronise(graph: Graph, kernels: Kernels, wanted: Wanted, model: LatencyModel) -> Iterator[WhyNot]:
    """Tie chains of scheduled `kernels`; yield what was refused, and why."""
    chooser = Chooser(graph, kernels, wanted, model)
    if wanted.whole:
        yield from synchronise_whole(chooser)
        return
    yield from _in_order(chooser) if wanted.forced else _best_first(chooser)


def _in_order(chooser: Chooser) -> Iterator[WhyNot]:
    """Tie every possible chain, from the first kernel on; yield the refusals."""
    kernels = chooser.kernels
    for name in list(kernels.order):
        if name not in kernels.groups:
            continue
        chain, refusals = chooser.grow(name)
        yield from refusals
        if chain is not None:
            kernels.replace(chain.tied.group)


def _best_first(chooser: Chooser) -> Iterator[WhyNot]:
    """Tie, among overlapping chains that pay, the one that saves most first, so that each kernel follows its
    predecessor tile by tile or as a whole, whichever is better overall; yield the refusals.
    """
    kernels = chooser.kernels
    grown: dict[str, Chain | None] = {}
    refusals: dict[tuple[str, str, str], WhyNot] = {}
    while True:
        for name in kernels.order:
            if name in kernels.groups and name not in grown:
                grown[name], more = chooser.grow(name)
                refusals.update({(why.subject, why.rule, why.reason): why for why in more})
        best = max((c for c in grown.values() if c is not None), key=lambda chain: chain.saved_us, default=None)
        if best is None:
            break
        if not chooser.fits(best):
            del grown[best.names[0]]
            continue
        kernels.replace(best.tied.group)
        taken = set(best.names)
        grown[best.tied.group.name] = None
        grown = {
            name: chain for name, chain in grown.items()
            if name not in taken and not (chain and taken & set(chain.names))
        }  # fmt: skip
    yield from refusals.values()
