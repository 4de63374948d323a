"""Priority fusion: a producer is recomputed in all of its consumers, and no longer stored; the most profitable
first.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, kind_of
from tilestitch.passes.fusion.rules.builtin import AllowsAll, Fuse

from ..clusters import Cluster, Fusion
from .kernels import fits
from .run_time import LAUNCH_US, kernel_us


@dataclass(frozen=True)
class PriorityFusion(AllowsAll):
    """Fuses each producer into all of its consumers, if all support it and XLA expects a gain."""

    name: ClassVar[str] = "priority_fusion"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        yield from _reshapes(state)
        yield from _Queue(state).proposals()


def _reshapes(state: Fusion) -> Iterator[Fuse]:
    """Yield proposals for reshapes, which move nothing: each joins every reader that supports it, and is free for the
    others.
    """
    for node in reversed(state.nodes):
        cluster = state.cluster_of(node)
        if node.op != "reshape" or not state.is_live(cluster) or len(cluster.members) > 1:
            continue
        readers = [r for r in state.readers(cluster) if is_fusible(state, r)]
        takers = [r for r in readers if fits(state, [r], [node])]
        if takers == state.readers(cluster) and len(takers) == 1 and fits(state, [cluster, takers[0]]):
            yield Fuse((node, first_node(takers[0])), forced=True)
            continue
        for reader in takers:
            yield Fuse((first_node(reader),), copies=(node,), forced=True)


def is_fusible(state: Fusion, cluster: Cluster) -> bool:
    """Return whether XLA's emitters or Triton generate a cluster's kernel: it is neither a library call nor a host
    step.
    """
    anchors = (Kind.CONTRACTION, Kind.OPAQUE)
    return state.is_native(cluster) and not any(kind_of(n.op) in anchors for n in cluster.members)


class _Queue:
    """Producers by the microseconds that fusing them would save; updated when something near them changes."""

    def __init__(self, state: Fusion) -> None:
        self.state = state
        self.heap: list[tuple[float, int, int, int]] = []
        self.version: dict[int, int] = {}
        self.cost_us: dict[tuple[int, int], float] = {}
        self.pairs_us: dict[tuple[object, ...], float | None] = {}
        self.by_number: dict[int, Cluster] = {}
        for cluster in state.clusters():
            self.push(cluster)

    def proposals(self) -> Iterator[Fuse]:
        state = self.state
        while self.heap:
            _, _, number, version = heapq.heappop(self.heap)
            producer = self.by_number[number]
            if self.version[number] != version or not state.is_live(producer):
                continue
            consumers, near = state.readers(producer), state.producers(producer)
            if len(consumers) == 1:
                yield Fuse((first_node(producer), first_node(consumers[0])), forced=True)
            else:
                copies = tuple(state.in_order(producer.members))
                for consumer in consumers:
                    yield Fuse((first_node(consumer),), copies=copies, forced=True)
            changed = [state.cluster_of(first_node(c)) for c in consumers]
            around = [*changed, *near, *(p for c in changed for p in state.producers(c))]
            for cluster in dict.fromkeys(around):
                if state.is_live(cluster):
                    self.push(cluster)

    def push(self, cluster: Cluster) -> None:
        """Recompute what fusing `cluster` into its readers would save."""
        number = cluster.number
        self.by_number[number] = cluster
        self.version[number] = self.version.get(number, 0) + 1
        saved_us = self.saved_us(cluster)
        if saved_us >= 0:
            place = self.state.first_position(cluster)
            heapq.heappush(self.heap, (-saved_us, -place, number, self.version[number]))

    def saved_us(self, producer: Cluster) -> float:
        """Return XLA's priority: negative if it does not pay, or if one consumer does not support the producer."""
        state = self.state
        if not is_fusible(state, producer):
            return -inf
        stored = state.outputs_of(producer)
        if len(stored) != 1 or state.graph.is_output(stored[0]) or _is_reshape(producer):
            return -inf
        consumers, copies = state.readers(producer), tuple(state.in_order(producer.members))
        if not consumers or not all(is_fusible(state, c) for c in consumers):
            return -inf
        fused_us = 0.0
        for consumer in consumers:
            found_us = self.fused_us(producer, consumer, () if len(consumers) == 1 else copies)
            if found_us is None:
                return -inf
            fused_us += LAUNCH_US + found_us
        return sum(LAUNCH_US + self.alone_us(c) for c in (producer, *consumers)) - fused_us

    def fused_us(self, producer: Cluster, consumer: Cluster, copies: tuple[Node, ...]) -> float | None:
        """Return the microseconds of a consumer that recomputes the producer; None if no kernel can."""
        parts = (producer, consumer)
        key = (bool(copies), *((c.number, len(c.members)) for c in parts))
        if key not in self.pairs_us:
            clusters, found_us = ([consumer] if copies else list(parts)), None
            if not _is_reshape(consumer) and fits(self.state, clusters, copies):
                union = self.state.union(clusters, copies)
                found_us = kernel_us(union.nodes, union.stored)
            self.pairs_us[key] = found_us
        return self.pairs_us[key]

    def alone_us(self, cluster: Cluster) -> float:
        key = cluster.number, len(cluster.members)
        if key not in self.cost_us:
            state = self.state
            self.cost_us[key] = kernel_us(state.in_order(cluster.members), state.outputs_of(cluster))
        return self.cost_us[key]


def _is_reshape(cluster: Cluster) -> bool:
    return all(n.op == "reshape" for n in cluster.members)


def first_node(cluster: Cluster) -> Node:
    """Return a node by which a proposal identifies its cluster."""
    return min(cluster.owned, key=lambda n: n.name)
