"""Recomputation as a choice: a value that several kernels read is stored once, or computed again in each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import GroupKind

from . import legality
from .clusters import Cluster, Fusion, Union
from .facts import device_of, facts_of
from .profit import MOST_NODES, MOST_OPERANDS
from .roles import Roles
from .rules import AllowsAll, Fuse


@dataclass(frozen=True)
class Recompute(AllowsAll):
    """Proposes that every reader of an element-wise kernel computes it itself, where that is predicted to be faster.

    The kernel and its readers are compared with the readers alone, each with a copy: a launch and the traffic of the
    value are saved, its operands are read and its arithmetic is done once for each reader. model: who predicts.
    """

    model: LatencyModel = field(default_factory=AnalyticalModel)
    name: ClassVar[str] = "recompute"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        for node in reversed(state.nodes):
            cluster = state.cluster_of(node)
            if not state.is_live(cluster) or _kind(state, cluster) is not GroupKind.INJECTIVE:
                continue
            readers = state.readers(cluster)
            if len(readers) < 2 or any(state.graph.is_output(v) for v in state.outputs_of(cluster)):
                continue
            copies = tuple(state.in_order(cluster.members))
            if self._pays(state, cluster, readers, copies):
                yield from [Fuse((state.in_order(r.owned)[0],), copies, forced=True) for r in readers]

    def _pays(self, state: Fusion, cluster: Cluster, readers: Sequence[Cluster], copies: Sequence[Node]) -> bool:
        if not all(_kind(state, r) in (GroupKind.INJECTIVE, GroupKind.ROWWISE) for r in readers):
            return False
        apart = sum(self._latency_us(state, state.union([c])) for c in (cluster, *readers))
        together = 0.0
        for reader in readers:
            if legality.why_not(state, [reader], copies, "") is not None:
                return False
            union = state.union([reader], copies)
            operands = {v for n in union.nodes for v in n.inputs if v.producer not in union.members}
            if len(union.nodes) > MOST_NODES or len(operands) + len(union.stored) > MOST_OPERANDS:
                return False
            together += self._latency_us(state, union)
        return together < apart

    def _latency_us(self, state: Fusion, union: Union) -> float:
        assert isinstance(union.roles, Roles)
        facts = facts_of(union.nodes, union.stored, union.roles, state.target)
        return self.model.latency_us(facts, device_of(state.target))


def _kind(state: Fusion, cluster: Cluster) -> GroupKind | None:
    roles = state.roles(cluster)
    return roles.kind if isinstance(roles, Roles) else None
