"""Cache of plans of one graph by partition, for searches that arrive at a partition that rules have made already."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilestitch.passes.fusion.rules.builtin import FusionRule
from tilestitch.passes.plan import StitchPlan

from .stitcher import Fused, Partition


@dataclass
class PlansMade:
    """Plans of the same graph, for the same target, in one context."""

    _plans: dict[Partition, tuple[list[FusionRule], StitchPlan]] = field(default_factory=dict)

    def of(self, fused: Fused) -> StitchPlan | None:
        """Return the cached plan of the same partition by the same rules."""
        rules, plan = self._plans.get(fused.partition, ([], None))
        return plan if rules == fused.combining else None

    def keep(self, fused: Fused, plan: StitchPlan) -> StitchPlan:
        """Add a plan to the cache and return it."""
        self._plans.setdefault(fused.partition, (fused.combining, plan))
        return plan
