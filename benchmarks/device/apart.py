"""A fusion rule for comparisons: GEMMs and the rows after them stay launches of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.passes.api import Kind, Node, PlannerView, Rule, WhyNot, kind_of


@dataclass(frozen=True)
class NoBands(Rule):
    """Forbids kernels with one GEMM and reductions; attention has two GEMMs."""

    name: ClassVar[str] = "no_bands"

    def forbid(self, state: PlannerView, nodes: Sequence[Node]) -> WhyNot | None:
        kinds = [kind_of(node.op) for node in nodes]
        if kinds.count(Kind.CONTRACTION) != 1 or Kind.REDUCTION not in kinds:
            return None
        return WhyNot(f"{nodes[0].name} -> {nodes[-1].name}", self.name, "two launches are to be measured")
