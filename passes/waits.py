"""The waits of a plan's kernels: which steps each waits for, how, and for which values; `sync` in `explain`."""

from collections.abc import Mapping, Sequence
from typing import Any

from .plan import Group, StitchPlan, wholes_of
from .plan.sync.edges import TileEdge
from .schedule.order import written

Wait = dict[str, str]


def waits_of(plan: StitchPlan) -> dict[str, list[Wait]]:
    """Return by kernel `after` (a kernel or host step), `kind` and `reason` of each wait.

    `full` is an edge between launches, and `order` the order of a CPU's kernels: both within a segment, a run of
    kernels without host steps between them. `segment`: a segment begins when everything before it has ended; a kernel
    names the earlier steps that wrote what it reads, or the last earlier step if it waits for nothing else.
    """
    found = _by_edges(plan) if plan.target.is_gpu else _in_order(plan)
    groups = {group.name: group for group in plan.groups}
    earlier: dict[str, str] = {}  # by value: the step of an earlier segment that wrote it
    wholes = wholes_of(plan.buffers.places)
    outputs = {group.name: group.outputs for group in plan.groups}
    outputs.update((group.name, group.outputs) for group in plan.host_groups)
    last = ""
    for segment in plan.segments:
        for name in segment.groups if segment.native else ():
            found[name] += _from_before(plan, groups[name], earlier, wholes, last if not found[name] else "")
        earlier.update((value, name) for name in segment.groups for value in outputs[name])
        last = segment.groups[-1]
    return found


def _by_edges(plan: StitchPlan) -> dict[str, list[Wait]]:
    """Return the waits that follow from edges; edges between launches of one kernel are internal."""
    found: dict[str, list[Wait]] = {group.name: [] for group in plan.groups}
    launches = plan.launches or ()
    for edge in plan.edges or ():
        before, after = launches[edge.before].group, launches[edge.after].group
        if before != after:
            found[after].append(_wait(before, edge.kind, edge.reason))
    return found


def _in_order(plan: StitchPlan) -> dict[str, list[Wait]]:
    """Return the waits on a CPU, where a kernel begins when the previous one has ended."""
    return {
        name: [_wait(segment.groups[place - 1], "order")] if place else []
        for segment in plan.segments if segment.native
        for place, name in enumerate(segment.groups)
    }  # fmt: skip


def _from_before(
    plan: StitchPlan, group: Group, earlier: Mapping[str, str], wholes: Mapping[str, Sequence[str]], last: str
) -> list[Wait]:
    """Return the waits for what earlier segments wrote. last: the step before the segment, if the kernel waits for no
    other.
    """
    values: dict[str, list[str]] = {}
    for value in written(group.inputs, plan.buffers.aliases, wholes):
        if value in earlier:
            values.setdefault(earlier[value], []).append(f"%{value}")
    if last and not values:
        return [_wait(last, "segment")]
    return [_wait(step, "segment", ", ".join(dict.fromkeys(names))) for step, names in values.items()]


def described_edge(parts: Sequence[Group], edge: TileEdge) -> dict[str, Any]:
    """Return what tiles of one part of a kernel wait for, as `explain` shows it. parts: the part of each launch."""
    producer, consumer = parts[edge.producer], parts[edge.consumer]
    values = [v for v in producer.outputs if producer is consumer or v in consumer.inputs]
    return {
        "producer": producer.name, "consumer": consumer.name, "policy": edge.policy,
        "values": values, "semaphores": edge.count,
        "tiles": [grouping.size for grouping in edge.semaphores],
    }  # fmt: skip


def _wait(after: str, kind: str, reason: str = "") -> Wait:
    return {"after": after, "kind": kind, "reason": reason}
