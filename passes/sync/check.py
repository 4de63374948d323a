"""The proof, from the plan alone, that a launch whose blocks draw tiles has neither races nor deadlocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Protocol

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.launches.cuda.group import of_part
from tilestitch.passes.plan.schedules import LaunchesSchedule, TicketSchedule
from tilestitch.passes.plan.sync.edges import TileEdge, semaphores_at
from tilestitch.passes.plan.view import look_up

from .dependence import Needs, all_of, needs_of, tile_name
from .footprints import Relation
from .policies import Pair, Policy, edge_of, why_no_bounds, why_no_groupings
from .program import Program, Task, why_not
from .relations import relations_of

MOST_BLOCKS_PER_SM = 32
"""Most blocks per multiprocessor of any GPU."""
MOST_CELLS = 1 << 27
"""Most positions along an axis times tiles: the sets of positions that tiles access are held in memory."""


class Known:
    """A cache of results for kernels of one graph and pairs of them: growing chains repeat the same queries."""

    def __init__(self) -> None:
        self._relations: dict[tuple[tuple[str, ...], tuple[str, ...], object], tuple[Relation, ...]] = {}
        self._needs: dict[tuple[int, int], Needs] = {}
        self._edges: dict[tuple[int, int, int], TileEdge | None] = {}
        self._policies: dict[int, Policy] = {}

    def relations(self, nodes: Mapping[str, Node], group: Group) -> tuple[Relation, ...]:
        """Return the relations of a kernel's launches."""
        key = group.nodes, group.outputs, group.schedule
        if key not in self._relations:
            view = look_up(nodes, group)
            blocks = [launch.grid[0] for launch in of_part(view, group)]
            self._relations[key] = relations_of(view, group.schedule, blocks)
        return self._relations[key]

    def needs(self, producer: Relation, consumer: Relation, values: Sequence[Value]) -> Needs:
        """Return the needs between cached relations, which live as long."""
        key = id(producer), id(consumer)
        if key not in self._needs:
            self._needs[key] = needs_of(producer, consumer, values)
        return self._needs[key]

    def edge(self, pair: Pair, relations: tuple[Relation, Relation], policy: Policy) -> TileEdge | None:
        """Return the edge as by `edge_of`, for cached relations."""
        self._policies[id(policy)] = policy  # keeps the policy's id unique
        key = id(relations[0]), id(relations[1]), id(policy)
        if key not in self._edges:
            self._edges[key] = edge_of(pair, policy)
        found = self._edges[key]
        return found and replace(found, producer=pair.numbers[0], consumer=pair.numbers[1])


class Linked(Protocol):
    """Steps with tile dependences: the group that each computes, its tiles, and their needs."""

    @property
    def groups(self) -> tuple[Group, ...]: ...

    @property
    def relations(self) -> tuple[Relation, ...]: ...

    @property
    def needs(self) -> Mapping[tuple[int, int], Needs]: ...


@dataclass(frozen=True)
class Parts:
    """The launches of the parts of a kernel whose blocks draw tiles, in ticket order: the part of each, and what its
    tiles access. Most parts are one launch.
    """

    groups: tuple[Group, ...]
    relations: tuple[Relation, ...]
    values: Mapping[str, Value]
    known: Known

    @staticmethod
    def of(nodes: Mapping[str, Node], groups: Sequence[Group], known: Known | None = None) -> Parts | str:
        """Return the parts, or why the accesses of their tiles are unknown. known: earlier results."""
        known = Known() if known is None else known
        found = [(group, relation) for group in groups for relation in known.relations(nodes, group)]
        values = {v.name: v for group in groups for name in group.nodes for v in nodes[name].outputs}
        read = {name for group in groups for name in group.inputs}
        blocks = max(relation.grid.blocks for _, relation in found)
        large = next(
            (v for v in values.values() if v.name in read and max(v.shape, default=0) * blocks > MOST_CELLS), None
        )
        if large is not None:
            return f"%{large.name} is too long for an analysis of {blocks} tiles"
        return Parts(tuple(group for group, _ in found), tuple(relation for _, relation in found), values, known)

    @cached_property
    def needs(self) -> dict[tuple[int, int], Needs]:
        """What the second of two launches, given by number, needs of the first, where it reads anything of it.

        Launches of one part run strictly in sequence, so that the tiles of the last represent everything that the part
        stores.
        """
        found: dict[tuple[int, int], Needs] = {}
        last = {group.name: number for number, group in enumerate(self.groups)}
        storing = {value: last[group.name] for group in self.groups for value in group.outputs}
        for consumer, reading in enumerate(self.groups):
            if consumer and self.groups[consumer - 1] is reading:
                pair = self.relations[consumer - 1], self.relations[consumer]
                found[consumer - 1, consumer] = all_of(pair[0].grid.blocks, pair[1].grid.blocks)
            common: dict[int, list[Value]] = {}
            for value in reading.inputs:
                if value in storing and storing[value] != last[reading.name]:
                    common.setdefault(storing[value], []).append(self.values[value])
            for producer, values in sorted(common.items()):
                pair = self.relations[producer], self.relations[consumer]
                found[producer, consumer] = self.known.needs(*pair, values)
        return found

    def only(self, *numbers: int) -> Parts:
        """Return the parts restricted to these launches."""
        groups, relations = tuple(self.groups[n] for n in numbers), tuple(self.relations[n] for n in numbers)
        return Parts(groups, relations, self.values, self.known)

    def pair(self, producer: int, consumer: int) -> Pair:
        names = self.groups[producer].name, self.groups[consumer].name
        grids = self.relations[producer].grid, self.relations[consumer].grid
        return Pair((producer, consumer), names, *grids, self.needs[producer, consumer])

    def edge(self, producer: int, consumer: int, policy: Policy) -> TileEdge | None:
        """Return the edge of a policy between two launches, or None; raises as `edge_of` does."""
        relations = self.relations[producer], self.relations[consumer]
        return self.known.edge(self.pair(producer, consumer), relations, policy)


def why_not_tickets(nodes: Mapping[str, Node], group: Group) -> str | None:
    """Return why the launch of a group tied by tickets might race or deadlock; None if it cannot."""
    if not isinstance(group.schedule, TicketSchedule):
        return "it has no schedule of its tickets"
    parts = Parts.of(nodes, group.parts)
    return parts if isinstance(parts, str) else why_not_drawn(parts, group.schedule)


def why_not_tied(nodes: Mapping[str, Node], group: Group) -> str | None:
    """Return why launches whose blocks wait for tiles of others might race or deadlock; None if they cannot."""
    if not isinstance(group.schedule, LaunchesSchedule):
        return "it has no schedule of what its tiles wait for"
    parts = Parts.of(nodes, group.parts)
    return parts if isinstance(parts, str) else why_not_beside(parts, group.schedule)


def why_not_beside(parts: Parts, schedule: LaunchesSchedule) -> str | None:
    """Return why parts in launches that overlap in this way might race or deadlock; None if they cannot."""
    problem = next((p for e in schedule.edges if (p := why_no_edge(parts, e)) is not None), None)
    late = next((e for e in schedule.edges if e.producer >= e.consumer), None)
    if problem is None and late is not None:
        return f"an edge leads from part {late.producer} to {late.consumer}, which comes before it"
    return problem or why_not(program_of(parts, schedule.edges, apart=True))


def why_not_drawn(parts: Parts, schedule: TicketSchedule) -> str | None:
    """Return why parts whose tiles are drawn in this way might race or deadlock; None if they cannot."""
    if schedule.blocks < 1:
        return "its launch has no blocks"
    if not 1 <= schedule.blocks_per_sm <= MOST_BLOCKS_PER_SM:
        return f"a multiprocessor holds {schedule.blocks_per_sm} of its blocks"
    problem = next((p for e in schedule.edges if (p := why_no_edge(parts, e)) is not None), None)
    return problem or why_not(program_of(parts, schedule.edges))


def why_no_edge(parts: Linked, edge: TileEdge) -> str | None:
    """Return what is wrong with an edge: numbers of parts, or its fit to the grids; None if nothing is."""
    count = len(parts.groups)
    if not (0 <= edge.producer < count and 0 <= edge.consumer < count):
        return f"an edge leads from part {edge.producer} to {edge.consumer}, and there are {count}"
    producer, consumer = (parts.relations[number].grid for number in (edge.producer, edge.consumer))
    where = f"the edge from {parts.groups[edge.producer].name} to {parts.groups[edge.consumer].name}"
    problem = why_no_groupings(producer, edge.semaphores)
    if problem is not None:
        return f"semaphores of {where}: {problem}"
    problem = why_no_bounds(edge, consumer)
    return None if problem is None else f"{where}: {problem}"


def program_of(parts: Linked, edges: Sequence[TileEdge], *, apart: bool = False) -> Program:
    """Return the tiles of all parts as tasks, in ticket order. apart: in separate launches, each of which begins when
    all blocks of those that it waits for have begun; blocks of one launch start in any order.
    """
    starts, words = semaphores_at(edges)
    first = [0]
    for relation in parts.relations:
        first.append(first[-1] + relation.grid.blocks)
    tasks: list[Task] = []
    for number, (group, relation) in enumerate(zip(parts.groups, parts.relations, strict=True)):
        posted = dict.fromkeys((edge.producer, edge.semaphores) for edge in edges if edge.producer == number)
        posting = {(e.producer, e.semaphores): e for e in edges if e.producer == number}
        kinds = {
            producer: [frozenset((first[producer] + kind).tolist()) for kind in needs.kinds]
            for (producer, consumer), needs in parts.needs.items() if consumer == number
        }  # fmt: skip
        known: dict[tuple[int, ...], frozenset[int]] = {}
        for block, place in enumerate(relation.grid.places()):
            waits = {
                (starts[edge.producer, edge.semaphores] + edge.number(at), edge.posts(at)): None
                for edge in edges if edge.consumer == number for at in edge.waits(place)
            }  # fmt: skip
            kind = tuple(parts.needs[producer, number].kind[block] for producer in kinds)
            if kind not in known:
                known[kind] = frozenset().union(*(kinds[p][k] for p, k in zip(kinds, kind, strict=True)))
            posts = tuple((starts[key] + posting[key].post(place), 1) for key in posted)
            tasks.append(Task(f"tile {tile_name(place)} of {group.name}", tuple(waits), posts, known[kind]))
    if not apart:
        return Program(tuple(tasks), (tuple(range(len(tasks))),), words=words)
    launches = tuple(tuple(range(start, end)) for start, end in pairwise(first))
    pairs = dict.fromkeys((edge.producer, edge.consumer) for edge in edges)
    return Program(tuple(tasks), launches, tuple((*pair, "begun") for pair in pairs), words)
