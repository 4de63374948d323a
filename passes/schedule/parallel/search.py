"""The order and priorities of launches with the least predicted makespan: list schedules, then local search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilestitch.cost_model.laws.makespan import Span

from .graph import LEVELS, LaunchGraph, Order, last_us, spans_in
from .orders import CANDIDATES, FEWER, at_most

EFFORT = 25_000
"""What local search may spend: some tenths of a second. A simulation costs a unit for each launch, and for each that
runs beside it.
"""
LEAST_GAIN = 1e-3
"""Of the makespan, for which an order is left. No prediction is better than that."""


def best_order(graph: LaunchGraph) -> Order:
    """The best of the candidates, improved part by part. Equal questions have equal answers."""
    order: list[int] = []
    levels = [0] * len(graph.works)
    held: list[tuple[int, int]] = []
    for numbers in graph.parts():
        if len(numbers) == 1:
            order += numbers
            continue
        chosen = _best_of_part(graph.part(numbers), EFFORT * len(numbers) // len(graph.works))
        order += (numbers[place] for place in chosen.order)
        held += ((numbers[before], numbers[after]) for before, after in chosen.held)
        for place, level in enumerate(chosen.levels):
            levels[numbers[place]] = level
    return Order(tuple(order), tuple(levels), tuple(held))


def _best_of_part(graph: LaunchGraph, effort: int) -> Order:
    """The best that is found from any of the candidates; the earlier one of equals."""
    starts = [(order, spans_in(graph, order)) for order in dict.fromkeys(one(graph) for one in CANDIDATES)]
    rounds = effort // cost_of(starts[0][1]) - len(starts)
    fewer = [at_most(graph, count) for count in FEWER if count < len(graph.works)] if rounds > len(FEWER) else []
    starts += [(order, spans_in(graph, order)) for order in fewer if order.held]
    rounds -= len(fewer)
    climb = _Climb(graph, rounds, {order for order, _ in starts})
    best, found = starts[0]
    for order, spans in starts[1:]:
        if _is_better(spans, found):
            best, found = order, spans
    others = sorted((start for start in starts if start[0] != best), key=lambda start: last_us(start[1]))
    for order, spans in [(best, found), *others]:
        order, spans = climb.best_from(order, spans)
        if _is_better(spans, found):
            best, found = order, spans
    return best


@dataclass
class _Climb:
    """Tries moves, each once and so many in all, and keeps those that help."""

    graph: LaunchGraph
    rounds: int
    tried: set[Order]

    def best_from(self, best: Order, found: list[Span]) -> tuple[Order, list[Span]]:
        while last_us(found) > max(self.graph.rest_us) * (1 + LEAST_GAIN):  # no order is faster than the longest path
            for move in _moves(self.graph, best, found):
                if self.rounds <= 0:
                    return best, found
                if move in self.tried:
                    continue
                self.tried.add(move)
                self.rounds -= 1
                spans = spans_in(self.graph, move)
                if _is_better(spans, found):
                    best, found = move, spans
                    break
            else:
                break
        return best, found


def cost_of(spans: Sequence[Span]) -> int:
    running_us = sum(span.end_us - span.start_us for span in spans)
    return len(spans) + int(len(spans) * running_us / max(last_us(spans), 1e-9))


def _is_better(spans: Sequence[Span], than: Sequence[Span]) -> bool:
    return last_us(spans) < last_us(than) * (1 - LEAST_GAIN)


def _moves(graph: LaunchGraph, chosen: Order, spans: Sequence[Span]) -> Iterator[Order]:
    """For each launch that the end waited for, and that waited for room or was slowed down itself: it goes earlier, or
    what ran beside it later, or after it. Then any launch with any priority.
    """
    place = {number: at for at, number in enumerate(chosen.order)}
    for number in critical_path(graph, spans):
        span = spans[number]
        if span.start_us <= span.ready_us and span.end_us - span.start_us <= graph.works[number].body_us * 1.001:
            continue
        yield _raised(chosen, number, 1)
        yield _raised(chosen, number, LEVELS)
        beside = [n for n, other in enumerate(spans) if _meet(span, other) and n != number]
        for other in sorted(beside, key=lambda n: -graph.slack_us[n]):
            yield _raised(chosen, other, -1)
            yield _raised(chosen, other, -LEVELS)
            if place[number] < place[other] and (number, other) not in chosen.held:
                yield chosen._replace(held=(*chosen.held, (number, other)))
    for number in range(len(spans)):
        for level in range(LEVELS):
            yield _raised(chosen, number, level - chosen.levels[number])


def _meet(span: Span, other: Span) -> bool:
    return other.ready_us < span.end_us and span.ready_us < other.end_us


def _raised(chosen: Order, number: int, by: int) -> Order:
    levels = list(chosen.levels)
    levels[number] = min(LEVELS - 1, max(0, levels[number] + by))
    return chosen._replace(levels=tuple(levels))


def critical_path(graph: LaunchGraph, spans: Sequence[Span]) -> list[int]:
    """The launches that the end waited for, first to last."""
    if not spans:
        return []
    number = max(range(len(spans)), key=lambda n: (spans[n].end_us, -n))
    found = [number]
    while graph.before[number]:
        number = max(graph.before[number], key=lambda n: (spans[n].end_us, -n))
        found.append(number)
    return found[::-1]
