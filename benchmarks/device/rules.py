"""Fusion rules, and a cost model, of single cases: what the planner would join stays apart, or is joined whether it
pays or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice, latency_us
from tilestitch.passes.api import Combine, CostModel, KernelsView, Kind, Node, PlannerView, Rule, WhyNot, kind_of


@dataclass(frozen=True)
class NoBands(Rule):
    """Forbids kernels with one GEMM and reductions, to compare with; attention has two GEMMs."""

    name: ClassVar[str] = "no_bands"

    def forbid(self, state: PlannerView, nodes: Sequence[Node]) -> WhyNot | None:
        kinds = [kind_of(node.op) for node in nodes]
        if kinds.count(Kind.CONTRACTION) != 1 or Kind.REDUCTION not in kinds:
            return None
        return WhyNot(f"{nodes[0].name} -> {nodes[-1].name}", self.name, "two launches are to be measured")


@dataclass(frozen=True)
class AllStages(Rule):
    """Joins kernels and their readers by barriers of the grid wherever that is legal."""

    name: ClassVar[str] = "all_stages"

    def combine(self, kernels: KernelsView) -> Iterator[Combine]:
        for reader in kernels.order:
            for producer in sorted(kernels.producers(reader)) if reader in kernels.groups else ():
                if reader in kernels.groups and producer in kernels.groups:
                    yield Combine(((producer,), (reader,)), forced=True)


@dataclass(frozen=True)
class NoGridBarriers(CostModel):
    """The analytical model, to which a wait of the whole grid takes a second: rows are cut into launches instead."""

    name: ClassVar[str] = "no_grid_barriers"

    def latency_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        return latency_us(AnalyticalModel(), kernel, device) + 1e6 * kernel.grid_barriers
