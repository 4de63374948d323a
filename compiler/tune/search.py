"""The search for faster schedules of some tasks: which are tried next, by predictions and by what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts

from .tasks import TuningTask, neighbours

PARENTS = 3
"""Best measured schedules of a task whose neighbours are candidates."""
EXPLORED = 0.2
"""Fraction of the trials that take any candidate, rather than the one predicted to be fastest."""
EXPECTED = 0.1
"""Relative gain that is expected of a task of which nothing was tried."""
DISCOUNT = 0.75
"""Factor of the expected gain for each trial that brings none."""
MOST_NEIGHBOURS = 16
"""Most neighbours of a schedule, drawn at random, that are predicted: predicting takes about as long as compiling."""


@dataclass
class Trials:
    """What was tried of a task. ratios: measured latency relative to the schedule before tuning, by group. failed:
    those that could not be compiled. expected: the relative gain that the next trial is expected to bring.
    """

    task: TuningTask
    random: Random
    ratios: dict[Group, float] = field(default_factory=dict)
    failed: set[Group] = field(default_factory=set)
    expected: float = EXPECTED
    _around: dict[Group, dict[Group, float]] = field(default_factory=dict)

    @staticmethod
    def of(task: TuningTask, seed: int) -> Trials:
        return Trials(task, Random(f"{seed} {task.structure}"), {task.kernel: 1.0})

    @property
    def best(self) -> Group:
        return min(self.ratios, key=lambda group: self.ratios[group])

    @property
    def promise_us(self) -> float:
        """The gain that the next trial is expected to bring, in the model."""
        return self.expected * self.ratios[self.best] * self.task.latency_us

    def add(self, group: Group, ratio: float | None) -> None:
        """Add a measured ratio; None for a group that could not be compiled."""
        gain = 0.0 if ratio is None else 1 - ratio / self.ratios[self.best]
        self.expected = max(DISCOUNT * self.expected, gain)
        if ratio is None:
            self.failed.add(group)
        else:
            self.ratios[group] = ratio

    def next(self, nodes: Mapping[str, Node], target: TargetInfo, model: LatencyModel) -> Group | None:
        """Return the candidate to try next; None if there is none.

        The prediction of a candidate is corrected by the ratio of its parent's measured and predicted time.
        """
        candidates = dict[Group, float]()
        for parent in sorted(self.ratios, key=lambda group: self.ratios[group])[:PARENTS]:
            if parent not in self._around:
                others = neighbours(nodes, parent, target)
                drawn = self.random.sample(others, min(MOST_NEIGHBOURS, len(others)))
                self._around[parent] = _relative(nodes, parent, drawn, target, model)
            for other, ratio in self._around[parent].items():
                if other not in self.ratios and other not in self.failed:
                    corrected = self.ratios[parent] * ratio
                    candidates[other] = min(corrected, candidates.get(other, corrected))
        if not candidates:
            self.expected = 0.0
            return None
        if self.random.random() < EXPLORED:
            return self.random.choice(list(candidates))
        return min(candidates, key=lambda group: candidates[group])


def _relative(
    nodes: Mapping[str, Node], parent: Group, others: Sequence[Group], target: TargetInfo, model: LatencyModel
) -> dict[Group, float]:
    """Return other groups with their predicted times relative to that of `parent`."""
    facts = [group_facts(nodes, group, target, model) for group in (parent, *others)]
    first, *rest = (found.latency_us for found in model.predict(facts, device_of(target)))
    return {other: us / first if first else 1.0 for other, us in zip(others, rest, strict=True)}


def most_promising(trials: Sequence[Trials]) -> Trials | None:
    """Return the task that promises the largest gain; None if none promises any."""
    best = max(trials, key=lambda each: each.promise_us, default=None)
    return best if best is not None and best.promise_us > 0 else None
