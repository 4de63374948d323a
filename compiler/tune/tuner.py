"""One tuner: it tries schedules of its tasks, one at a time, until its time is up. Predictions and what was measured
say which are tried next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tilestitch.codegen.errors import CodegenError
from tilestitch.compiler.errors import TuningError
from tilestitch.compiler.ir import Node
from tilestitch.compiler.tune.timing import Module, why_other_results
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.runtime.errors import DeviceError

from .bench import Bench
from .machine import Turn
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


ROUNDS = 7
"""Runs of a schedule, by turns with the one before tuning; the least time of each counts."""


@dataclass(frozen=True)
class Trying:
    """A schedule of a task that is about to be tried."""

    structure: str
    group: Group


@dataclass(frozen=True)
class Tried:
    """A schedule that was tried. ratio: its time relative to that of the schedule before tuning; None if it could not
    be compiled.
    """

    structure: str
    group: Group
    ratio: float | None


@dataclass
class _Reference:
    """The kernel of a task with the schedule before tuning. module: loaded when it is measured first."""

    bench: Bench
    artifact: bytes
    module: Module | None = None

    def loaded(self) -> Module:
        if self.module is None:
            self.module = self.bench.compiler.load(self.artifact)
        return self.module


@dataclass
class Tuner:
    """The tasks of a share of the machine, and the kernels they are compared with. before: what was tried of them by
    processes that ended within a trial.
    """

    bench_of: Callable[[TuningTask], Bench]
    tasks: Sequence[TuningTask]
    model: LatencyModel
    seed: int
    before: list[Tried] = field(default_factory=list)
    _references: dict[str, _Reference] = field(default_factory=dict)

    def tune(self, until_s: float, turn: Turn) -> Iterator[Trying | Tried]:
        """Yield what is about to be tried (again while it waits for its turn to measure), and the result, until
        `until_s` (`time.monotonic`), or until nothing is left to try. Raises TuningError if a schedule gives other
        results.
        """
        trials = [Trials.of(task, self.seed) for task in self.tasks]
        by_structure = {one.task.structure: one for one in trials}
        for tried in self.before:
            by_structure[tried.structure].add(tried.group, tried.ratio)
        while time.monotonic() < until_s:
            chosen = most_promising(trials)
            if chosen is None:
                return
            reference = self._reference(chosen.task)
            bench = reference.bench
            group = chosen.next({n.name: n for n in bench.graph.nodes}, bench.compiler.context.target, self.model)
            if group is None:
                continue
            trying = Trying(chosen.task.structure, group)
            yield trying
            artifact, ratio = _compiled(bench, group), None
            if artifact is not None:
                with turn.wanted() as has_come:
                    while not has_come():
                        yield trying
                    yield trying  # from here on it has its time for a trial, however long it waited
                    ratio = _ratio(reference, group, artifact)
            chosen.add(group, ratio)
            yield Tried(chosen.task.structure, group, ratio)

    def _reference(self, task: TuningTask) -> _Reference:
        found = self._references.get(task.structure)
        if found is None:
            bench = self.bench_of(task)
            found = self._references[task.structure] = _Reference(bench, bench.artifact(task.kernel))
        return found


def _compiled(bench: Bench, group: Group) -> bytes | None:
    """Return a kernel as scheduled; None if no template computes it so, or it cannot be compiled."""
    try:
        return bench.artifact(group)
    except (PlanError, CodegenError):
        return None


def _ratio(reference: _Reference, group: Group, artifact: bytes) -> float | None:
    """Return the time of a schedule relative to that before tuning; None if the device does not take the kernel."""
    bench, before = reference.bench, reference.loaded()
    try:
        module = bench.compiler.load(artifact)
    except DeviceError:
        return None
    with module:
        odd = why_other_results(module, before, bench.feeds)
        if odd is not None:
            raise TuningError(f"kernel {group.name} with the schedule {group.schedule}: {odd}; report this as a bug")
        before_us, us = bench.time_in_turns((before, module), ROUNDS)
    return us / before_us
