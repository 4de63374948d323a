"""Orders of launches by the predicted makespan."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tilestitch.cost_model.laws.makespan import Span, Work, makespan_us, spans
from tilestitch.passes.schedule.parallel import search
from tilestitch.passes.schedule.parallel.explore import Explored, explored
from tilestitch.passes.schedule.parallel.graph import LEVELS, LaunchGraph, Order, spans_in
from tilestitch.passes.schedule.parallel.orders import as_given, by_longest_path, by_slack, opara
from tilestitch.passes.schedule.parallel.search import best_order, critical_path

MULTIPROCESSORS = 108
FORK = ((0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5))


def graph_of(bodies_us: list[float], edges: tuple[tuple[int, int], ...], share: float = 0.1) -> LaunchGraph:
    """Kernels of one block that takes a share of the device."""
    return LaunchGraph(tuple(Work(0.0, us, 1, round(1 / share), (share,)) for us in bodies_us), edges)


def random_graph(seed: int, most: int) -> LaunchGraph:
    """Kernels of the sizes that the layers of a network have at batch 1."""
    rng = random.Random(seed)
    works, edges = [], []
    for number in range(rng.randrange(3, most + 1)):
        held = MULTIPROCESSORS * rng.choice([1, 2, 3, 8])
        blocks = rng.choice([8, 32, 50, 100, 200, 300, 600])
        busy = min(1.0, blocks / held)
        rates = (rng.random() * 0.3 * busy, rng.random() * busy, 0.0, rng.random() * busy)
        works.append(Work(1.3, rng.uniform(1, 12), blocks, held, (1 / held,), rates=rates))
        edges += [(before, number) for before in range(number) if rng.random() < 0.25]
    return LaunchGraph(tuple(works), tuple(edges))


def every_order(graph: LaunchGraph) -> Iterator[tuple[int, ...]]:
    waits = [len(before) for before in graph.before]

    def longer(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(order) == len(waits):
            yield order
        for number in range(len(waits)):
            if number in order or waits[number]:
                continue
            for other in graph.after[number]:
                waits[other] -= 1
            yield from longer((*order, number))
            for other in graph.after[number]:
                waits[other] += 1

    return longer(())


def strictly_us(graph: LaunchGraph, order: tuple[int, ...]) -> float:
    """The makespan if of all that are ready always the first of `order` had its blocks placed."""
    priorities = [0] * len(order)
    for place, number in enumerate(order):
        priorities[number] = -place
    return makespan_us(spans(graph.works, graph.edges, priorities))


def test_what_all_wait_for_parts_the_graph() -> None:
    assert graph_of([1] * 6, FORK).parts() == [(0,), (1, 2, 3, 4), (5,)]
    assert graph_of([1] * 3, ((0, 1), (1, 2))).parts() == [(0,), (1,), (2,)]
    assert graph_of([1] * 3, ()).parts() == [(0, 1, 2)]
    assert graph_of([], ()).parts() == []


def test_slack_is_what_the_longest_path_leaves() -> None:
    graph = graph_of([1, 2, 5, 2, 5, 1], FORK)
    assert graph.slack_us == [0, 6, 0, 6, 0, 0]
    assert by_longest_path(graph).order == (0, 2, 4, 1, 3, 5)
    assert by_slack(graph).levels == (5, 1, 5, 1, 5, 5)


def test_opara_takes_memory_and_arithmetic_in_turns_and_small_blocks_first() -> None:
    def work(room: float, memory: float) -> Work:
        return Work(0.0, 1.0, 1, 10, (room,), rates=(memory, 0.0, 0.0, 1 - memory))

    graph = LaunchGraph((work(0.2, 1), work(0.1, 1), work(0.4, 0), work(0.3, 0)), ())
    assert opara(graph).order == (1, 3, 0, 2)


def test_a_chain_stays_as_it_is() -> None:
    chain = graph_of([3, 1, 2], ((0, 1), (1, 2)), share=1.0)
    assert best_order(chain) == as_given(chain)


def test_the_long_branch_goes_first_where_not_all_fit() -> None:
    """Two launches fit at a time. Given first, the short ones would keep the long chain waiting."""
    graph = graph_of([4, 4, 1, 9], ((2, 3),), share=0.5)
    assert makespan_us(spans_in(graph, as_given(graph))) == 14
    chosen = best_order(graph)
    assert makespan_us(spans_in(graph, chosen)) == 10
    assert critical_path(graph, spans_in(graph, chosen)) == [2, 3]


@pytest.mark.parametrize("seed", range(15))
def test_within_a_twentieth_of_the_best_of_all_orders(seed: int) -> None:
    graph = random_graph(seed, 6)
    found_us = makespan_us(spans_in(graph, best_order(graph)))
    assert found_us <= 1.05 * min(strictly_us(graph, order) for order in every_order(graph))


@pytest.mark.parametrize("seed", range(4))
def test_no_worse_than_as_given_nor_than_opara_and_no_dependence_is_broken(seed: int) -> None:
    graph = random_graph(seed, 30)
    chosen = best_order(graph)
    place = {number: at for at, number in enumerate(chosen.order)}
    assert sorted(place) == list(range(len(graph.works)))
    assert all(place[before] < place[after] for before, after in graph.edges)
    assert all(0 <= level < LEVELS for level in chosen.levels)
    found_us = makespan_us(spans_in(graph, chosen))
    for other in (as_given(graph), opara(graph)):
        assert found_us <= makespan_us(spans_in(graph, other)) * 1.001
    assert best_order(graph) == chosen


def test_fewer_run_side_by_side_where_that_is_sooner() -> None:
    """A chain of three, each of which reads another launch; all of them share the bandwidth, which is not enough."""
    works = [Work(0.0, 4.0, rates=(1.0,))] * 3 + [Work(0.0, 4.0)] * 3
    graph = LaunchGraph(tuple(works), ((0, 3), (1, 4), (2, 5), (3, 4), (4, 5)))
    assert makespan_us(spans_in(graph, as_given(graph))) == 24  # 12 for the first three together
    chosen = best_order(graph)
    assert chosen.held
    assert makespan_us(spans_in(graph, chosen)) == 16
    place = {number: at for at, number in enumerate(chosen.order)}
    assert all(place[before] < place[after] for before, after in chosen.held)


def test_an_order_is_simulated_by_the_numbers_of_the_launches() -> None:
    graph = graph_of([1, 2, 3], (), share=1.0)
    assert [span.end_us for span in spans_in(graph, Order((2, 0, 1), (0, 0, 0)))] == [4, 6, 3]
    assert [span.end_us for span in spans_in(graph, Order((2, 0, 1), (0, 1, 0)))] == [6, 2, 5]


@pytest.mark.parametrize(("seed", "most"), [(0, 12), (1, 40), (2, 90)])
def test_no_more_is_spent_than_there_is(monkeypatch: pytest.MonkeyPatch, seed: int, most: int) -> None:
    """In units of the search, besides the last step of each start: what bounds the time that compiling takes."""
    spent, steps = [0], [0]

    def counted_spans(graph: LaunchGraph, order: Order) -> list[Span]:
        found = spans_in(graph, order)
        spent[0] += search.cost_of(found)
        steps[0] = max(steps[0], search.cost_of(found))
        return found

    def counted_nodes(graph: LaunchGraph, below_us: float, most_nodes: int) -> Explored:
        found = explored(graph, below_us, most_nodes)
        assert found.nodes <= most_nodes
        spent[0] += found.nodes * search.NODE_COST
        return found

    monkeypatch.setattr(search, "spans_in", counted_spans)
    monkeypatch.setattr(search, "explored", counted_nodes)
    best_order(random_graph(seed, most))
    assert search.EFFORT // 100 < spent[0] <= search.EFFORT + 20 * steps[0]
