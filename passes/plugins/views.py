"""Views of the planner for rules of plug-ins: rules look, and the planner acts on their proposals."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.passes.fusion.clusters import Cluster, Fusion
from tilestitch.passes.fusion.legality import why_not
from tilestitch.passes.fusion.stages import Kernels
from tilestitch.passes.plan import Group, GroupKind, HostGroup, WhyNot
from tilestitch.passes.plan.roles import Roles
from tilestitch.passes.plan.target import TargetInfo


@dataclass(frozen=True)
class KernelView:
    """Nodes that currently form one kernel. `copies`: nodes of other kernels that this one recomputes. `stores`: the
    values that it writes to memory. `kind`: its kind; None for a step that numpy executes.
    """

    nodes: tuple[Node, ...]
    copies: tuple[Node, ...]
    stores: tuple[Value, ...]
    kind: GroupKind | None


class PlannerView:
    """The planner's state between two fusions. A `KernelView` is a snapshot: fetch it again after a proposal."""

    __slots__ = ("_fusion",)

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion

    @property
    def graph(self) -> Graph:
        """The graph, which rules must not change."""
        return self._fusion.graph

    @property
    def target(self) -> TargetInfo:
        return self._fusion.target

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in topological order."""
        return tuple(self._fusion.nodes)

    def kernels(self) -> tuple[KernelView, ...]:
        """Return all kernels and numpy steps, ordered by the position of their first node."""
        return tuple(map(self._view, self._fusion.clusters()))

    def kernel_of(self, node: Node) -> KernelView:
        """Return the kernel that `node` belongs to."""
        return self._view(self._fusion.cluster_of(node))

    def readers(self, kernel: KernelView) -> tuple[KernelView, ...]:
        """Return the kernels that read what `kernel` stores, by position."""
        return tuple(map(self._view, self._fusion.readers(self._cluster(kernel))))

    def producers(self, kernel: KernelView) -> tuple[KernelView, ...]:
        """Return the kernels whose values `kernel` reads, by position."""
        return tuple(map(self._view, self._fusion.producers(self._cluster(kernel))))

    def why_not(self, nodes: Iterable[Node], copies: Iterable[Node] = ()) -> WhyNot | None:
        """Return why the kernels of `nodes` cannot be fused, regardless of rules and profit; None if they can."""
        clusters = list(dict.fromkeys(map(self._fusion.cluster_of, nodes)))
        return why_not(self._fusion, clusters, copies, " + ".join(n.name for c in clusters for n in c.owned))

    def _cluster(self, kernel: KernelView) -> Cluster:
        return self._fusion.cluster_of(kernel.nodes[0])

    def _view(self, cluster: Cluster) -> KernelView:
        state, roles = self._fusion, self._fusion.roles(cluster)
        return KernelView(
            tuple(state.in_order(cluster.owned)),
            tuple(state.in_order(cluster.copies)),
            tuple(state.outputs_of(cluster)),
            roles.kind if isinstance(roles, Roles) else None,
        )


class KernelsView:
    """The kernels of a graph, by name, during the combination of whole kernels."""

    __slots__ = ("_kernels",)

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    @property
    def graph(self) -> Graph:
        """The graph, which rules must not change."""
        return self._kernels.graph

    @property
    def target(self) -> TargetInfo:
        return self._kernels.target

    @property
    def groups(self) -> Mapping[str, Group]:
        """Kernels by name."""
        return MappingProxyType(self._kernels.groups)

    @property
    def host_groups(self) -> tuple[HostGroup, ...]:
        """The steps that numpy executes."""
        return self._kernels.host_groups

    @property
    def order(self) -> tuple[str, ...]:
        """Names of all kernels and host steps in an order that dependences allow."""
        return tuple(self._kernels.order)

    def readers(self, name: str) -> frozenset[str]:
        """Return the names of the kernels and host steps that read what `name` stores."""
        return frozenset(self._kernels.readers[name])

    def producers(self, name: str) -> frozenset[str]:
        """Return the names of the kernels and host steps whose values `name` reads."""
        return frozenset(self._kernels.producers[name])

    def independent(self, first: str, second: str) -> bool:
        """Return whether neither kernel depends on the other."""
        one, other = self._kernels.reach[first], self._kernels.reach[second]
        return not (one.above & other.mask or other.above & one.mask)
