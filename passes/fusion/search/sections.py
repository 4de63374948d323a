"""Sections of a large graph, which are searched one by one.

The search represents sets of clusters as bit masks, so that each step, and each result that it remembers, takes time
and memory with the number of clusters. In sections of limited size both grow with the graph alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from tilestitch.compiler.ir import Graph
from tilestitch.passes.fusion.clusters import Cluster, Fusion

MOST_CLUSTERS = 2048
"""Most clusters that are searched at once: more than all but a few models have."""


def is_small(state: Fusion) -> bool:
    """Return whether all clusters can be searched at once."""
    return len(state.clusters()) <= MOST_CLUSTERS


def sections(state: Fusion, kernels: Fusion) -> Iterator[Fusion]:
    """Yield the clusters of `state` in sections of similar size, each as the state of a graph of its nodes alone.

    `kernels` is the graph of `state`, fused by rules: a section consists of whole kernels, so that sections contain
    what these rules found. No path leaves a section and returns.
    """
    count = len(state.clusters())
    most = ceil(count / ceil(count / MOST_CLUSTERS))
    found: list[Cluster] = []
    for kernel in _from_outputs(kernels):
        clusters = list(dict.fromkeys(map(state.cluster_of, kernels.in_order(kernel.owned))))
        if found and len(found) + len(clusters) > most:
            yield _section(state, found)
            found = []
        found += clusters
    yield _section(state, found)


def _from_outputs(kernels: Fusion) -> list[Cluster]:
    """Return the clusters in topological order, each soon after its producers."""
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
    return list(done)


def _section(state: Fusion, clusters: Sequence[Cluster]) -> Fusion:
    """Return the state of a graph that consists of `clusters`, with copies of their nodes under the same names."""
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
    return state.over(graph, clusters, twins)
