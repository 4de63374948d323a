"""One tuner: it tries schedules of its tasks, one at a time, until its time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tilestitch.codegen.errors import CodegenError
from tilestitch.compiler.errors import TuningError
from tilestitch.compiler.tune.timing import Module, why_other_results
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan import Group
from tilestitch.runtime.errors import DeviceError

from .bench import Bench
from .search import Trials, most_promising
from .tasks import TuningTask
from .turns import Turn

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
