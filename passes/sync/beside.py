"""Chains of kernels as overlapping launches: the policy of each edge, and the predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import LatencyModel, latency_us
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.schedules import LaunchesSchedule
from tilestitch.passes.plan.sync.edges import TileEdge
from tilestitch.passes.schedule.cuda.gpu import Gpu

from .check import Parts, why_not_beside
from .cost import beside_facts
from .policies import POLICIES, Policy


@dataclass(frozen=True)
class Beside:
    """The data about overlapping launches. kernels: the facts of each part."""

    parts: Parts
    policies: Sequence[Policy]
    kernels: Sequence[KernelFacts]
    gpu: Gpu
    model: LatencyModel

    def fastest(self, group: Group) -> tuple[Group, float] | None:
        """Return the group with a schedule, and its predicted microseconds: policies are chosen edge by edge, while
        later edges wait for whole kernels. None if no policy fits a dependence.
        """
        edges: list[TileEdge] = []
        best_us = float("inf")
        pairs = sorted(self.parts.needs, key=lambda pair: pair[::-1])
        for number, pair in enumerate(pairs):
            whole = [self.parts.edge(*later, POLICIES[-1]) for later in pairs[number + 1 :]]
            rest = [edge for edge in whole if edge is not None]
            options = [edge for policy in self.policies if (edge := self.parts.edge(*pair, policy))]
            if not options:
                return None
            timed = [(self._us([*edges, edge, *rest]), edge.count, edge) for edge in options]
            best_us, _, chosen = min(timed, key=lambda entry: entry[:2])
            edges.append(chosen)
        schedule = LaunchesSchedule(tuple(edges))
        problem = why_not_beside(self.parts, schedule)
        assert problem is None, (group.name, problem)
        return replace(group, schedule=schedule), best_us

    def _us(self, edges: Sequence[TileEdge]) -> float:
        facts = beside_facts(self.parts, edges, self.kernels, self.gpu.device)
        return latency_us(self.model, facts, self.gpu.device)
