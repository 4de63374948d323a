"""Sections of a large graph, which are searched one by one.

The search represents sets of clusters as bit masks, so that each step, and each result that it remembers, takes time
and memory with the number of clusters. In sections of limited size both grow with the graph alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.fusion.clusters import Cluster, Fusion

MOST_CLUSTERS = 2048
"""Most clusters that are searched at once: more than all but a few models have."""


def is_small(state: Fusion) -> bool:
    """Return whether all clusters can be searched at once."""
    return len(state.clusters()) <= MOST_CLUSTERS


@dataclass(frozen=True)
class Section:
    """A part of a graph to be searched: its clusters, and the nodes of each of the kernels that rules make of it."""

    state: Fusion
    kernels: Sequence[Iterable[Node]]


def from_outputs(kernels: Fusion) -> list[list[Node]]:
    """Return the nodes of each kernel, in topological order, soon after its producers."""
    clusters = kernels.clusters()
    done: dict[Cluster, None] = {}
    for root in (c for c in clusters if not kernels.readers(c)):
        stack = [(root, iter(kernels.producers(root)))]
        while stack:
            cluster, waiting = stack[-1]
            following = next((p for p in waiting if p not in done), None)
            if following is not None:
                stack.append((following, iter(kernels.producers(following))))
                continue
            stack.pop()
            done[cluster] = None
    return [kernels.in_order(cluster.owned) for cluster in done]


def sections(state: Fusion, kernels: Sequence[Sequence[Node]]) -> Iterator[Section]:
    """Yield the clusters of `state` in sections of similar size, each as the state of a graph of its nodes alone.

    `kernels`, in topological order, are those that rules made of the same graph. A section consists of whole kernels.
    No path leaves a section and returns.
    """
    count = len(state.clusters())
    most = ceil(count / ceil(count / MOST_CLUSTERS))
    inside: list[Sequence[Node]] = []
    clusters: list[Cluster] = []
    for kernel in kernels:
        found = list(dict.fromkeys(map(state.cluster_of, kernel)))
        if clusters and len(clusters) + len(found) > most:
            yield _section(state, clusters, inside)
            inside, clusters = [], []
        inside.append(kernel)
        clusters += found
    yield _section(state, clusters, inside)


def _section(state: Fusion, clusters: Sequence[Cluster], kernels: Sequence[Sequence[Node]]) -> Section:
    """Return the section of `clusters`, with copies of their nodes under the same names."""
    owned = {n for c in clusters for n in c.owned}
    nodes = state.in_order(owned.union(*(c.copies for c in clusters)))
    graph = Graph(state.graph.name)
    graph.symbols, graph.claims = state.graph.symbols, state.graph.claims
    graph.copy_nodes(nodes, {})
    twins = dict(zip(nodes, graph.nodes, strict=True))
    read = (value for node in graph.nodes for value in node.inputs)
    graph.inputs = list(dict.fromkeys(v for v in read if v.producer is None and not v.is_constant))
    results = (v for n in nodes if n in owned for v in n.outputs if state.is_needed(v, owned))
    graph.outputs = [twins[v.producer].outputs[v.index] for v in results if v.producer is not None]
    return Section(state.over(graph, clusters, twins), [[twins[node] for node in kernel] for kernel in kernels])
