"""Kernels composed of kernels: groups side by side in one launch, or in stages separated by a grid barrier.

Rules that combine whole groups run after those that join nodes. A rule of this kind has a class variable `name` and
`combine(kernels)`, which yields `Combine` objects one by one; each is tried immediately, as `Fuse` objects are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Protocol, runtime_checkable

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel, latency_us
from tilestitch.passes.fusion.cost.profit import MOST_OPERANDS
from tilestitch.passes.fusion.cost.row_bands import why_no_band
from tilestitch.passes.plan import Group, GroupKind, HostGroup, Place, Stitch, WhyNot, wholes_of
from tilestitch.passes.plan.gemm.gemv import few_rows_of, most_shared_bytes
from tilestitch.passes.plan.launches.cuda.blocks import axes_of_slabs
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.cuda.rows import may_spread
from tilestitch.passes.schedule.device import device_of, multiprocessors_of
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.passes.schedule.order import written

from .closure import Closure, mask_of
from .legality import operands

MOST_PARTS = 8
"""Most parts of a stitched group: more compile slowly."""
MOST_TICKET_PARTS = 512
"""Most parts of a launch whose blocks draw tiles: each is a branch, found by bisection."""
MOST_TICKET_OPERANDS = 480
"""Most pointers, which are kernel parameters, of which every GPU accepts 4096 bytes."""
PART_SHARED_BYTES = (48 << 10) // MOST_PARTS
"""Shared memory of a GEMM in a stitched kernel on a GPU: an equal share for all parts."""
RULE_TIES = ("barrier", "band", "block")
"""Ties between stages that rules may request; tiles are tied after fusion, by the schedules of the parts."""
GATHERS = frozenset({"gather", "gather_nd", "gather_elements"})


@dataclass(frozen=True)
class Combine:
    """Proposal to make the groups of these names one kernel, stage after stage.

    `forced`: wherever legal, regardless of profit. `tie`: between stages (`RULE_TIES`).
    """

    stages: tuple[tuple[str, ...], ...]
    forced: bool = False
    tie: str = "barrier"

    @property
    def subject(self) -> str:
        return " -> ".join(" + ".join(stage) for stage in self.stages)


@runtime_checkable
class CombineRule(Protocol):
    """Protocol of rules that combine groups; see the module's docstring."""

    name: ClassVar[str]

    def combine(self, kernels: Kernels) -> Iterator[Combine]: ...


class Kernels:
    """The groups of a graph, by name, while rules combine them. `aliases`: the root of each aliased value, by name."""

    def __init__(
        self, graph: Graph, groups: Sequence[Group], host_groups: Sequence[HostGroup], aliases: Mapping[str, str],
        target: TargetInfo, places: Mapping[str, Place] | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.target, self.aliases = graph, target, dict(aliases)
        self.places, self.wholes = dict(places or {}), wholes_of(places or {})
        self.device: AnyDevice = device_of(target)
        self.host_groups = tuple(host_groups)
        self.groups = {g.name: g for g in groups}
        self.nodes: dict[str, Node] = {n.name: n for n in graph.nodes}
        self.position = {n.name: i for i, n in enumerate(graph.nodes)}
        self.values: dict[str, Value] = {o.name: o for n in graph.nodes for o in n.outputs}
        self.remarks: list[WhyNot] = []
        """Remarks of rules that concern no single proposal; the plan keeps them among the refusals."""
        self._facts: dict[tuple[str, int], KernelFacts] = {}
        self._latencies: dict[tuple[str, int], float] = {}
        self._unfit_parts: dict[tuple[str, tuple[str, ...], bool], str | None] = {}
        self._relate()

    def _relate(self) -> None:
        """Compute which kernels read which, and which values; transitively by `reach`."""
        everything = self._everything()
        self._makers = {v: g.name for g in everything for v in g.outputs}
        self._holders = {part.name: g.name for g in self.groups.values() for part in g.parts or (g,)}
        self._value_readers: dict[str, dict[str, None]] = {}
        self._names_of: dict[str, list[str]] = {}
        for alias, root in self.aliases.items():
            self._names_of.setdefault(root, []).append(alias)
        for group in everything:
            self._note_reader(group)
        self.producers = {g.name: self._makers_of(g) for g in everything}
        self.readers: dict[str, set[str]] = {g.name: set() for g in everything}
        for name, producers in self.producers.items():
            for producer in producers:
                self.readers[producer].add(name)
        first = self._sorted()
        number = {name: i for i, name in enumerate(first)}
        closure = Closure([[number[p] for p in self.producers[name]] for name in first])
        self._closure, self._order = closure, first
        self._first_order = tuple(first)
        self.reach = {name: closure.of[i] for i, name in enumerate(first)}

    def _note_reader(self, group: Group | HostGroup) -> None:
        for value in group.inputs:
            self._value_readers.setdefault(value, {})[group.name] = None

    def _makers_of(self, group: Group | HostGroup) -> set[str]:
        roots = written(group.inputs, self.aliases, self.wholes)
        return {self._makers[r] for r in roots if r in self._makers} - {group.name}

    def _everything(self) -> list[Group | HostGroup]:
        return [*self.groups.values(), *self.host_groups]

    @property
    def order(self) -> list[str]:
        """All groups in an order that dependences allow, close to the graph's."""
        if not self._order:
            self._order = self._sorted()
        return self._order

    def _sorted(self) -> list[str]:
        place = {name: self._place(name) for name in self.readers}
        waits = {name: len(producers) for name, producers in self.producers.items()}
        ready = [(place[name], name) for name, count in waits.items() if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            order.append(heapq.heappop(ready)[1])
            for reader in self.readers[order[-1]]:
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(ready, (place[reader], reader))
        return order

    def _place(self, name: str) -> int:
        return max(self.position[n] for n in self.groups[name].nodes) if name in self.groups else self.position[name]

    def holder(self, name: str) -> str:
        """Return the group that contains the original group `name`."""
        return self._holders[name]

    def slack(self) -> dict[str, tuple[int, int]]:
        """Return the first and the last step in which each group can run if all groups take one step and resources are
        unlimited.
        """
        earliest: dict[str, int] = {}
        for name in self.order:
            earliest[name] = max((earliest[p] + 1 for p in self.producers[name]), default=0)
        steps = max(earliest.values(), default=0)
        latest: dict[str, int] = {}
        for name in reversed(self.order):
            latest[name] = min((latest[r] - 1 for r in self.readers[name]), default=steps)
        return {name: (earliest[name], latest[name]) for name in self.order}

    # -- cost ----------------------------------------------------------------------------------------------------

    def facts(self, group: Group, model: LatencyModel) -> KernelFacts:
        """Return the facts of a group of this graph with its schedule by `model`, memoised per model."""
        key = group.name, id(model)
        if key not in self._facts:
            self._facts[key] = group_facts(self.nodes, group, self.target, model)
        return self._facts[key]

    def latency_us(self, group: Group, model: LatencyModel) -> float:
        """Return what `model` predicts for a group of this graph."""
        key = group.name, id(model)
        if key not in self._latencies:
            self._latencies[key] = latency_us(model, self.facts(group, model), self.device)
        return self._latencies[key]

    # -- legality ------------------------------------------------------------------------------------------------

    def combined(self, proposal: Combine, rule: str) -> Group | WhyNot:
        """Return the group of a proposal, or why it cannot be a kernel."""
        named = [name for stage in proposal.stages for name in stage]
        if not all(n in self.groups for n in named) or len(set(named)) != len(named) or len(named) < 2:
            return WhyNot(proposal.subject, rule, "it names something that is no group, or names one twice")
        refusal = self._unfit(proposal) or self._misplaced(proposal)
        return refusal or self._stitched(proposal, rule)

    def why_no_part(self, group: Group, *, first: bool = True) -> str | None:
        """Return why no stitched kernel can contain `group` (in a later stage than the first), in words."""
        if self.target.name == "cpu":
            return None
        if group.tie == "block":
            return "has slabs, each of which a block computes"
        reasons = (self._no_part(part, first) for part in group.parts or (group,))
        return next((r for r in reasons if r is not None), None)

    def _no_part(self, part: Group, first: bool) -> str | None:
        key = part.name, part.nodes, first
        if key not in self._unfit_parts:
            self._unfit_parts[key] = self._why_no_part(part, first)
        return self._unfit_parts[key]

    def _why_no_part(self, part: Group, first: bool) -> str | None:
        nodes = [self.nodes[n] for n in part.nodes]
        if part.kind is GroupKind.CONTRACTION:
            return self._no_gemm(part, nodes, first)
        if part.kind not in (GroupKind.INJECTIVE, GroupKind.ROWWISE):
            return f"is of kind {part.kind.value}, whose kernels take launches of their own"
        if not first and any(n.op in GATHERS and not n.inputs[1].is_constant for n in nodes):
            return "gathers by indices that are checked before the launch"
        roles = roles_of(nodes, [self.values[v] for v in part.outputs])
        if isinstance(roles, Roles) and roles.rows is not None and may_spread(roles, multiprocessors_of(self.target)):
            return "has few long rows, which a kernel of their own may spread over blocks"
        return None

    def _no_gemm(self, part: Group, nodes: Sequence[Node], first: bool) -> str | None:
        """Return why a GEMM cannot be a part: only those of few rows may, whose shared memory is small."""
        roles = roles_of(nodes, [self.values[v] for v in part.outputs])
        rows = few_rows_of(roles) if isinstance(roles, Roles) else None
        if rows is None or not isinstance(roles, Roles) or not first:
            return "is of kind contraction, whose kernels take launches of their own"
        nbytes = most_shared_bytes(roles, rows)
        if nbytes > PART_SHARED_BYTES:
            return f"keeps {nbytes} bytes in shared memory, more than {PART_SHARED_BYTES}"
        return None

    def _unfit(self, proposal: Combine) -> WhyNot | None:
        """Return the refusal for a group that no stitched kernel can contain."""
        subject = proposal.subject
        if len(proposal.stages) > 1 and self.target.name == "cpu":
            reason = "on a CPU a barrier in a kernel is what lies between launches"
            return WhyNot(subject, "legality.global_target", reason)
        shared = self._read_and_written([self.groups[name] for stage in proposal.stages for name in stage])
        if shared is not None:
            reason = f"it would write parts of {shared} and read {shared}, by two pointers to the same memory"
            return WhyNot(subject, "legality.in_place", reason)
        if proposal.tie == "band":
            return self._unfit_for_bands(proposal)
        if proposal.tie == "tickets":
            return self._unfit_for_tickets(proposal)
        if proposal.tie == "launches":
            return self._unfit_for_launches(proposal)
        if proposal.tie == "block":
            return self._unfit_for_blocks(proposal)
        for number, stage in enumerate(proposal.stages):
            for group in (self.groups[name] for name in stage):
                if len(group.stages) > 1 and (number or len(stage) > 1):
                    return WhyNot(subject, "legality.stages", f"{group.name} has stages of its own")
                reason_ = self.why_no_part(group, first=number == 0)
                if reason_ is not None:
                    return WhyNot(subject, "legality.part", f"{group.name} {reason_}")
        return None

    def _read_and_written(self, groups: Sequence[Group]) -> str | None:
        """Return a value that one of `groups` writes in part in place, and another reads as a whole; kernels may assume
        that what they write overlaps no other argument.
        """
        into = {self.places[v].whole for group in groups for v in group.outputs if v in self.places}
        read = {self.aliases.get(v, v) for group in groups for v in group.inputs}
        return min(into & read, default=None)

    def _unfit_for_bands(self, proposal: Combine) -> WhyNot | None:
        """Check the groups by themselves; how one reads the other is checked when they are parts."""
        if [len(stage) for stage in proposal.stages] != [1, 1]:
            return WhyNot(proposal.subject, "legality.band_kinds", "bands tie one GEMM and what comes after it")
        after = self.groups[proposal.stages[1][0]]
        if any(n.op in GATHERS and not n.inputs[1].is_constant for n in map(self.nodes.__getitem__, after.nodes)):
            reason = f"{after.name} gathers by indices that are checked before the launch"
            return WhyNot(proposal.subject, "legality.part", reason)
        return None

    def _unfit_for_blocks(self, proposal: Combine) -> WhyNot | None:
        """Check that the groups' templates support slabs; common slabs are checked when they are parts."""
        for group in (self.groups[name] for stage in proposal.stages for name in stage):
            if group.stages and group.tie != "block":
                return WhyNot(proposal.subject, "legality.part", f"{group.name} has parts of its own")
            kinds = {part.kind for part in group.parts or (group,)}
            if not kinds <= {GroupKind.INJECTIVE, GroupKind.ROWWISE}:
                reason = f"{group.name} is of kind {group.kind.value}, whose kernels have no slabs"
                return WhyNot(proposal.subject, "legality.part", reason)
            if any(n.op in GATHERS and not n.inputs[1].is_constant for n in self._nodes_of(group)):
                reason = f"{group.name} gathers by indices that are checked before the launch"
                return WhyNot(proposal.subject, "legality.part", reason)
        return None

    def _unfit_for_tickets(self, proposal: Combine) -> WhyNot | None:
        """Check the form of the stages; the groups' schedules decide which kernels can draw tiles."""
        if all(len(stage) == 1 for stage in proposal.stages):
            return None
        return WhyNot(proposal.subject, "sync.part", "kernels draw tiles one after the other, none beside another")

    def _unfit_for_launches(self, proposal: Combine) -> WhyNot | None:
        """Check that the groups have one part each, as launches of their own; their schedules define their blocks."""
        for number, group in enumerate(self.groups[name] for stage in proposal.stages for name in stage):
            if group.stages:
                return WhyNot(proposal.subject, "sync.part", f"{group.name} has parts of its own")
            if number and any(n.op in GATHERS and not n.inputs[1].is_constant for n in self._nodes_of(group)):
                reason = f"{group.name} gathers by indices that are checked before the launch"
                return WhyNot(proposal.subject, "sync.part", reason)
        return None

    def _nodes_of(self, group: Group) -> list[Node]:
        return [self.nodes[name] for name in group.nodes]

    def _misplaced(self, proposal: Combine) -> WhyNot | None:
        """Return the refusal for dependences that the stages violate, or that lead through other groups."""
        subject = proposal.subject
        members = [self.reach[name] for stage in proposal.stages for name in stage]
        everyone, before = mask_of(members), 0
        for stage in proposal.stages:
            for name in stage:
                wrong = self.reach[name].above & everyone & ~before
                if wrong:
                    other = self._group_of(wrong.bit_length() - 1)
                    return WhyNot(subject, "legality.stages", f"{name} needs {other}, which is in no earlier stage")
            before |= mask_of(self.reach[name] for name in stage)
        between = self._closure.between(members)
        if between is not None:
            name = self._group_of(between)
            return WhyNot(subject, "legality.cycle", f"{name} lies between them: the kernel would wait for itself")
        return None

    def _group_of(self, number: int) -> str:
        name = self._first_order[number]
        return self._holders.get(name, name)

    # -- combining -----------------------------------------------------------------------------------------------

    def replace(self, group: Group) -> None:
        """Replace the groups that are its parts, or have these as parts, by a combined group."""
        old = list(dict.fromkeys(self._holders[part.name] for part in group.parts))
        inside = [self.groups.pop(name) for name in old]
        self.groups[group.name] = group
        self._holders.update((part.name, group.name) for part in group.parts)
        for part in inside:
            for value in part.inputs:
                self._value_readers[value].pop(part.name, None)
        self._note_reader(group)
        for alias in {v for part in inside for v in part.inputs if v in self.aliases}:
            if not self._value_readers[alias]:
                self._names_of[self.aliases.pop(alias)].remove(alias)
        self._relate_again(group, old)

    def _relate_again(self, group: Group, old: Sequence[str]) -> None:
        """Give `group` the producers and readers of the groups `old`."""
        readers = set[str]().union(*(self.readers.pop(name) for name in old)) - set(old)
        producers = set[str]().union(*(self.producers.pop(name) for name in old)) - set(old)
        self.readers[group.name], self.producers[group.name] = readers, producers
        for reader in readers:
            self.producers[reader].difference_update(old)
            self.producers[reader].add(group.name)
        for producer in producers:
            self.readers[producer].difference_update(old)
            self.readers[producer].add(group.name)
        self.reach[group.name] = self._closure.merge([self.reach.pop(name) for name in old])
        self._order = []

    def _stitched(self, proposal: Combine, rule: str) -> Group | WhyNot:
        groups = [[self.groups[name] for name in stage] for stage in proposal.stages]
        stages = _stages_of(groups, proposal.tie)
        made = {v for stage in stages for part in stage for v in part.outputs}
        owned = [[self._own(part, made) for part in stage] for stage in stages]
        refused = next((p for stage in owned for p in stage if isinstance(p, WhyNot)), None)
        if refused is not None:
            return replace(refused, subject=proposal.subject)
        kept = tuple(tuple(p for p in stage if isinstance(p, Group)) for stage in owned)
        flat = [part for stage in kept for part in stage]
        inputs = dict.fromkeys(v for p in flat for v in p.inputs if v not in made)
        constants = dict.fromkeys(v for p in flat for v in p.constants)
        size = len(inputs) + len(constants) + len(made)
        drawn = proposal.tie == "tickets"
        most = (MOST_TICKET_PARTS, MOST_TICKET_OPERANDS) if drawn else (MOST_PARTS, MOST_OPERANDS)
        if len(flat) > most[0] or size > most[1]:
            numbers = {"parts": len(flat), "operands": size}
            return WhyNot(proposal.subject, "profit.size", "the kernel would be too large to compile well", numbers)
        if proposal.tie == "band":
            gemm, after = flat
            refused = why_no_band(self.nodes, gemm, after, proposal.subject)
            if refused is not None:
                return refused
        members = {g.name for stage in groups for g in stage}
        nodes = {n for p in flat for n in p.nodes}
        whole = Group(
            name=self._name(flat),
            kind=GroupKind.STITCHED,
            nodes=tuple(sorted(nodes, key=self.position.__getitem__)),
            anchor=None,
            inputs=tuple(inputs),
            constants=tuple(constants),
            outputs=tuple(v for p in flat for v in p.outputs if self._needed(v, members)),
            origins=tuple(dict.fromkeys(o for p in flat for o in p.origins)),
            stitches=(*(s for p in flat for s in p.stitches), *self._stitches(groups, kept, rule, proposal.tie)),
            stages=kept,
            tie=proposal.tie,
        )
        if proposal.tie == "block" and not axes_of_slabs(self.nodes, whole):
            reason = "they share no axis along which every block could have a part of all that they store"
            return WhyNot(proposal.subject, "legality.block_axes", reason)
        return whole

    def _stitches(
        self, groups: Sequence[Sequence[Group]], stages: Sequence[Sequence[Group]], rule: str, tie: str
    ) -> list[Stitch]:
        """Return the stitches between parts: existing ones, and new ones through memory and side by side."""
        between = ("global", "packing", "block")
        old = [s for stage in groups for g in stage if g.parts for s in g.stitches if s.scheme in between]
        known = {(s.producer, s.consumer) for s in old}
        return old + [s for s in _between(self.nodes, stages, rule, tie) if (s.producer, s.consumer) not in known]

    def _name(self, parts: Sequence[Group]) -> str:
        rest = parts[1].name if len(parts) == 2 else f"{len(parts) - 1}_more"
        base = name = f"{parts[0].name}_and_{rest}"
        count = 1
        while name in self.groups or name in self.nodes:
            count += 1
            name = f"{base}_{count}"
        return name

    def _own(self, part: Group, made: set[str]) -> Group | WhyNot:
        """Return a part that computes itself the reshapes of other parts' outputs: between kernels they were
        aliases.
        """
        chain: list[str] = []
        for name in part.inputs:
            value = self.values.get(name)
            while value is not None and self.aliases.get(value.name) in made:
                assert value.producer is not None
                chain.append(value.producer.name)
                value = value.producer.inputs[0]
        if not chain:
            return part
        names = sorted({*chain, *part.nodes}, key=self.position.__getitem__)
        nodes = [self.nodes[n] for n in names]
        roles = roles_of(nodes, [self.values[v] for v in part.outputs], part.name)
        if isinstance(roles, WhyNot):
            return roles
        inputs, constants = operands(nodes)
        return replace(
            part,
            nodes=tuple(names),
            kind=roles.kind,
            anchor=roles.anchor.name if roles.anchor else None,
            inputs=tuple(v.name for v in inputs),
            constants=tuple(v.name for v in constants),
        )

    def _needed(self, value: str, members: set[str]) -> bool:
        """Return whether a kernel outside the groups `members` reads a value, or an alias of it."""
        if self.graph.is_output(self.values[value]) or value in self.places:
            return True
        names = (value, *self._names_of.get(value, ()))
        return any(reader not in members for name in names for reader in self._value_readers.get(name, ()))


def _stages_of(groups: Sequence[Sequence[Group]], tie: str) -> list[list[Group]]:
    """Return the parts of a combined group; groups that have parts already contribute these, as stages where
    possible.
    """
    if tie == "tickets":
        return [list(stage) for (group,) in groups for stage in group.stages or ((group,),)]
    if tie == "block":
        return [[p] for stage in groups for g in stage for p in g.parts or (g,)]
    later = [[p for g in stage for p in g.parts or (g,)] for stage in groups if len(stage[0].stages) < 2]
    return [*map(list, groups[0][0].stages), *later] if len(groups[0][0].stages) > 1 else later


def _between(nodes: Mapping[str, Node], stages: Sequence[Sequence[Group]], rule: str, tie: str) -> Iterator[Stitch]:
    """Yield the stitches between parts: through global memory, and side by side."""
    scheme = {"band": "band", "tickets": "tile", "launches": "tile", "block": "block"}.get(tie, "global")
    makers = {o.name: n for stage in stages for part in stage for n in part.nodes for o in nodes[n].outputs}
    stored = {v for stage in stages for part in stage for v in part.outputs}
    for stage in stages:
        for part in stage:
            for node in part.nodes:
                for value in dict.fromkeys(nodes[node].inputs):
                    if value.name in part.inputs and value.name in stored:
                        yield Stitch(makers[value.name], node, scheme, rule)
        for first, second in pairwise(stage):
            yield Stitch(first.nodes[-1], second.nodes[0], "packing", rule)
