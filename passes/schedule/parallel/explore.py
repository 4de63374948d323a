"""Branch and bound for launch schedules shorter than a known one, or a proof that there are none.

It searches the choices of `cost_model.laws.branching` depth first, launches with the longest remaining path first. A
branch is pruned where the longest path, or the remaining use of a resource, cannot fit, or where the same state was
reached sooner; equivalent launches are tried once.
"""

from dataclasses import dataclass, field

from tilestitch.cost_model.laws.branching import Branching
from tilestitch.cost_model.laws.makespan import NOTHING

from .graph import LEVELS, LaunchGraph, Order


@dataclass(frozen=True)
class Explored:
    """orders: approximations of a shorter schedule, in terms of orders; empty if none was found. is_proven: there is
    none. nodes: the number of decision points.
    """

    orders: tuple[Order, ...]
    is_proven: bool
    nodes: int


def explored(graph: LaunchGraph, below_us: float, most_nodes: int) -> Explored:
    """Search for a schedule that ends before `below_us`, with at most `most_nodes` decision points."""
    after_us = [rest - work.alone_us for rest, work in zip(graph.rest_us, graph.works)]
    search = _Search(graph, below_us, most_nodes, _alike(graph))
    found = search.run(Branching(graph.works, graph.edges, after_us))
    orders = () if found is None else orders_of(graph, found)
    return Explored(orders, found is None and search.nodes < most_nodes, search.nodes)


@dataclass
class _Search:
    graph: LaunchGraph
    below_us: float
    most_nodes: int
    alike: list[int]
    nodes: int = 0
    reached_us: dict[tuple[object, ...], float] = field(default_factory=dict)

    def run(self, first: Branching) -> Branching | None:
        """Run the search depth first, with an explicit stack: its depth is the number of events."""
        stack = [first]
        while stack and self.nodes < self.most_nodes:
            at = stack.pop()
            at.proceed()
            if at.is_over:
                if at.now_us < self.below_us:
                    return at
                continue
            if at.least_us() >= self.below_us or self._was_here(at):
                continue
            self.nodes += 1
            waited = at.copy()
            if waited.wait():
                stack.append(waited)
            for number in self._distinct(at.choices()):
                chosen = at.copy()
                chosen.start(number)
                stack.append(chosen)
        return None

    def _was_here(self, at: Branching) -> bool:
        state = at.state()
        if self.reached_us.get(state, float("inf")) <= at.now_us + NOTHING:
            return True
        self.reached_us[state] = at.now_us
        return False

    def _distinct(self, numbers: list[int]) -> list[int]:
        """Return one launch of each equivalence class; the one with the longest path to the end is last, and so taken
        first.
        """
        one_each = {self.alike[number]: number for number in reversed(numbers)}
        return sorted(one_each.values(), key=lambda number: (self.graph.rest_us[number], -number))


def _alike(graph: LaunchGraph) -> list[int]:
    """Return equal numbers for launches that are interchangeable once ready: they need the same, their exclusive
    successors are equivalent, and their other successors are the same.
    """
    kinds: dict[object, int] = {}
    found = [0] * len(graph.works)
    for number in reversed(range(len(graph.works))):
        own = sorted(found[after] for after in graph.after[number] if len(graph.before[after]) == 1)
        shared = sorted(after for after in graph.after[number] if len(graph.before[after]) > 1)
        found[number] = kinds.setdefault((graph.works[number], *own, None, *shared), len(kinds))
    return found


def orders_of(graph: LaunchGraph, schedule: Branching) -> tuple[Order, ...]:
    """Return the launches in the order in which they were chosen; one that preceded another that was ready sooner has a
    higher priority. A launch that was delayed gets an edge from the last launch that ended before, so that it is ready
    no later, or not much later (its gap comes after that), or no further edge.
    """
    level = LEVELS - 1
    levels, sooner, later = [0] * len(graph.works), list[tuple[int, int]](), list[tuple[int, int]]()
    before_us = 0.0
    for number, at_us in schedule.started:
        ready_us = schedule.ready_us[number]
        if ready_us < before_us - NOTHING:
            level = max(0, level - 1)
        before_us, levels[number] = ready_us, level
        if at_us > ready_us + NOTHING:
            sooner += _last_ended(graph, schedule, number, at_us - graph.works[number].gap_us)
            later += _last_ended(graph, schedule, number, at_us)
    order = tuple(number for number, _ in schedule.started)
    return tuple(Order(order, tuple(levels), tuple(held)) for held in (sooner, later, ()))


def _last_ended(graph: LaunchGraph, schedule: Branching, number: int, by_us: float) -> list[tuple[int, int]]:
    """Return an edge from the launch that ended last by then, unless it is waited for anyway."""
    ended = [(end_us, other) for other, end_us in enumerate(schedule.end_us) if end_us <= by_us + NOTHING]
    last = max(ended, default=(0.0, number))[1]
    return [] if last == number or graph.above[number] >> last & 1 else [(last, number)]
