"""What is tried next: the task that promises the most, and of it the neighbour of a good schedule that is predicted to
be the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.compiler.tune.subjects import subject
from tests.models import transformer
from tilestitch.compiler.tune.subject import Subject
from tilestitch.compiler.tune.tasks import TuningTask, neighbours
from tilestitch.compiler.tune.tuner import EXPECTED, PARENTS, Trials, most_promising
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice, Prediction
from tilestitch.passes.plan import Group


@pytest.fixture(scope="module")
def found() -> Subject:
    return subject(transformer())


def next_of(trials: Trials, found: Subject) -> Group | None:
    return trials.next({node.name: node for node in found.graph.nodes}, found.plan.target, ANALYTICAL)


def test_candidates_differ_in_one_choice_and_are_never_tried_twice(found: Subject) -> None:
    trials = Trials.of(found.tasks[0], 0)
    nodes = {node.name: node for node in found.graph.nodes}
    seen = {trials.task.kernel}
    for _ in range(30):
        candidate = next_of(trials, found)
        assert candidate is not None and candidate not in seen
        parents = sorted(trials.ratios, key=lambda group: trials.ratios[group])[:PARENTS]
        assert any(candidate in neighbours(nodes, parent, found.plan.target) for parent in parents)
        seen.add(candidate)
        trials.add(candidate, None if len(seen) % 5 == 0 else 1 - 0.001 * len(seen))


def test_the_same_seed_tries_the_same_schedules(found: Subject) -> None:
    def tried(seed: int) -> list[Group | None]:
        trials, groups = Trials.of(found.tasks[0], seed), []
        for _ in range(12):
            groups.append(next_of(trials, found))
            trials.add(groups[-1], 1.1)
        return groups

    assert tried(1) == tried(1)
    assert tried(1) != tried(2)


def test_the_predicted_fastest_is_tried_first(found: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    class ByTasks:
        """Predicts that few tasks are fast."""

        name = "tasks"

        def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
            return [Prediction(us, us, us) for us in (float(place == 3) or 2.0 for place in range(len(batch)))]

    monkeypatch.setattr("tilestitch.compiler.tune.tuner.EXPLORED", 0.0)
    monkeypatch.setattr("tilestitch.compiler.tune.tuner.MOST_NEIGHBOURS", 1000)
    trials = Trials.of(found.tasks[0], 0)
    nodes = {node.name: node for node in found.graph.nodes}
    first = trials.next(nodes, found.plan.target, ByTasks())
    assert trials._around[trials.task.kernel][first] == 0.5  # type: ignore[index]


def test_time_goes_where_it_promises_the_most(found: Subject) -> None:
    long, short = (Trials.of(TuningTask(name, found.tasks[0].groups, us), 0) for name, us in (("l", 90.0), ("s", 10.0)))
    assert most_promising([short, long]) is long
    for group in neighbours({n.name: n for n in found.graph.nodes}, found.tasks[0].kernel, found.plan.target)[:9]:
        long.add(group, 1.0)
    assert most_promising([short, long]) is short
    long.add(Trials.of(found.tasks[1], 0).task.kernel, 0.5)
    assert long.expected == 0.5 > EXPECTED
    assert most_promising([short, long]) is long


def test_a_task_without_candidates_is_left(found: Subject) -> None:
    trials = Trials.of(found.tasks[0], 0)
    for group in neighbours({n.name: n for n in found.graph.nodes}, trials.task.kernel, found.plan.target):
        trials.add(group, None)
    while (candidate := next_of(trials, found)) is not None:
        trials.add(candidate, None)
    assert trials.promise_us == 0
    assert most_promising([trials]) is None
    assert most_promising([]) is None
