"""Branch and bound over all that a device could do with a graph of launches."""

from __future__ import annotations

import pytest

from tests.passes.schedule.parallel.test_search import every_order, random_graph, strictly_us
from tilestitch.cost_model.laws.branching import Branching
from tilestitch.cost_model.laws.makespan import Work, makespan_us
from tilestitch.passes.schedule.parallel.explore import explored
from tilestitch.passes.schedule.parallel.graph import LaunchGraph, spans_in
from tilestitch.passes.schedule.parallel.search import best_order


def branching(graph: LaunchGraph) -> Branching:
    return Branching(graph.works, graph.edges, [rest - w.alone_us for rest, w in zip(graph.rest_us, graph.works)])


def least_end_us(graph: LaunchGraph) -> float:
    """Of all schedules, without leaving any branch."""

    def best(at: Branching) -> float:
        at.proceed()
        if at.is_over:
            return at.now_us
        found = []
        for number in at.choices():
            chosen = at.copy()
            chosen.start(number)
            found.append(best(chosen))
        waited = at.copy()
        return min([*found, *([best(waited)] if waited.wait() else [])])

    return best(branching(graph))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_said_of_shorter_schedules_is_so(seed: int) -> None:
    """Against all of them: there is a shorter one, or it is proven that there is none."""
    graph = random_graph(seed, 4)
    least_us = least_end_us(graph)
    assert graph.least_us <= least_us * (1 + 1e-9)
    assert least_us <= min(strictly_us(graph, order) for order in every_order(graph)) * (1 + 1e-9)
    none, some = explored(graph, least_us * (1 - 1e-6), 100_000), explored(graph, least_us * (1 + 1e-6), 100_000)
    assert none.is_proven and not none.orders
    assert some.orders and not some.is_proven


@pytest.mark.parametrize("seed", range(12))
def test_bounds_of_what_has_begun_hold_to_the_end(seed: int) -> None:
    """Whatever is chosen, here always the last of what is ready, with a wait now and then."""
    graph = random_graph(seed, 12)
    at, bounds = branching(graph), []
    for step in range(10_000):
        at.proceed()
        if at.is_over:
            break
        bounds.append(at.least_us())
        choices = at.choices()
        if choices and (step % 3 or not at.copy().wait()):
            at.start(choices[-1])
        else:
            assert at.wait()
    assert at.is_over and sorted(number for number, _ in at.started) == list(range(len(graph.works)))
    assert bounds == sorted(bounds, key=lambda us: round(us, 6)) and bounds[-1] <= at.now_us * (1 + 1e-9)
    assert all(end >= ready + w.body_us * (1 - 1e-9) for end, ready, w in zip(at.end_us, at.ready_us, graph.works))


def test_launches_that_are_alike_are_tried_once() -> None:
    """Eight chains of two kernels that each fill half of the device: 8! orders, and one that matters."""
    half = Work(1.0, 4.0, 1, 2, (0.5,))
    graph = LaunchGraph((half,) * 16, tuple((2 * n, 2 * n + 1) for n in range(8)))
    found = explored(graph, graph.least_us, 2_000)
    assert found.is_proven and found.nodes < 200


def test_when_all_moments_are_used_up_nothing_is_claimed() -> None:
    found = explored(random_graph(3, 12), 1e9, 1)
    assert found.nodes == 1 and not found.orders and not found.is_proven


def test_orders_say_what_was_found() -> None:
    """Given first, two short launches keep a long one waiting that fills the device."""
    work = [Work(0.0, us, 1, round(1 / room), (room,)) for us, room in ((4, 0.5), (4, 0.5), (1, 0.5), (9, 0.5))]
    graph = LaunchGraph(tuple(work), ((2, 3),))
    found = explored(graph, 10.5, 1_000)
    assert min(makespan_us(spans_in(graph, order)) for order in found.orders) == 10


@pytest.mark.parametrize("seed", range(8))
def test_orders_are_near_the_best_that_there_is(seed: int) -> None:
    graph = random_graph(100 + seed, 8)
    ours_us = makespan_us(spans_in(graph, best_order(graph)))
    assert explored(graph, ours_us / 1.05, 100_000).is_proven
