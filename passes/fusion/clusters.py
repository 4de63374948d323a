"""State of the planner, and the protocol of the fusion rules that change it: clusters, what each must store, and which
unions would be cyclic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.passes.plan import WhyNot
from tilestitch.passes.plan.roles import Roles, is_native, roles_of
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.evaluations import read_apart

from .closure import Closure, Reach


@dataclass(eq=False)
class Cluster:
    """Nodes to become one kernel. `copies` are computed here as well, but owned by another cluster, or by none."""

    number: int
    owned: set[Node]
    reach: Reach
    """Reach of the nodes that it owns."""
    copies: set[Node] = field(default_factory=set)
    rules: dict[tuple[Node, Node], str] = field(default_factory=dict)
    """By edge (producer, consumer) inside: the name of the rule that fused them."""

    @property
    def members(self) -> set[Node]:
        return self.owned | self.copies

    def moved(self, closure: Closure) -> Cluster:
        """Return a copy with its reach in a copy of its closure."""
        mask = self.reach.mask
        reach = closure.of[(mask & -mask).bit_length() - 1]
        return Cluster(self.number, set(self.owned), reach, set(self.copies), dict(self.rules))


class Union:
    """The union of clusters and copied nodes, as a hypothetical cluster: its nodes in order, its stored values and its
    roles.
    """

    def __init__(self, state: Fusion, clusters: Sequence[Cluster], copies: frozenset[Node]) -> None:
        self.clusters, self.copies = tuple(clusters), copies
        self.owned = {n for c in clusters for n in c.owned}
        self.members = self.owned.union(*(c.copies for c in clusters), copies)
        self.nodes = state.in_order(self.members)
        self.are_native = all(map(state.native.__contains__, self.nodes))
        # Together they store nothing that none of them stores.
        parts = [v for c in clusters for v in state.outputs_of(c)]
        needed = [v for v in parts if state.is_needed(v, self.owned)]
        self.stored = sorted(needed, key=lambda v: state.position[v.producer] if v.producer else -1)

    @cached_property
    def roles(self) -> Roles | WhyNot:
        return roles_of(self.nodes, self.stored, are_native=self.are_native)


@dataclass(frozen=True)
class Fuse:
    """Proposal to merge the clusters of `nodes`, with `copies` (owned elsewhere) computed as well.

    `forced`: wherever legal, regardless of profit.
    """

    nodes: tuple[Node, ...]
    copies: tuple[Node, ...] = ()
    forced: bool = False

    @property
    def subject(self) -> str:
        return " + ".join(n.name for n in (*self.copies, *self.nodes))


@runtime_checkable
class FusionRule(Protocol):
    """A frozen dataclass that proposes and forbids unions.

    `propose(state)` yields `Fuse` objects one by one; the planner tries each immediately, so that `state` then reflects
    the result. `forbid(state, nodes)` is called before any union, also of other rules: a `WhyNot` prevents it.
    """

    name: ClassVar[str]

    def propose(self, state: Fusion) -> Iterator[Fuse]: ...

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None: ...


class Fusion:
    """Clusters over all nodes of a graph. What clusters depend on is kept as bit sets over node numbers.

    Where copies have removed a dependence the bit sets may still contain it, so that they are then only a quick first
    check for cycles.
    """

    def __init__(self, graph: Graph, target: TargetInfo, rules: Sequence[FusionRule] = ()) -> None:
        self.graph, self.target, self.rules = graph, target, tuple(rules)
        self.remarks: list[WhyNot] = []
        """Remarks of rules that concern no single proposal; the plan keeps them among the refusals."""
        self.nodes = graph.nodes
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.native = {node for node in self.nodes if is_native(node)}
        """The nodes that can be compiled."""
        self._outputs = set(graph.outputs)
        self._closure = Closure([self._producers_of(node) for node in self.nodes])
        self._clusters = {i: Cluster(i, {node}, self._closure.of[i]) for i, node in enumerate(self.nodes)}
        self._home = {node: self._clusters[i] for i, node in enumerate(self.nodes)}
        self._computed_in: dict[Node, set[Cluster]] = {node: {c} for node, c in self._home.items()}
        self._copied: set[Node] = set()
        self._roles: dict[Cluster, Roles | WhyNot] = {}
        self._stored: dict[Cluster, list[Value]] = {}
        self._union: Union | None = None
        self._read_apart: dict[Node, tuple[Value, ...]] = {}
        self.joins = 0
        """Number of joins: while it is unchanged, so are the clusters."""

    def _producers_of(self, node: Node) -> list[int]:
        return [self.position[v.producer] for v in node.inputs if v.producer is not None]

    def fork(self) -> Fusion:
        """Return a copy of the state for trials, without remarks."""
        other = copy(self)
        other.remarks, other._union, other._closure = [], None, self._closure.copy()
        clusters = {*self._clusters.values(), *self._home.values()}
        twins = {cluster: cluster.moved(other._closure) for cluster in clusters}
        other._clusters = {number: twins[cluster] for number, cluster in self._clusters.items()}
        other._home = {node: twins[cluster] for node, cluster in self._home.items()}
        other._computed_in = {node: {twins[c] for c in found} for node, found in self._computed_in.items()}
        other._copied = set(self._copied)
        other._roles = {twins[c]: roles for c, roles in self._roles.items() if c in twins}
        other._stored = {twins[c]: stored for c, stored in self._stored.items() if c in twins}
        return other

    def over(self, graph: Graph, clusters: Iterable[Cluster], twins: Mapping[Node, Node]) -> Fusion:
        """Return the state of a graph that consists of the `twins` of the nodes of `clusters`, clustered likewise."""
        other = Fusion(graph, self.target, self.rules)
        for cluster in clusters:
            if len(cluster.members) > 1:
                parts = list(dict.fromkeys(other.cluster_of(twins[n]) for n in self.in_order(cluster.owned)))
                other.join(parts, {twins[n] for n in cluster.copies}, "fork")
        return other

    # -- looking -------------------------------------------------------------------------------------------------

    def clusters(self) -> list[Cluster]:
        """Return live clusters by their first node's position, without those that nothing needs any more."""
        return sorted(self._clusters.values(), key=self.first_position)

    def first_position(self, cluster: Cluster) -> int:
        return min(self.position[n] for n in cluster.owned)

    def cluster_of(self, node: Node) -> Cluster:
        """Return the cluster that owns `node`."""
        return self._home[node]

    def computing(self, node: Node) -> list[Cluster]:
        """Return the clusters that compute `node`, as its owner or as a copy, by position."""
        return sorted(self._computed_in[node], key=self.first_position)

    def is_live(self, cluster: Cluster) -> bool:
        return self._clusters.get(cluster.number) is cluster

    def in_order(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self.position.__getitem__)

    def is_native(self, cluster: Cluster) -> bool:
        return cluster.owned <= self.native

    def stored(self, owned: Iterable[Node], members: set[Node]) -> list[Value]:
        """Return the values of `owned` that must be stored if one cluster owned `members`: those needed by other
        clusters, also by those that own what it copies, or by the caller.
        """
        return [out for n in self.in_order(owned) for out in n.outputs if self.is_needed(out, members)]

    def is_needed(self, value: Value, members: set[Node]) -> bool:
        """Return whether another cluster, if one owned `members`, or the caller needs `value`."""
        if value in self._outputs:
            return True
        known = set[Cluster]()
        for user, _ in value.uses:
            for cluster in self._computed_in[user]:
                if cluster in known:
                    continue
                known.add(cluster)
                computes = value.producer in cluster.owned or value.producer in cluster.copies
                if not computes and not cluster.owned <= members:
                    return True
        return False

    def outputs_of(self, cluster: Cluster) -> list[Value]:
        """Return the values that a cluster stores, in order."""
        if cluster not in self._stored:
            self._stored[cluster] = self.stored(cluster.owned, cluster.owned)
        return self._stored[cluster]

    def read_apart(self, node: Node) -> tuple[Value, ...]:
        """Return the operands of which it reads elements more than once, or at indices other than its own."""
        if node not in self._read_apart:
            self._read_apart[node] = read_apart(node)
        return self._read_apart[node]

    def union(self, clusters: Sequence[Cluster], copies: Iterable[Node] = ()) -> Union:
        """Return the union of `clusters` and `copies`. The last one is cached, as it is requested several times."""
        wanted, last = frozenset(copies), self._union
        if last is None or last.clusters != tuple(clusters) or last.copies != wanted:
            self._union = Union(self, clusters, wanted)
        assert self._union is not None
        return self._union

    def readers(self, cluster: Cluster) -> list[Cluster]:
        """Return the clusters that read a value stored by `cluster`, by position."""
        found = {
            reader: None
            for node in cluster.owned
            for out in node.outputs
            for user, _ in out.uses
            for reader in self._computed_in[user]
            if reader is not cluster and node not in reader.copies
        }
        return sorted(found, key=self.first_position)

    def producers(self, cluster: Cluster) -> list[Cluster]:
        """Return the clusters whose stored values `cluster` reads, by position."""
        members = cluster.members
        found = {
            self._home[value.producer]: None
            for node in members
            for value in node.inputs
            if value.producer is not None and value.producer not in members
        }
        return sorted(found, key=self.first_position)

    def roles(self, cluster: Cluster) -> Roles | WhyNot:
        """Return the roles of a cluster; a WhyNot for a host or control node."""
        if cluster not in self._roles:
            native = cluster.members <= self.native
            self._roles[cluster] = roles_of(self.in_order(cluster.members), self.outputs_of(cluster), are_native=native)
        return self._roles[cluster]

    def _forget(self, head: Cluster, union: Union) -> None:
        """Invalidate cached facts after a join that made `head`: without copies, those of all other clusters remain
        valid.
        """
        self._union = None
        if self._copied:
            self._forget_all()
        for cluster in union.clusters:
            self._roles.pop(cluster, None)
            self._stored.pop(cluster, None)
        self._stored[head] = union.stored
        self._roles[head] = union.roles

    def _forget_all(self) -> None:
        self._roles.clear()
        self._stored.clear()
        self._union = None

    # -- joining -------------------------------------------------------------------------------------------------

    def cycle(self, clusters: Sequence[Cluster], copies: Iterable[Node] = ()) -> Node | None:
        """Return an outside node on a path from one of `clusters`, with `copies`, to another, or None."""
        between = self._closure.between([c.reach for c in clusters])
        copies = set(copies)
        if between is not None and (copies or self._copied):
            return self._waits_for(clusters, copies)
        return None if between is None else self.nodes[between]

    def _waits_for(self, clusters: Sequence[Cluster], copies: set[Node]) -> Node | None:
        """Return `cycle` by following reads of clusters, excluding copies, which remove dependences."""
        members = copies.union(*(c.members for c in clusters))
        stack = [c for c in self._read_by(members) if c not in clusters]
        seen = set(stack)
        while stack:
            cluster = stack.pop()
            for producer in self._read_by(cluster.members):
                if producer in clusters:
                    return self.in_order(cluster.owned)[0]
                if producer not in seen:
                    seen.add(producer)
                    stack.append(producer)
        return None

    def _read_by(self, members: set[Node]) -> list[Cluster]:
        """Return the clusters whose values `members` read from outside."""
        producers = (v.producer for n in self.in_order(members) for v in n.inputs)
        return list(dict.fromkeys(self._home[p] for p in producers if p is not None and p not in members))

    def join(self, clusters: Sequence[Cluster], copies: Iterable[Node], rule: str) -> Cluster:
        """Merge `clusters`, with `copies` computed as well. The caller has checked that this is legal and acyclic."""
        self.joins += 1
        union = self.union(clusters, copies)
        parts = [c.members for c in clusters]
        head = clusters[0]
        for other in clusters[1:]:
            head.owned |= other.owned
            head.copies |= other.copies
            head.rules.update(other.rules)
            del self._clusters[other.number]
            for node in other.members:
                self._computed_in[node].discard(other)
        head.copies |= set(copies)
        head.copies -= head.owned
        for node in (n for c in clusters[1:] for n in c.members):
            self._computed_in[node].add(head)
            if node in head.owned:
                self._home[node] = head
        for node in head.copies:
            self._computed_in[node].add(head)
        self._name_edges(head, parts, rule)
        if len(clusters) > 1:
            head.reach = self._closure.merge([c.reach for c in clusters])
        self._copied.update(head.copies)
        self._forget(head, union)
        if self._copied:
            self._drop_unneeded(head.members & self._copied)
            self._forget_all()
        return head

    def _name_edges(self, cluster: Cluster, parts: Sequence[set[Node]], rule: str) -> None:
        """Note the rule that joined `parts` for the edges between them; those inside the largest are not looked at."""
        members, largest = cluster.members, max(parts, key=len)
        rest = members - largest
        edges = [(v.producer, node) for node in rest for v in node.inputs if v.producer is not None]
        edges += [(node, user) for node in rest for out in node.outputs for user, _ in out.uses]
        for producer, node in edges:
            both = producer in members and node in members
            if both and not any(producer in part and node in part for part in parts):
                cluster.rules.setdefault((producer, node), rule)

    def _drop_unneeded(self, copied: set[Node]) -> None:
        """Drop clusters all of whose readers have copies: at first owners of what a join has `copied`, then, as
        long as there are any, others that only these needed.
        """
        while copied:
            unneeded = False
            for cluster in {self._home[n] for n in copied if len(self._computed_in[n]) > 1}:
                if not self.is_live(cluster) or self._is_read(cluster):
                    continue
                del self._clusters[cluster.number]
                for node in cluster.members:
                    self._computed_in[node].discard(cluster)
                unneeded = True
            copied = self._copied if unneeded else set()

    def _is_read(self, cluster: Cluster) -> bool:
        return any(self.is_needed(out, cluster.owned) for node in cluster.owned for out in node.outputs)

    def cross_edges(self) -> Iterator[tuple[Node, Node]]:
        """Yield edges (producer, consumer) between different live clusters, one per pair of clusters."""
        seen: set[tuple[int, int]] = set()
        for cluster in self.clusters():
            for node in self.in_order(cluster.members):
                for value in node.inputs:
                    producer = value.producer
                    if producer is None or producer in cluster.members:
                        continue
                    pair = (self._home[producer].number, cluster.number)
                    if pair not in seen:
                        seen.add(pair)
                        yield producer, node
