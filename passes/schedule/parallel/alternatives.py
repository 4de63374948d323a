"""Optimisation of kernels for concurrency: packed into one launch or separate, and with tiles for the multiprocessors
that others leave free.

Fusion packs kernels, and schedules are chosen, as if each launch had the GPU to itself. Where branches run
concurrently, a packed launch delays parts that are ready, and tiles that spread a GEMM over all multiprocessors take
them from others. Here both decisions are revisited with the makespan of all launches as the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tilestitch.compiler.ir import Graph, Node
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.laws.makespan import Span, Work, makespan_us
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.cost_model.side_by_side import works_of
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.cuda.choose import choose
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name
from tilestitch.passes.schedule.makespan import NOTHING
from tilestitch.passes.schedule.order import written
from tilestitch.passes.schedule.structure import structure_of

from .graph import LaunchGraph, Order, spans_in
from .orders import at_most, by_longest_path, by_slack
from .search import LEAST_GAIN, cost_of

SHARES = (2, 4)
"""Tiles are also chosen for a half and a quarter of the multiprocessors."""
SCHEDULED = (GroupKind.CONTRACTION, GroupKind.ROWWISE)
MOST_STRUCTURES = 32
"""Most kernels for which tiles are chosen again, the longest first."""
EFFORT = 8_000
"""The search budget, in the units of `search.EFFORT`."""
State = tuple[Group, ...]
Way = Callable[[LaunchGraph], Order]
WAYS: tuple[Way, ...] = (by_longest_path, by_slack, *(partial(at_most, side_by_side=count) for count in (2, 4, 8)))


@dataclass
class Alternatives:
    """A graph's groups for a GPU, and their dependences. aliases, wholes: as for `order.written`."""

    graph: Graph
    target: TargetInfo
    model: LatencyModel
    aliases: Mapping[str, str]
    wholes: Mapping[str, Sequence[str]]
    effort: int = EFFORT
    _works: dict[tuple[str, Schedule | None], tuple[Work, ...]] = field(default_factory=dict)
    _narrow: dict[tuple[object, int], Schedule | None] = field(default_factory=dict)

    def best(self, groups: State) -> State:
        """Return the groups with the least predicted makespan; the given ones if no others are predicted to be faster,
        or if there are too many to try anything.
        """
        self.nodes: dict[str, Node] = nodes_by_name(self.graph)
        if len(groups) * len(WAYS) > self.effort:
            return groups
        best = groups
        way, found = self._best_way(best)
        for move in self._moves(groups, found):
            if self.effort <= 0:
                break
            other = tuple(one for group in best for one in move.get(group.name, (group,)))
            if other == best:
                continue
            spans = self._spans(other, way)
            if makespan_us(spans) < makespan_us(found) * (1 - LEAST_GAIN):
                best, found = other, spans
        return best

    def _moves(self, groups: State, found: Sequence[Span]) -> Iterator[Mapping[str, State]]:
        """Yield replacements by group name: first for many groups at once, then one by one."""
        packs = {group.name: group.parts for group in groups if len(group.stages) == 1}
        yield packs
        beside = self._beside(groups, found)
        narrow = [{g.name: (other,) for g in beside if (other := self._narrower(g, share)) != g} for share in SHARES]
        yield from narrow
        yield from ({name: parts} for name, parts in packs.items())
        for group in beside:
            yield from ({group.name: moves[group.name]} for moves in narrow if group.name in moves)

    def _beside(self, groups: State, found: Sequence[Span]) -> list[Group]:
        """Return kernels that run beside others and whose tiles may change, the longest first."""
        graph, owner = self._launches(groups)
        shared = {owner[n] for part in graph.parts() if len(part) > 1 for n in part}
        fitting = [groups[n] for n in shared if groups[n].kind in SCHEDULED and not groups[n].stages]
        fitting.sort(
            key=lambda group: (-sum(work.body_us for work in self._works[group.name, group.schedule]), group.name)
        )
        kept: dict[object, None] = {}
        for group in fitting:
            if len(kept) < MOST_STRUCTURES:
                kept[self._key(group)] = None
        return [group for group in fitting if self._key(group) in kept]

    def _key(self, group: Group) -> object:
        structure = structure_of(self.nodes, group, self.target)
        return group.name if structure is None else structure.key

    def _narrower(self, group: Group, share: int) -> Group:
        """Return the group as scheduled for a fraction of the multiprocessors."""
        key = self._key(group), share
        if key not in self._narrow:
            gpu = Gpu.of(self.target)
            device = replace(gpu.device, sm_count=max(1, gpu.device.sm_count // share))
            self._narrow[key] = choose(self.nodes, group, replace(gpu, device=device), self.model)
        return replace(group, schedule=self._narrow[key])

    # -- makespan --------------------------------------------------------------------------------------------------

    def _best_way(self, groups: State) -> tuple[Way, list[Span]]:
        """Return the best way to order the launches, and when each launch runs."""
        tried = [(way, self._spans(groups, way)) for way in WAYS]
        return min(tried, key=lambda one: makespan_us(one[1]))

    def _spans(self, groups: State, way: Way) -> list[Span]:
        graph, _ = self._launches(groups)
        found = spans_in(graph, way(graph))
        self.effort -= cost_of(found)
        return found

    def _launches(self, groups: State) -> tuple[LaunchGraph, list[int]]:
        """Return the launch graph of groups, by data flow only, and the index of each launch's group."""
        self._learn([group for group in groups if (group.name, group.schedule) not in self._works])
        ordered = self._in_order(groups)
        works: list[Work] = []
        owner: list[int] = []
        edges: list[tuple[int, int]] = []
        last: dict[int, int] = {}
        for place, before in ordered:
            mine = self._works[groups[place].name, groups[place].schedule]
            first = len(works)
            edges += ((last[other], first) for other in sorted(before) if other in last)
            edges += ((n, n + 1) for n in range(first, first + len(mine) - 1))
            works += mine
            owner += [place] * len(mine)
            last[place] = len(works) - 1
        return LaunchGraph(tuple(works), tuple(edges)), owner

    def _in_order(self, groups: State) -> list[tuple[int, set[int]]]:
        """Return the indices of groups in dependence order, each with those that it reads."""
        maker = {value: place for place, group in enumerate(groups) for value in group.outputs}
        before = [
            {maker[v] for v in written(group.inputs, self.aliases, self.wholes) if v in maker} - {place}
            for place, group in enumerate(groups)
        ]
        pairs = tuple((other, place) for place, others in enumerate(before) for other in others)
        whole = LaunchGraph((NOTHING,) * len(groups), pairs)
        return [(place, before[place]) for place in whole.ordered(lambda place: place)]

    def _learn(self, groups: Sequence[Group]) -> None:
        """Determine the work of the launches of groups."""
        gpu = Gpu.of(self.target).device
        assert isinstance(gpu, Device)
        facts = {str(n): group_facts(self.nodes, one, self.target, self.model) for n, one in enumerate(groups)}
        found = self.model.predict(list(facts.values()), gpu)
        works = works_of(facts, {n: one.latency_us for n, one in zip(facts, found, strict=True)}, gpu)
        self._works.update(((one.name, one.schedule), works[str(n)]) for n, one in enumerate(groups))
