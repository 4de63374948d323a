"""Plans of one graph by what was joined: a search that joins what rules have joined already has found their plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilestitch.passes.fusion.rules.builtin import FusionRule
from tilestitch.passes.plan import StitchPlan

from .stitcher import Fused, Partition


@dataclass
class PlansMade:
    """Of the same graph, for the same target, in one context."""

    _plans: dict[Partition, tuple[list[FusionRule], StitchPlan]] = field(default_factory=dict)

    def of(self, fused: Fused) -> StitchPlan | None:
        """Return the plan that was made of the same partition by the same rules."""
        rules, plan = self._plans.get(fused.partition, ([], None))
        return plan if rules == fused.combining else None

    def keep(self, fused: Fused, plan: StitchPlan) -> StitchPlan:
        """Return `plan`."""
        self._plans.setdefault(fused.partition, (fused.combining, plan))
        return plan
