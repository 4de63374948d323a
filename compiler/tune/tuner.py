"""One tuner: it tries schedules of its tasks, one at a time, until its time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tilestitch.codegen.errors import CodegenError
from tilestitch.compiler.errors import TuningError
from tilestitch.compiler.tune.timing import why_other_results
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import Group
from tilestitch.runtime.session import Module

from .bench import Bench
from .search import Trials, most_promising
from .tasks import TuningTask

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
class Tuner:
    """The tasks of a share of the machine, and the modules they are compared with. before: what was tried of them by
    processes that ended within a trial.
    """

    bench_of: Callable[[TuningTask], Bench]
    tasks: Sequence[TuningTask]
    model: LatencyModel
    seed: int
    before: list[Tried] = field(default_factory=list)
    _benches: dict[str, tuple[Bench, Module]] = field(default_factory=dict)

    def tune(self, until_s: float) -> Iterator[Trying | Tried]:
        """Yield what is about to be tried, and the result, until `until_s` (`time.monotonic`), or until nothing is left
        to try. Raises TuningError if a schedule gives other results.
        """
        trials = [Trials.of(task, self.seed) for task in self.tasks]
        by_structure = {one.task.structure: one for one in trials}
        for tried in self.before:
            by_structure[tried.structure].add(tried.group, tried.ratio)
        while time.monotonic() < until_s:
            chosen = most_promising(trials)
            if chosen is None:
                return
            bench, reference = self._bench(chosen.task)
            group = chosen.next({n.name: n for n in bench.graph.nodes}, bench.compiler.context.target, self.model)
            if group is None:
                continue
            yield Trying(chosen.task.structure, group)
            ratio = _ratio(bench, group, reference)
            chosen.add(group, ratio)
            yield Tried(chosen.task.structure, group, ratio)

    def _bench(self, task: TuningTask) -> tuple[Bench, Module]:
        found = self._benches.get(task.structure)
        if found is None:
            bench = self.bench_of(task)
            found = self._benches[task.structure] = bench, bench.module(task.kernel)
        return found


def _ratio(bench: Bench, group: Group, reference: Module) -> float | None:
    """Return the time of a schedule relative to that before tuning; None if it cannot be compiled."""
    try:
        module = bench.module(group)
    except CodegenError:
        return None
    with module:
        odd = why_other_results(module, reference, bench.feeds)
        if odd is not None:
            raise TuningError(f"kernel {group.name} with the schedule {group.schedule}: {odd}; report this as a bug")
        before_us, us = bench.time_in_turns((reference, module), ROUNDS)
    return us / before_us
