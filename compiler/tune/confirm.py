"""The proof of what tuners found: in the whole model, with nothing beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilestitch.compiler.errors import TuningError
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.tune.timing import Times, time_in_turns, why_other_results
from tilestitch.passes.plan import Group, StitchPlan

from .bench import Compiler, Feeds, of_groups
from .tasks import TuningTask, with_schedules

Found: TypeAlias = Sequence[tuple[TuningTask, Group]]
"""Tasks, each with a group that has the schedule found for it."""
LEAST_GAIN = 0.01
"""Relative gain in the model from which a schedule is kept."""
RACES = 2
"""Least number of races in which a schedule gains. Of equal ones, a twentieth gain by chance in one."""
ROUNDS = 100
MOST_S = 15.0
"""Runs of the plans that are compared, by turns, and the seconds that these take at most."""


@dataclass(frozen=True)
class Confirmed:
    """A plan with the schedules that are faster in the model. before_us, after_us: sums of the minimum of each launch,
    or minimum of whole runs on a GPU and where launches cannot be told apart, in the last race. ratios: of each changed
    task's time in the model, the largest of all races, by its structure, also of those that were not kept; empty where
    launches cannot be told apart. measured: the plans that were measured, with their times.
    """

    plan: StitchPlan
    before_us: float
    after_us: float
    ratios: Mapping[str, float]
    measured: tuple[tuple[StitchPlan, Times], ...]


def confirmed(graph: Graph, plan: StitchPlan, found: Found, feeds: Feeds, compiler: Compiler) -> Confirmed:
    """Return the plan with those of the found schedules that make their kernels faster in the model by `LEAST_GAIN`, in
    every race; the plan itself if all kernels together are no faster in the last one. Where launches cannot be told
    apart, the whole model has to gain so much. Raises TuningError if its results differ.

    What gained by chance in one race seldom does in the next. The last race is of the plan as it is returned.
    """
    kept, ratios, races = found, dict[str, float](), list[_Race]()
    while True:
        race = _raced(graph, plan, kept, feeds, compiler)
        races.append(race)
        for structure, ratio in _ratios(plan, race, kept).items():
            ratios[structure] = max(ratio, ratios.get(structure, 0.0))
        whole = race.after_us / race.before_us if race.before_us else 1.0
        gaining = [one for one in kept if ratios.get(one[0].structure, whole) < 1 - LEAST_GAIN]
        measured = tuple(pair for each in races for pair in ((plan, each.before), (each.plan, each.after)))
        if not gaining or (len(gaining) == len(kept) and len(races) >= RACES):
            break
        kept = gaining
    if not gaining or whole >= 1:
        return Confirmed(plan, race.before_us, race.before_us, ratios, measured)
    return Confirmed(race.plan, race.before_us, race.after_us, ratios, measured)


@dataclass(frozen=True)
class _Race:
    """A plan with other schedules, and the times of runs by turns with the one before tuning."""

    plan: StitchPlan
    before: Times
    after: Times

    @property
    def before_us(self) -> float:
        return _total_us(self.plan, self.before)

    @property
    def after_us(self) -> float:
        return _total_us(self.plan, self.after)


def _total_us(plan: StitchPlan, times: Times) -> float:
    by_run = plan.bodies or plan.target.is_gpu  # where launches of branches run side by side
    return times.whole_us if by_run else float(times.launches_us.sum())


def _raced(graph: Graph, plan: StitchPlan, found: Found, feeds: Feeds, compiler: Compiler) -> _Race:
    """Race the plan with the found schedules against the plan without them, both compiled and loaded anew."""
    tuned = with_schedules(
        graph, plan, {g.name: other for task, other in found for g in task.groups}, compiler.context.kernels_of
    )
    with compiler.module(graph, plan) as before, compiler.module(graph, tuned) as after:
        odd = why_other_results(after, before, feeds)
        if odd is not None:
            raise TuningError(f"the tuned model is not right: {odd}; report this as a bug")
        return _Race(tuned, *time_in_turns([before, after], feeds, ROUNDS, MOST_S, compiler.run_us))


def _ratios(plan: StitchPlan, race: _Race, found: Found) -> dict[str, float]:
    """Return the time of each task relative to that before tuning; nothing where launches cannot be told apart."""
    before_us, after_us = of_groups(plan, race.before.launches_us), of_groups(race.plan, race.after.launches_us)
    if before_us is None or after_us is None:
        return {}
    sums = {
        task.structure: [sum(us[group.name] for group in task.groups) for us in (before_us, after_us)]
        for task, _ in found
    }
    return {structure: after / before if before else 1.0 for structure, (before, after) in sums.items()}
