"""Exact schedules of launches side by side, which orders are judged by."""

from __future__ import annotations

import pytest

pytest.importorskip("ortools")

from benchmarks.exact_schedules import exact_us
from tests.passes.schedule.parallel.test_search import graph_of, random_graph
from tilestitch.cost_model.laws.makespan import Work, makespan_us
from tilestitch.passes.schedule.parallel.graph import LaunchGraph, spans_in
from tilestitch.passes.schedule.parallel.search import best_order


def test_cases_by_hand() -> None:
    assert exact_us(graph_of([4, 4, 1, 9], ((2, 3),), share=0.5), 10) == (10, True)
    assert exact_us(graph_of([1, 2, 3], (), share=1.0), 10) == (6, True)
    gaps = LaunchGraph((Work(1.0, 2.0), Work(1.0, 2.0)), ((0, 1),))
    assert exact_us(gaps, 10) == (6, True)
    shared = LaunchGraph((Work(0.0, 2.0, rates=(0.75,)), Work(0.0, 2.0, rates=(0.75,))), ())
    assert exact_us(shared, 10) == (4, True)  # slowed down together they would take 3


@pytest.mark.parametrize("seed", range(6))
def test_orders_are_within_a_twentieth_of_them(seed: int) -> None:
    graph = random_graph(seed, 12)
    least_us, proven = exact_us(graph, 20)
    assert proven
    assert makespan_us(spans_in(graph, best_order(graph))) <= 1.05 * least_us
