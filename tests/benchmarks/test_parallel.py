"""How orders of launches are judged."""

from __future__ import annotations

import pytest

pytest.importorskip("ortools")
pytest.importorskip("torch")

from benchmarks.parallel import is_worse, parts_us
from tests.passes.schedule.parallel.test_search import FORK, graph_of
from tilestitch.cost_model.laws.makespan import makespan_us
from tilestitch.passes.schedule.parallel.graph import spans_in
from tilestitch.passes.schedule.parallel.orders import as_given

ROW = {
    "given_us": 10.0, "opara_us": 9.0, "ours_us": 8.0, "plan_us": 8.5, "best_alone_us": 8.6, "ungrouped_us": 8.6,
    "ours_over_exact": 1.0,
}  # fmt: skip


def test_a_part_takes_what_it_takes_in_the_schedule_of_the_whole() -> None:
    graph = graph_of([1, 2, 5, 2, 5, 1], FORK)
    found = spans_in(graph, as_given(graph))
    assert parts_us(graph, found) == [1, 10, 1]
    later = [span if n != 4 else span._replace(end_us=span.end_us + 3) for n, span in enumerate(found)]
    last = later[-1]._replace(end_us=later[-1].end_us + 3)
    assert parts_us(graph, [*later[:-1], last]) == [1, 13, 1]
    assert sum(parts_us(graph, found)) == makespan_us(found)
    assert parts_us(graph_of([], ()), []) == []


@pytest.mark.parametrize(
    ("change", "worse"),
    [
        ({}, False),
        ({"ours_over_exact": None}, False),
        ({"ours_us": 9.1}, True),
        ({"given_us": 7.9}, True),
        ({"plan_us": 9.1, "best_alone_us": 9.2, "ungrouped_us": 9.2}, True),
        ({"plan_us": 8.7, "ungrouped_us": 8.8}, True),
        ({"ungrouped_us": 8.4}, True),
        ({"ours_over_exact": 1.06}, True),
    ],
)
def test_what_is_worse(change: dict[str, float | None], worse: bool) -> None:
    assert is_worse({**ROW, **change}) is worse
