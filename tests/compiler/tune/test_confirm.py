"""What was faster by itself is kept only if it is faster in the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.compiler.tune.subjects import subject
from tests.models import transformer
from tilestitch.compiler.errors import TuningError
from tilestitch.compiler.tune import confirm
from tilestitch.compiler.tune.confirm import Confirmed, confirmed
from tilestitch.compiler.tune.subject import Subject
from tilestitch.compiler.tune.tasks import TuningTask, neighbours
from tilestitch.compiler.tune.timing import Times
from tilestitch.passes.plan import Group


@pytest.fixture(scope="module")
def found() -> Subject:
    return subject(transformer())


@pytest.fixture(scope="module")
def others(found: Subject) -> list[tuple[TuningTask, Group]]:
    nodes = {node.name: node for node in found.graph.nodes}
    return [(task, neighbours(nodes, task.kernel, found.plan.target)[0]) for task in found.tasks[:2]]


def with_times(monkeypatch: pytest.MonkeyPatch, found: Subject, *races: dict[str, float]) -> None:
    """Have races, one after the other, tell these times of groups after tuning; all others, and before, are 10 us."""
    left = list(races)

    def raced(modules: Sequence[Any], *_: Any) -> list[Times]:
        after = left.pop(0)
        groups = [launch.group for launch in found.plan.launches or ()]
        before_us = np.full(len(groups), 10.0)
        after_us = np.array([after.get(group, 10.0) for group in groups])
        return [Times(us, float(us.sum()), 1) for us in (before_us, after_us)]

    monkeypatch.setattr(confirm, "time_in_turns", raced)


def confirm_all(found: Subject, others: list[tuple[TuningTask, Group]]) -> Confirmed:
    return confirmed(found.graph, found.plan, others, found.feeds, found.compiler)


def changed(found: Subject, result: Confirmed) -> set[str]:
    before = {group.name: group.schedule for group in found.plan.groups}
    return {group.name for group in result.plan.groups if group.schedule != before[group.name]}


def names(pair: tuple[TuningTask, Group]) -> set[str]:
    return {group.name for group in pair[0].groups}


def test_only_what_is_faster_in_the_model_is_kept(
    found: Subject, others: list[tuple[TuningTask, Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = others
    faster, slower = dict.fromkeys(names(one), 8.0), dict.fromkeys(names(two), 12.0)
    with_times(monkeypatch, found, {**faster, **slower}, faster)
    result = confirm_all(found, others)
    assert changed(found, result) == names(one)
    assert result.ratios == {one[0].structure: 0.8, two[0].structure: 1.2}
    assert result.before_us - result.after_us == pytest.approx(2.0 * len(names(one)))


def test_gains_below_one_percent_are_noise(
    found: Subject, others: list[tuple[TuningTask, Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_times(monkeypatch, found, {name: 9.95 for pair in others for name in names(pair)}, {})
    result = confirm_all(found, others)
    assert result.plan == found.plan
    assert result.before_us == result.after_us


def test_a_plan_that_is_not_faster_as_a_whole_is_not_taken(
    found: Subject, others: list[tuple[TuningTask, Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = {name: 8.0 for pair in others for name in names(pair)}
    neighbour = next(g.name for g in found.plan.groups if g.name not in faster)
    with_times(monkeypatch, found, *2 * [{**faster, neighbour: 1000.0}])
    assert confirm_all(found, others).plan == found.plan


def test_what_gains_by_chance_in_one_race_is_not_kept(
    found: Subject, others: list[tuple[TuningTask, Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = others
    faster, lucky = dict.fromkeys(names(one), 8.0), dict.fromkeys(names(two), 9.0)
    with_times(monkeypatch, found, {**faster, **lucky}, faster, faster)
    result = confirm_all(found, others)
    assert changed(found, result) == names(one)
    assert result.ratios == {one[0].structure: 0.8, two[0].structure: 1.0}


def test_a_plan_without_changes_claims_no_gain(found: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    with_times(monkeypatch, found, {found.plan.groups[0].name: 5.0})
    result = confirm_all(found, [])
    assert result.plan == found.plan and result.after_us == result.before_us


def test_where_launches_cannot_be_told_apart_the_whole_model_gains(
    found: Subject, others: list[tuple[TuningTask, Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "of_groups", lambda *_: None)
    before_us = 10.0 * len(found.plan.launches or ())
    for gain, taken in ((0.005, False), (0.02, True)):
        times = {next(iter(names(others[0]))): 10.0 - gain * before_us}
        with_times(monkeypatch, found, times, times)
        assert (confirm_all(found, others).plan != found.plan) == taken


def test_nothing_found_leaves_the_plan(found: Subject) -> None:
    assert confirm_all(found, []).plan == found.plan


def test_other_results_are_an_error(
    found: Subject, others: list[tuple[TuningTask, Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "why_other_results", lambda *_: "output y differs")
    with pytest.raises(TuningError, match="the tuned model is not right: output y differs"):
        confirm_all(found, others)
