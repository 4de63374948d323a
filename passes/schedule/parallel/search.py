"""The order and priorities of launches with the least predicted makespan: list schedules, then local search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilestitch.cost_model.laws.makespan import Span, makespan_us

from .explore import explored
from .graph import LEVELS, LaunchGraph, Order, spans_in
from .orders import CANDIDATES, FEWER, as_given, at_most

EFFORT = 25_000
"""Budget of local search: some tenths of a second. A simulation costs one unit per launch, and one per launch that runs
beside it.
"""
EXPLORED = 40
"""Most launches of a part for branch and bound."""
SHORTER = (0.05, 0.02)
"""Required improvements of branch and bound: the larger, the earlier branches are pruned."""
NODES, NODE_COST = 1_000, 6
"""Most decision points of branch and bound, and the cost of each."""
LEAST_GAIN = 1e-3
"""Least relative gain in makespan for which an order is replaced. No prediction is more accurate."""


def best_order(graph: LaunchGraph) -> Order:
    """Return the best of the candidates, improved part by part. The result is deterministic."""
    numbers_of = graph.parts()
    parts = [_Part(graph.part(numbers)) for numbers in numbers_of]
    _improve(parts, EFFORT)
    order: list[int] = []
    levels = [0] * len(graph.works)
    held: list[tuple[int, int]] = []
    for numbers, part in zip(numbers_of, parts, strict=True):
        chosen = part.best
        order += (numbers[place] for place in chosen.order)
        held += ((numbers[before], numbers[after]) for before, after in chosen.held)
        for place, level in enumerate(chosen.levels):
            levels[numbers[place]] = level
    return Order(tuple(order), tuple(levels), tuple(held))


def _improve(parts: list[_Part], effort: int) -> None:
    """Spend the budget on parts with potential gain, in proportion to it; what one part leaves goes to the others."""
    effort -= sum(part.spent for part in parts)
    opened = sorted((part for part in parts if part.is_open), key=lambda part: -part.gain_us)
    rest_us = sum(part.gain_us for part in opened)
    for part in opened:
        share = effort * part.gain_us / rest_us if rest_us else 0.0
        rest_us -= part.gain_us
        effort -= part.improve(int(share))


class _Part:
    """A part of a graph and its best order so far: initially the best candidate, the earlier in case of a tie."""

    def __init__(self, graph: LaunchGraph) -> None:
        self.graph = graph
        self.starts: list[tuple[Order, list[Span]]] = []
        self.spent = 0
        self.best = as_given(graph)
        if len(graph.works) > 1:
            self._start(dict.fromkeys(one(graph) for one in CANDIDATES))

    def _start(self, orders: Iterable[Order]) -> None:
        fresh = [(order, spans_in(self.graph, order)) for order in orders]
        self.starts += fresh
        self.spent += sum(cost_of(spans) for _, spans in fresh)
        self.best, self.found = self.starts[0]
        for order, spans in self.starts[1:]:
            if _is_better(spans, self.found):
                self.best, self.found = order, spans

    @property
    def gain_us(self) -> float:
        """An upper bound on the gain."""
        return makespan_us(self.found) - self.graph.least_us if self.starts else 0.0

    @property
    def is_open(self) -> bool:
        return bool(self.starts) and self.gain_us > LEAST_GAIN * self.graph.least_us

    def improve(self, effort: int) -> int:
        """Run a local search from each start; return what it cost."""
        before, each = self.spent, cost_of(self.found)
        for share in SHORTER:
            self._explore(share, before + effort // 2)
        if effort > (len(FEWER) + 1) * each:
            fewer = [at_most(self.graph, count) for count in FEWER if count < len(self.graph.works)]
            self._start(order for order in fewer if order.held)
        climb = _Climb(self.graph, effort - (self.spent - before), {order for order, _ in self.starts})
        others = sorted(
            (start for start in self.starts if start[0] != self.best), key=lambda start: makespan_us(start[1])
        )
        for start in [(self.best, self.found), *others]:
            order, spans = climb.best_from(*start)
            if _is_better(spans, self.found):
                self.best, self.found = order, spans
        self.spent = before + effort - climb.effort
        return self.spent - before

    def _explore(self, share: float, most: int) -> None:
        """Search for orders that are shorter by `share`, as long as there are any and `spent` is below `most`."""
        while self.is_open and self.spent < most and len(self.graph.works) <= EXPLORED:
            found = explored(
                self.graph, makespan_us(self.found) / (1 + share), min(NODES, (most - self.spent) // NODE_COST)
            )
            self.spent += found.nodes * NODE_COST
            before_us = makespan_us(self.found)
            self._start(dict.fromkeys(found.orders))
            if makespan_us(self.found) == before_us:
                return


@dataclass
class _Climb:
    """Tries moves, each once and within the total effort, and keeps those that help."""

    graph: LaunchGraph
    effort: int
    tried: set[Order]

    def best_from(self, best: Order, found: list[Span]) -> tuple[Order, list[Span]]:
        while makespan_us(found) > self.graph.least_us * (1 + LEAST_GAIN):
            for move in _moves(self.graph, best, found):
                if self.effort <= 0:
                    return best, found
                if move in self.tried:
                    continue
                self.tried.add(move)
                spans = spans_in(self.graph, move)
                self.effort -= cost_of(spans)
                if _is_better(spans, found):
                    best, found = move, spans
                    break
            else:
                break
        return best, found


def cost_of(spans: Sequence[Span]) -> int:
    running_us = sum(span.end_us - span.start_us for span in spans)
    return len(spans) + int(len(spans) * running_us / max(makespan_us(spans), 1e-9))


def _is_better(spans: Sequence[Span], than: Sequence[Span]) -> bool:
    return makespan_us(spans) < makespan_us(than) * (1 - LEAST_GAIN)


def _moves(graph: LaunchGraph, chosen: Order, spans: Sequence[Span]) -> Iterator[Order]:
    """Yield moves for each launch on the critical path that was delayed or slowed down: it moves earlier, or what ran
    beside it moves later, or after it. Then give any launch any priority.
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
    """Return the launches on the critical path, first to last."""
    if not spans:
        return []
    number = max(range(len(spans)), key=lambda n: (spans[n].end_us, -n))
    found = [number]
    while graph.before[number]:
        number = max(graph.before[number], key=lambda n: (spans[n].end_us, -n))
        found.append(number)
    return found[::-1]
