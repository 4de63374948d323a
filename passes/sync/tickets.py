"""Chains of kernels as one launch whose blocks draw tiles: the policy of each edge, and the predicted time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilestitch.cost_model.constants import GPU_HAND_OVER_US
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts, Launch
from tilestitch.cost_model.protocol import LatencyModel, latency_us
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.schedules import TicketSchedule
from tilestitch.passes.plan.sync.edges import TileEdge

from .check import Parts
from .cost import crowded, drawn_facts, launches_of, one_launch, roomy_blocks, slots, tile_times_us
from .policies import POLICIES, Wanted
from .waves import drawn_us


@dataclass(frozen=True)
class Tickets:
    """The data about one launch. kernels: the facts of each part; multiprocessors: those that the plan may use."""

    parts: Parts
    wanted: Wanted
    kernels: Sequence[KernelFacts]
    device: Device
    multiprocessors: int
    model: LatencyModel

    def fastest(self, group: Group) -> tuple[Group, float] | None:
        """Return the group with a schedule, and its predicted microseconds; None if no policy fits a dependence."""
        return self._by_pairs(group) if self.wanted.whole else self._edge_by_edge(group)

    @property
    def _tiles(self) -> int:
        return sum(relation.grid.blocks for relation in self.parts.relations)

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        return sorted(self.parts.needs, key=lambda pair: pair[::-1])

    def _options(self, pair: tuple[int, int]) -> list[TileEdge]:
        """Return the edges between two parts by each policy that fits."""
        return [edge for policy in self.wanted.policies if (edge := self.parts.edge(*pair, policy))]

    def _edge_by_edge(self, group: Group) -> tuple[Group, float] | None:
        """Choose the policy of each edge for the time of the whole launch, with the others as chosen so far; later
        edges wait for whole kernels.
        """
        blocks = min(self._tiles, self._slots(one_launch(launches_of(self.parts, self.kernels))))
        edges: list[TileEdge] = []
        best_us = float("inf")
        for pair in self._pairs:
            options = self._options(pair)
            if not options:
                return None
            timed = []
            for edge in options:
                rest = [self._whole(*other) for other in self.parts.needs if not _known(other, [*edges, edge])]
                drawn = drawn_facts(self.parts, [*edges, edge, *rest], blocks, self.kernels, self.device)
                timed.append((latency_us(self.model, drawn, self.device), edge.count, edge))
            best_us, _, chosen = min(timed, key=lambda entry: entry[:2])
            edges.append(chosen)
        return replace(group, schedule=TicketSchedule(blocks, tuple(edges))), best_us

    def _by_pairs(self, group: Group) -> tuple[Group, float] | None:
        """Choose, for each edge, the policy that is fastest for its two launches alone, preferring few semaphores in
        case of a tie: a model has too many launches to simulate all for every choice.
        """
        steps = launches_of(self.parts, self.kernels)
        times_us = tile_times_us(self.parts, crowded(steps, one_launch(steps), self.device), self.device)
        each = roomy_blocks(steps, self.device)
        blocks = min(self._tiles, each * self.multiprocessors)
        resident = min(blocks, slots(one_launch(steps), self.device))
        edges: list[TileEdge] = []
        for producer, consumer in self._pairs:
            two, own_us = self.parts.only(producer, consumer), (times_us[producer], times_us[consumer])
            timed = []
            for edge in self._options((producer, consumer)):
                alone = replace(edge, producer=0, consumer=1)
                timed.append((drawn_us(two, [alone], own_us, resident, GPU_HAND_OVER_US), edge.count, edge))
            if not timed:
                return None
            edges.append(min(timed, key=lambda entry: entry[:2])[2])
        queues = self.wanted.queues
        facts = drawn_facts(self.parts, edges, blocks, self.kernels, self.device, queues=queues)
        scheduled = replace(group, schedule=TicketSchedule(blocks, tuple(edges), each, queues))
        return scheduled, latency_us(self.model, facts, self.device)

    def _whole(self, producer: int, consumer: int) -> TileEdge:
        edge = self.parts.edge(producer, consumer, POLICIES[-1])
        assert edge is not None
        return edge

    def _slots(self, launch: Launch) -> int:
        return slots(launch, self.device) // self.device.sm_count * self.multiprocessors


def _known(pair: tuple[int, int], edges: Sequence[TileEdge]) -> bool:
    return any((edge.producer, edge.consumer) == pair for edge in edges)
