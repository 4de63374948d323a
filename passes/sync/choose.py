"""Selection of dependent kernels to tie tile by tile, the form, and the policy of each edge.

A chain of kernels, each of which reads the one before, grows from its first kernel as long as that pays according to
the predictions of `model` with and without overlap. Its form, one launch or overlapping launches, is the one predicted
to be faster. An explicitly requested policy is applied wherever possible, whether it pays or not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from tilestitch.compiler.ir import Graph, Node
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import LatencyModel, fastest, latency_us
from tilestitch.passes.fusion.stages import Combine, Kernels
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.partition import partitioned
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.plan.launches.cuda.group import ticketing_of, tying_of
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import GemmSchedule, LaunchesSchedule, RowSchedule, TicketSchedule
from tilestitch.passes.plan.sync.edges import TileEdge
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.schedule.cuda.facts import gpu_facts
from tilestitch.passes.schedule.cuda.gemm import choose_among, tiled_schedules
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.schedule.cuda.rows import row_schedules
from tilestitch.passes.schedule.device import device_of, multiprocessors_of
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.passes.schedule.kernels import schedule_group

from .check import Known, Parts, why_not_beside, why_not_drawn
from .cost import beside_facts, gains, launches_of, slots
from .policies import POLICIES, Policy, Wanted
from .tickets import Tickets


def drawable(nodes: Mapping[str, Node], group: Group, gpu: Gpu, model: LatencyModel) -> Group:
    """Return a scheduled single-part group with the fastest schedule under which its blocks can draw tiles, if its
    current one does not allow that, as with persistent clusters, or rows whose blocks must be resident together.
    """
    match group.schedule:
        case GemmSchedule(tile=WgmmaTile()):
            gemm = gemm_of(AnchoredGroup.of(look_up(nodes, group)))
            assert gemm is not None, "a schedule of tiles is of a GEMM"
            return replace(group, schedule=choose_among(gemm, tiled_schedules(gemm, gpu), gpu.device, model))
        case RowSchedule(blocks_per_row=blocks) if blocks > 1:
            view = look_up(nodes, group)
            roles = roles_of(view.nodes, view.outputs, view.name)
            assert isinstance(roles, Roles), roles
            kept = [
                each for each in row_schedules(view, roles, gpu)
                if not (isinstance(each, RowSchedule) and each.blocks_per_row > 1)
            ]  # fmt: skip
            scheduled = (replace(group, schedule=each) for each in kept)
            facts = [gpu_facts(nodes, each, roles, gpu.multiprocessors) for each in scheduled]
            return replace(group, schedule=fastest(kept, facts, gpu.device, model))
    return group


MOST_SHARE = 0.5
"""Most of a GEMM's time that loading its operands from memory may take."""
ROWS = (1, 2, 4)


def rows_sooner(nodes: Mapping[str, Node], part: Group, device: Device, latency_us: float) -> Group:
    """Return the part with as few rows of tiles together as that allows; unchanged if it is no GEMM of many rows.
    latency_us: its predicted time.
    """
    schedule = part.schedule
    if not isinstance(schedule, GemmSchedule) or schedule.tile_rows == 1:
        return part
    gemm = gemm_of(AnchoredGroup.of(look_up(nodes, part)))
    assert gemm is not None, "a schedule of tiles is of a GEMM"
    _, partition = partitioned(gemm, schedule)
    cluster = schedule.tile.cluster if isinstance(schedule.tile, WgmmaTile) else 1
    blocks = ceil(partition.m_blocks / cluster)
    left, right = (operand.value.tensor_type.nbytes for operand in (gemm.a, gemm.b))
    for rows in (r for r in ROWS if r < min(schedule.tile_rows, blocks)):
        times = ceil(blocks / rows) if right > device.l2_bytes // 2 else 1
        if (left + times * right) / device.dram_bytes_per_second * 1e6 <= MOST_SHARE * latency_us:
            return replace(part, schedule=replace(schedule, tile_rows=rows))
    return part


@dataclass(frozen=True)
class Beside:
    """The data about overlapping launches. kernels: the facts of each part."""

    parts: Parts
    policies: Sequence[Policy]
    kernels: Sequence[KernelFacts]
    gpu: Gpu
    model: LatencyModel

    def fastest(self, group: Group) -> tuple[Group, float] | None:
        """Return the group with a schedule, and its predicted microseconds: policies are chosen edge by edge, while
        later edges wait for whole kernels. None if no policy fits a dependence.
        """
        edges: list[TileEdge] = []
        best_us = float("inf")
        pairs = sorted(self.parts.needs, key=lambda pair: pair[::-1])
        for number, pair in enumerate(pairs):
            whole = [self.parts.edge(*later, POLICIES[-1]) for later in pairs[number + 1 :]]
            rest = [edge for edge in whole if edge is not None]
            options = [edge for policy in self.policies if (edge := self.parts.edge(*pair, policy))]
            if not options:
                return None
            timed = [(self._us([*edges, edge, *rest]), edge.count, edge) for edge in options]
            best_us, _, chosen = min(timed, key=lambda entry: entry[:2])
            edges.append(chosen)
        schedule = LaunchesSchedule(tuple(edges))
        problem = why_not_beside(self.parts, schedule)
        assert problem is None, (group.name, problem)
        return replace(group, schedule=schedule), best_us

    def _us(self, edges: Sequence[TileEdge]) -> float:
        facts = beside_facts(self.parts, edges, self.kernels, self.gpu.device)
        return latency_us(self.model, facts, self.gpu.device)


LEAST_GAIN = 0.02
"""Least gain relative to separate kernels: less is within the error of any prediction."""
MOST_TILES = 1 << 15
"""Most tiles of a launch that are simulated individually."""
RULE = "sync"


COMPUTED_TOGETHER = ("band", "block")
"""Ties of groups whose parts are scheduled for blocks that compute them together."""


@dataclass(frozen=True)
class TiedGroup:
    """A group with tile-level waits, and its predicted time."""

    group: Group
    latency_us: float


@dataclass(frozen=True)
class Chain:
    """Kernels, each of which reads the one before, as one group, and the predicted saving."""

    names: tuple[str, ...]
    tied: TiedGroup
    saved_us: float


class Chooser:
    """Grows chains of kernels, and ties each in the form and with the policies predicted to be fastest."""

    def __init__(self, graph: Graph, kernels: Kernels, wanted: Wanted, model: LatencyModel) -> None:
        self.graph, self.kernels, self.wanted, self.model = graph, kernels, wanted, model
        device = device_of(kernels.target)
        assert isinstance(device, Device)
        self.device: Device = device
        self.known = Known()

    def grow(self, first: str) -> tuple[Chain | None, list[WhyNot]]:
        """Return the longest chain from a kernel on that pays, and the refusals."""
        names, best, refusals = [first], None, list[WhyNot]()
        while True:
            further, more = self._further(names, best)
            refusals += more
            if further is None:
                break
            names, best = further
        if best is None:
            return None, refusals
        apart_us = sum(map(self._alone_us, names))
        return Chain(tuple(names), best, apart_us - best.latency_us), refusals

    def fits(self, chain: Chain) -> bool:
        """Return whether the chain is still possible after others were tied."""
        proposal = Combine(tuple((name,) for name in chain.names), tie=chain.tied.group.tie)
        return not isinstance(self.kernels.combined(proposal, RULE), WhyNot)

    def _further(
        self, chain: list[str], best: TiedGroup | None
    ) -> tuple[tuple[list[str], TiedGroup] | None, list[WhyNot]]:
        refusals: list[WhyNot] = []
        if self.kernels.groups[chain[-1]].stages:
            return None, refusals
        readers = self.kernels.readers[chain[-1]]
        for name in (n for n in self.kernels.order if n in readers and n in self.kernels.groups):
            odd = self._why_no_link(name)
            found, why = (None, [odd]) if odd is not None else self._best_form([*chain, name])
            refusals += why
            if found is None:
                continue
            before_us = best.latency_us if best is not None else self._alone_us(chain[-1])
            apart_us = before_us + self._alone_us(name)
            if self.wanted.forced or found.latency_us < (1 - LEAST_GAIN) * apart_us:
                return ([*chain, name], found), refusals
            (gain, *_) = reversed(gains(self.kernels.nodes, found.group, self._facts(found.group), self.device))
            numbers = {
                "apart_us": round(apart_us, 3), "together_us": round(found.latency_us, 3), "waves": gain.waves,
                "waves_together": round(gain.waves_together, 2),
            }  # fmt: skip
            subject = " -> ".join([*chain, name])
            refusals.append(
                WhyNot(subject, "sync.gain", "stages that run into each other would save too little", numbers)
            )
        return None, refusals

    def _alone_us(self, name: str) -> float:
        return self.kernels.latency_us(self.kernels.groups[name], self.model)

    def _why_no_link(self, name: str) -> WhyNot | None:
        """Return a refusal for kernels with several parts, which cannot be links of chains: one edge does not tell
        whether the parts are better separate.
        """
        if not self.kernels.groups[name].stages:
            return None
        return WhyNot(name, "sync.part", f"{name} has parts of its own")

    def _best_form(self, chain: Sequence[str]) -> tuple[TiedGroup | None, list[WhyNot]]:
        """Return the chain in the form predicted to be fastest; and the refusals, if no form is possible."""
        found = [self.tied(chain, form) for form in self.wanted.forms]
        tied = [each for each in found if isinstance(each, TiedGroup)]
        refusals = [each for n, each in enumerate(found) if isinstance(each, WhyNot) and each not in found[:n]]
        return min(tied, key=lambda each: each.latency_us, default=None), [] if tied else refusals

    def tied(self, chain: Sequence[str], form: str = "tickets") -> TiedGroup | WhyNot:
        """Return kernels, given in dependence order, tied in a form, with the policies predicted to be fastest."""
        proposal = Combine(tuple((name,) for name in chain), tie=form)
        group = self.kernels.combined(proposal, RULE)
        if isinstance(group, WhyNot):
            return group
        group = self._rescheduled(group)
        odd = next((part.name for part in group.parts if part.schedule is None), None)
        if odd is not None:
            return WhyNot(proposal.subject, "sync.part", f"{odd} has no schedule of tilestitch's, or stores nothing")
        found = self._scheduled(group, proposal.subject)
        sooner = self._sooner(group)
        if isinstance(found, TiedGroup) and sooner != group:
            other = self._scheduled(sooner, proposal.subject)
            if isinstance(other, TiedGroup) and other.latency_us < found.latency_us:
                return other
        return found

    def _sooner(self, group: Group) -> Group:
        """Return the group with rows of tiles completed sooner in all kernels that others wait for."""
        if self.wanted.whole:
            return group
        *stages, last = group.stages
        found = [
            tuple(rows_sooner(self.kernels.nodes, part, self.device, self._part_us(part)) for part in stage)
            for stage in stages
        ]
        return replace(group, stages=(*found, last))

    def _part_us(self, part: Group) -> float:
        return self.kernels.latency_us(part, self.model)

    def _scheduled(self, group: Group, subject: str) -> TiedGroup | WhyNot:
        """Return a group of scheduled kernels with the policies predicted to be fastest."""
        problem = self._unfit(group)
        if problem is not None:
            return WhyNot(subject, "sync.part", problem)
        parts = Parts.of(self.kernels.nodes, group.parts, self.known)
        if isinstance(parts, str):
            return WhyNot(subject, "sync.part", parts)
        tiles = sum(relation.grid.blocks for relation in parts.relations)
        if tiles > MOST_TILES:
            return WhyNot(subject, "sync.size", f"{tiles} tiles are more than {MOST_TILES}")
        if not self.wanted.forced and not self._has_waves(group, parts):
            reason = "all tiles of each kernel are computed at once, so no multiprocessor stands idle in a last wave"
            return WhyNot(subject, "sync.waves", reason, {"tiles": tiles})
        found = self._tickets(group, parts) if group.tie == "tickets" else self._beside(group, parts)
        if found is None:
            names = ", ".join(policy.name for policy in self.wanted.policies)
            return WhyNot(subject, "sync.policy", f"{names} fits no dependence there")
        if isinstance(found.group.schedule, TicketSchedule):
            problem = why_not_drawn(parts, found.group.schedule)
            assert problem is None, (subject, problem)
        return found

    def _unfit(self, group: Group) -> str | None:
        """Return why kernels cannot be tied as the group specifies; None if they can."""
        nodes = self.kernels.nodes
        if group.tie == "tickets":
            return ticketing_of(nodes, group).why_not(self.device.shared_bytes_per_block)
        return tying_of(nodes, group).why_not(Gpu.of(self.kernels.target).capability)

    def _tickets(self, group: Group, parts: Parts) -> TiedGroup | None:
        multiprocessors = multiprocessors_of(self.kernels.target)
        tickets = Tickets(parts, self.wanted, self._facts(group), self.device, multiprocessors, self.model)
        found = tickets.fastest(group)
        return None if found is None else TiedGroup(*found)

    def _beside(self, group: Group, parts: Parts) -> TiedGroup | None:
        gpu = Gpu.of(self.kernels.target)
        found = Beside(parts, self.wanted.policies, self._facts(group), gpu, self.model).fastest(group)
        return None if found is None else TiedGroup(*found)

    def _rescheduled(self, group: Group) -> Group:
        """Return the group with new schedules for parts that now compute an additional reshape, and for those of
        bands.
        """
        holders = (self.kernels.groups[name] for name in {self.kernels.holder(part.name) for part in group.parts})
        known = {part.name: (part, holder.tie) for holder in holders for part in holder.parts or (holder,)}

        def scheduled(part: Group) -> Group:
            before, tie = known[part.name]
            return self.drawable(part, before.nodes != part.nodes or tie in COMPUTED_TOGETHER)

        return replace(group, stages=tuple(tuple(map(scheduled, stage)) for stage in group.stages))

    def drawable(self, part: Group, afresh: bool) -> Group:
        """Return a part with a schedule under which its own blocks can draw tiles. afresh: its current schedule is for
        other work.
        """
        kernels = self.kernels
        if afresh:
            part = schedule_group(kernels.nodes, replace(part, schedule=None), kernels.target, self.model)
        return drawable(kernels.nodes, part, Gpu.of(kernels.target), self.model) if self.wanted.whole else part

    def _facts(self, group: Group) -> list[KernelFacts]:
        return [group_facts(self.kernels.nodes, part, self.kernels.target, self.model) for part in group.parts]

    def _has_waves(self, group: Group, parts: Parts) -> bool:
        """Return whether any part has more tiles than blocks fit on the device."""
        steps = launches_of(parts, self._facts(group))
        pairs = zip(parts.relations, steps, strict=True)
        return any(relation.grid.blocks > slots(step.sequence[-1], self.device) for relation, step in pairs)
