"""Applies fusion rules to a graph and turns the resulting clusters into groups, with a reason for every remaining
border.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of
from tilestitch.passes.errors import PassContractError
from tilestitch.passes.fusion import legality
from tilestitch.passes.fusion.cost import profit
from tilestitch.passes.fusion.rules.builtin import Fuse, FusionRule
from tilestitch.passes.fusion.rules.inplace import InPlace, places_in
from tilestitch.passes.plan import Group, GroupKind, HostGroup, Place, Stitch, StitchPlan, WhyNot
from tilestitch.passes.plan.roles import Part, Roles, is_native, is_native_type
from tilestitch.passes.plan.target import TargetInfo

from .clusters import Cluster, Fusion
from .stages import Combine, CombineRule, Kernels

Named: TypeAlias = tuple[tuple[str, str], ...]
Partition: TypeAlias = frozenset[tuple[Named, Named]]
GEMMS = (GroupKind.CONTRACTION, GroupKind.ATTENTION)
MOST_PROPOSALS = 200_000
"""Limit of a rule's proposals, beyond which it is in an endless loop."""


@dataclass(frozen=True)
class Stitched:
    """All groups of a graph, the values that are aliases or parts of others, and the refusals."""

    groups: tuple[Group, ...]
    host_groups: tuple[HostGroup, ...]
    aliases: dict[str, str]
    places: dict[str, Place]
    refusals: tuple[WhyNot, ...]


@dataclass(frozen=True)
class Fused:
    """The result of fusion by `rules`, and the refusals on the way."""

    state: Fusion
    rules: tuple[FusionRule, ...]
    refusals: tuple[WhyNot, ...]

    @cached_property
    def partition(self) -> Partition:
        """What each cluster owns and copies, by name and operator: equal for equal graphs with equal fusion."""
        return frozenset((_named(c.owned), _named(c.copies)) for c in self.state.clusters())

    @property
    def combining(self) -> list[FusionRule]:
        """The rules that combine kernels: with equal ones, equal partitions have equal plans."""
        return [rule for rule in self.rules if isinstance(rule, CombineRule)]


def _named(nodes: Iterable[Node]) -> Named:
    return tuple(sorted((node.name, node.op) for node in nodes))


def fuse(graph: Graph, rules: Sequence[FusionRule], target: TargetInfo) -> Fused:
    """Let `rules` fuse nodes, in order. Raises PassContractError if a rule violates its protocol."""
    state = Fusion(graph, target, rules)
    refusals: dict[tuple[str, str, str], WhyNot] = {}
    for rule in rules:
        for count, proposal in enumerate(rule.propose(state)):
            if not isinstance(proposal, Fuse) or count > MOST_PROPOSALS:
                raise PassContractError(f"fusion rule {rule.name} proposed {proposal!r}, not a Fuse, or without end")
            refusal = attempt(state, rule, proposal, rules)
            # Refusals of built-in rules are found again at the remaining borders; of other rules every attempt is kept.
            if refusal is not None and (proposal.forced or refusal.rule in {r.name for r in rules}):
                refusals.setdefault(_key(refusal), refusal)
    return Fused(state, tuple(rules), tuple(refusals.values()))


def stitch(fused: Fused, *, aliases: bool = True) -> Stitched:
    """Combine the kernels of a fused graph. Raises PassContractError if a rule violates its protocol."""
    state, rules = fused.state, fused.rules
    refusals = {_key(refusal): refusal for refusal in fused.refusals}
    kernels, refused = combined(state, rules, aliases=aliases)
    alias_of = _aliases(state) if aliases else {}
    for refusal in (*state.remarks, *_not_native(state.graph), *_borders(state, rules, alias_of), *refused):
        refusals.setdefault(_key(refusal), refusal)
    groups = tuple(kernels.groups.values())
    return Stitched(groups, kernels.host_groups, kernels.aliases, kernels.places, tuple(refusals.values()))


def _key(refusal: WhyNot) -> tuple[str, str, str]:
    return refusal.subject, refusal.rule, refusal.reason


def combined(state: Fusion, rules: Sequence[FusionRule], *, aliases: bool = True) -> tuple[Kernels, list[WhyNot]]:
    """Return the kernels of a state, combined by `rules`, and the refusals."""
    alias_of = _aliases(state) if aliases else {}
    places = places_in(state, alias_of) if any(isinstance(rule, InPlace) for rule in rules) else {}
    groups, host_groups = _groups(state, alias_of, {place.whole for place in places.values()})
    names = {a.name: r.name for a, r in alias_of.items()}
    kernels = Kernels(state.graph, groups, host_groups, names, state.target, places)
    return kernels, _combine(state, kernels, rules)


def _combine(state: Fusion, kernels: Kernels, rules: Sequence[FusionRule]) -> list[WhyNot]:
    """Let rules combine whole kernels; returns refusals and remarks."""
    refusals: list[WhyNot] = []
    for rule in rules:
        if not isinstance(rule, CombineRule):
            continue
        for count, proposal in enumerate(rule.combine(kernels)):
            if not isinstance(proposal, Combine) or count > MOST_PROPOSALS:
                raise PassContractError(f"fusion rule {rule.name} proposed {proposal!r}, not a Combine, or without end")
            found = kernels.combined(proposal, rule.name)
            if isinstance(found, WhyNot):
                refusals.append(found)
                continue
            nodes = [kernels.nodes[n] for n in found.nodes]
            forbidden = next((w for r in rules if (w := r.forbid(state, nodes)) is not None), None)
            if forbidden is not None:
                refusals.append(replace(forbidden, subject=proposal.subject))
                continue
            kernels.replace(found)
    return refusals + kernels.remarks


def attempt(state: Fusion, rule: FusionRule, proposal: Fuse, rules: Sequence[FusionRule]) -> WhyNot | None:
    """Carry out `proposal`, or return why not: forbidden by a rule, illegal, or (unless forced) unprofitable."""
    # An owner is gone where all readers of its nodes have copies.
    clusters = [c for c in dict.fromkeys(state.cluster_of(n) for n in proposal.nodes) if state.is_live(c)]
    copies = [n for n in proposal.copies if not any(n in c.members for c in clusters)]
    if len(clusters) < 2 and not copies:
        return None
    refusal = _refusal(state, clusters, copies, rules, proposal.subject, ask_profit=not proposal.forced)
    if refusal is None:
        state.join(clusters, copies, rule.name)
    return refusal


def _refusal(
    state: Fusion, clusters: Sequence[Cluster], copies: Sequence[Node], rules: Sequence[FusionRule], subject: str,
    *, ask_profit: bool,
) -> WhyNot | None:  # fmt: skip
    nodes = state.in_order({n for c in clusters for n in c.members} | set(copies))
    for rule in rules:
        refusal = rule.forbid(state, nodes)
        if refusal is not None:
            return refusal
    if not ask_profit:
        return legality.why_not(state, clusters, copies, subject)
    asked = legality.why_cyclic, profit.too_large, legality.why_no_group, profit.why_not
    return next((w for ask in asked if (w := ask(state, clusters, copies, subject)) is not None), None)


def _borders(state: Fusion, rules: Sequence[FusionRule], aliases: dict[Value, Value]) -> list[WhyNot]:
    """Return the reason for each pair of native clusters that stayed apart though one reads the other."""
    refusals = []
    for producer, consumer in state.cross_edges():
        pair = [state.cluster_of(producer), state.cluster_of(consumer)]
        if not all(map(state.is_native, pair)) or any(o in aliases for o in (*producer.outputs, *consumer.outputs)):
            continue
        subject = f"{producer.name} -> {consumer.name}"
        refusal = _refusal(state, pair, (), rules, subject, ask_profit=True)
        refusal = refusal or WhyNot(subject, "planner", "no fusion rule proposes it")
        # If the refusal names an edge, it is the relevant one; otherwise name the border.
        refusals.append(refusal if " -> " in refusal.subject else replace(refusal, subject=subject))
    return refusals


def _not_native(graph: Graph) -> list[WhyNot]:
    """Return the refusals of primitives that numpy executes because kernels do not support their types."""
    refusals = []
    for node in graph.nodes:
        if kind_of(node.op) in (Kind.HOST, Kind.CONTROL) or is_native(node):
            continue
        odd = next(v for v in (*node.inputs, *node.outputs) if not is_native_type(v.type))
        reason = f"numpy executes it: %{odd.name} has type {odd.type}, kernels need static tensors of native dtypes"
        refusals.append(WhyNot(node.name, "legality.native", reason))
    return refusals


# -- reshapes that need no kernel ------------------------------------------------------------------------------------


def _aliases(state: Fusion) -> dict[Value, Value]:
    """Return the reshapes that stay alone between kernels, with their root: the stored value with the same bytes."""
    found: dict[Value, Value] = {}
    for cluster in state.clusters():
        nodes = list(cluster.members)
        if len(nodes) != 1 or nodes[0].op != "reshape" or not is_native(nodes[0]):
            continue
        value, source = nodes[0].output, nodes[0].inputs[0]
        root = found.get(source, source)
        if state.graph.is_output(value) or root.is_constant or not all(map(state.is_native, state.readers(cluster))):
            continue
        if root.producer is None or state.is_native(state.cluster_of(root.producer)):
            found[value] = root
    return found


# -- groups ------------------------------------------------------------------------------------------------------------


def _groups(
    state: Fusion, aliases: dict[Value, Value], wholes: set[str]
) -> tuple[tuple[Group, ...], tuple[HostGroup, ...]]:
    """Return the groups of all clusters except aliases and concats to `wholes`."""
    groups: list[Group] = []
    host: list[HostGroup] = []
    taken = {n.name: 1 for n in state.nodes if not is_native(n)}
    for cluster in state.clusters():
        nodes = state.in_order(cluster.members)
        if not is_native(nodes[0]):
            node = nodes[0]
            inputs = tuple(dict.fromkeys(v.name for v in node.inputs if not v.is_constant))
            host.append(HostGroup(node.name, inputs, tuple(o.name for o in node.outputs), node.origins))
            continue
        stored = _stored(state, cluster)
        if stored and stored[0].name not in wholes and not (len(nodes) == 1 and stored[0] in aliases):
            groups.append(_group(state, cluster, nodes, stored, taken))
    return tuple(groups), tuple(host)


def _stored(state: Fusion, cluster: Cluster) -> list[Value]:
    """Return the values that the group stores; an operator with several results stores all of them if any is needed."""
    stored = state.outputs_of(cluster)
    whole = {o for v in stored if v.producer is not None and len(v.producer.outputs) > 1 for o in v.producer.outputs}
    return stored + [o for n in state.in_order(cluster.owned) for o in n.outputs if o in whole and o not in stored]


def _group(
    state: Fusion, cluster: Cluster, nodes: Sequence[Node], stored: Sequence[Value], taken: dict[str, int]
) -> Group:
    roles = state.roles(cluster)
    if isinstance(roles, WhyNot):
        raise PassContractError(f"the planner built an illegal group: {roles}")
    inputs, constants = legality.operands(nodes)
    return Group(
        name=_group_name(nodes, roles, taken),
        kind=roles.kind,
        nodes=tuple(n.name for n in nodes),
        anchor=roles.anchor.name if roles.anchor else None,
        inputs=tuple(v.name for v in inputs),
        constants=tuple(v.name for v in constants),
        outputs=tuple(v.name for v in stored),
        origins=tuple(dict.fromkeys(o for n in nodes for o in n.origins)),
        stitches=tuple(_stitches(cluster, nodes, roles)),
    )


def _group_name(nodes: Sequence[Node], roles: Roles, taken: dict[str, int]) -> str:
    """Return a C identifier that describes the kernel by its first operators, the anchor's first. `taken`: names, and
    the last number appended to each.
    """
    ops = [n.op for n in nodes if roles.parts[n] is not Part.PULLED or roles.kind is GroupKind.INJECTIVE]
    short = list(dict.fromkeys(op.removeprefix("reduce_") for op in ops))
    base = re.sub(r"\W", "_", "_".join(short[:4]) + ("_etc" if len(short) > 4 else ""))
    name = base
    while name in taken:
        taken[base] += 1
        name = f"{base}_{taken[base]}"
    taken[name] = 1
    return name


def _stitches(cluster: Cluster, nodes: Sequence[Node], roles: Roles) -> list[Stitch]:
    members = set(nodes)
    stitches: dict[tuple[str, str], Stitch] = {}
    for node in nodes:
        for value in node.inputs:
            producer = value.producer
            if producer is not None and producer in members:
                rule = cluster.rules.get((producer, node), "planner")
                scheme = _scheme(cluster, producer, node, roles)
                stitches.setdefault((producer.name, node.name), Stitch(producer.name, node.name, scheme, rule))
    return list(stitches.values())


def _scheme(cluster: Cluster, producer: Node, consumer: Node, roles: Roles) -> str:
    before, after = roles.parts[producer], roles.parts[consumer]
    if producer in cluster.copies:
        return "duplicate"
    if before in (Part.SCORES, Part.SCORED, Part.SOFTMAX, Part.WEIGHED):
        return "online"
    if before in (Part.REDUCTION, Part.REDUCED) or (before is Part.FULL and after is Part.REDUCTION):
        return "row"
    if before in (Part.ANCHOR, Part.EPILOGUE, Part.GATE, Part.GATED, Part.VIEW):
        return "epilogue"
    if after in (Part.ANCHOR, Part.SCORES) or (roles.kind in GEMMS and after is Part.PULLED):
        return "prologue"
    return "inline"


@dataclass
class PlansMade:
    """Plans of the same graph, for the same target, in one context."""

    _plans: dict[Partition, tuple[list[FusionRule], StitchPlan]] = field(default_factory=dict)

    def of(self, fused: Fused) -> StitchPlan | None:
        """Return the cached plan of the same partition by the same rules."""
        rules, plan = self._plans.get(fused.partition, ([], None))
        return plan if rules == fused.combining else None

    def keep(self, fused: Fused, plan: StitchPlan) -> StitchPlan:
        """Add a plan to the cache and return it."""
        self._plans.setdefault(fused.partition, (fused.combining, plan))
        return plan
