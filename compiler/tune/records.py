"""Records of the kernels of a plan, from their times in a model."""

import json
from collections.abc import Iterator
from typing import Any

from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.cost_model.records import Machine, Record
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.schedules import schedule_to_json
from tilestitch.passes.schedule.facts import group_facts

from .tasks import structure_digest
from .timing import Times


def records_of(
    graph: Graph, plan: StitchPlan, times: Times, machine: Machine, model: LatencyModel, name: str
) -> Iterator[Record]:
    """Yield a record for each structure and schedule of a plan: the minimum over equal kernels. model: for which they
    are described; name: of what was compiled.

    Nothing for a plan with launches in nested graphs, as a profile does not distinguish these.
    """
    launches = plan.launches or ()
    if len(launches) != len(times.launches_us) or plan.bodies:
        return
    nodes = {node.name: node for node in graph.nodes}
    spent: dict[str, float] = {}
    for launch, us in zip(launches, times.launches_us.tolist(), strict=True):
        spent[launch.group] = spent.get(launch.group, 0.0) + us
    least: dict[tuple[str, str], Record] = {}
    for group in plan.groups:
        structure = structure_digest(nodes, group, plan.target)
        us = spent.get(group.name, 0.0)
        if structure is None or us <= 0:
            continue
        schedule = _schedule_text(group)
        kernel = group_facts(nodes, group, plan.target, model)
        record = Record(machine, structure, schedule, kernel, us, times.rounds, name)
        other = least.get((structure, schedule))
        if other is None or us < other.latency_us:
            least[structure, schedule] = record
    yield from least.values()


def _schedule_text(group: Any) -> str:
    def of(one: Any) -> Any:
        own = None if one.schedule is None else schedule_to_json(one.schedule)
        return [own, [[of(part) for part in stage] for stage in one.stages]] if one.stages else own

    return json.dumps(of(group), separators=(",", ":"), sort_keys=True)
