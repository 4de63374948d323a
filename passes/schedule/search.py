"""Search for CPU schedules better than those of the rules, guided by a learned latency model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from tilestitch.compiler.ir import Graph, Node
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up

from .cpu.facts import cpu_facts
from .device import device_of
from .structure import structure_of
from .variants import variants

MOST_STEPS = 6
WORK = 4000
"""Schedules that are evaluated where no time limit is given."""
RULE = "schedule.search"
SHARE = 0.002
"""Least fraction of the total predicted time for a kernel to be searched; others keep the rules' schedules."""


@dataclass
class _Budget:
    """The end of the search: after a number of evaluated schedules, or after `seconds` if given."""

    seconds: float | None
    ends_s: float
    work: int = 0

    @staticmethod
    def of(seconds: float | None) -> _Budget:
        return _Budget(seconds, inf if seconds is None else time.monotonic() + seconds)

    @property
    def is_spent(self) -> bool:
        return self.work >= WORK if self.seconds is None else time.monotonic() > self.ends_s


@dataclass(frozen=True)
class Searched:
    """The groups with the schedules found, and remarks on the search."""

    groups: tuple[Group, ...]
    remarks: tuple[WhyNot, ...] = ()


def search_schedules(
    graph: Graph,
    groups: Sequence[Group],
    target: TargetInfo,
    model: LatencyModel,
    judged: Mapping[str, float],
    budget_s: float | None = None,
) -> Searched:
    """Return the groups with schedules found by steepest descent: each step takes the predicted fastest schedule among
    those that differ in one choice.

    judged: templates whose schedules `model` can compare, with the relative gain that must be predicted for a schedule
    to replace that of the rules; other templates are unchanged. The longest kernels come first; those of one structure
    get the same schedule. After `budget_s` seconds (None: after `WORK` evaluated schedules, the same on every machine),
    or when the user interrupts, the best found so far is returned, with a remark.
    """
    budget = _Budget.of(budget_s)
    nodes = {node.name: node for node in graph.nodes}
    device = device_of(target)
    alone = [g for g in groups if not g.stages and g.schedule is not None and g.schedule.template in judged]
    latencies = _predicted(nodes, alone, target, model, device)
    alike = _alike(nodes, alone, latencies, target)
    total_us = sum(latencies)
    found: dict[str, Schedule] = {}
    remarks: tuple[WhyNot, ...] = ()
    try:
        for us, members in sorted(alike, key=lambda pair: (-pair[0], pair[1][0].name)):
            if us < SHARE * total_us:
                break
            if budget.is_spent:
                remarks = (_ended(graph, budget, len(found)),)
                break
            schedule = _climbed(nodes, members[0], target, model, device, judged, budget)
            found.update((group.name, schedule) for group in members)
    except KeyboardInterrupt:
        remarks = (
            WhyNot(graph.name, RULE, "an interrupt ended the search for schedules; another run may find others"),
        )
    changed = tuple(replace(group, schedule=found.get(group.name, group.schedule)) for group in groups)
    return Searched(changed, remarks)


def _ended(graph: Graph, budget: _Budget, done: int) -> WhyNot:
    if budget.seconds is None:
        reason = "so many schedules were looked at, and no more; `--plan-budget` gives seconds instead"
        return WhyNot(graph.name, RULE, reason, {"schedules": budget.work, "kernels_done": done})
    reason = "the budget ended the search for schedules; another run may find others"
    return WhyNot(graph.name, RULE, reason, {"budget_s": budget.seconds, "kernels_done": done})


def _alike(
    nodes: Mapping[str, Node], groups: Sequence[Group], latencies: Sequence[float], target: TargetInfo
) -> list[tuple[float, list[Group]]]:
    """Return the groups by structure, each with the total time of its members."""
    found: dict[object, tuple[float, list[Group]]] = {}
    for group, us in zip(groups, latencies, strict=True):
        structure = structure_of(nodes, group, target)
        key = group.name if structure is None else structure.key
        before, members = found.get(key, (0.0, []))
        found[key] = before + us, [*members, group]
    return list(found.values())


def _climbed(
    nodes: Mapping[str, Node],
    group: Group,
    target: TargetInfo,
    model: LatencyModel,
    device: AnyDevice,
    judged: Mapping[str, float],
    budget: _Budget,
) -> Schedule:
    assert group.schedule is not None
    view, roles = look_up(nodes, group), _roles(nodes, group)
    seen, best = {group.schedule}, group.schedule
    first_us = best_us = _predicted(nodes, [group], target, model, device)[0]
    for _ in range(MOST_STEPS):
        others = [one for one in variants(view, group.kind, roles, best) if one not in seen]
        if not others or budget.is_spent:
            break
        seen.update(others)
        budget.work += len(others)
        tried = [replace(group, schedule=one) for one in others]
        us, place = min((us, at) for at, us in enumerate(_predicted(nodes, tried, target, model, device)))
        if us >= best_us:
            break
        best, best_us = others[place], us
    return best if best_us <= (1 - judged[best.template]) * first_us else group.schedule


def _predicted(
    nodes: Mapping[str, Node], groups: Sequence[Group], target: TargetInfo, model: LatencyModel, device: AnyDevice
) -> list[float]:
    isa = target.core
    kernels = [cpu_facts(nodes, group, _roles(nodes, group), isa) for group in groups]
    return [prediction.latency_us for prediction in model.predict(kernels, device)]


def _roles(nodes: Mapping[str, Node], group: Group) -> Roles:
    view = look_up(nodes, group)
    roles = roles_of(view.nodes, view.outputs, view.name)
    assert isinstance(roles, Roles), roles
    return roles
