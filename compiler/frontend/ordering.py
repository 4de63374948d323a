"""Topological sorting of nodes: ONNX requires it, but tools that append nodes do not maintain it."""

import heapq
from collections.abc import MutableSequence, Sequence, Set
from itertools import pairwise

from onnx import GraphProto, ModelProto, NodeProto

from .checking import is_large
from .errors import ModelError
from .walks import all_nodes, subgraphs


def in_order(proto: ModelProto) -> ModelProto:
    """Return the model itself if its nodes are sorted, else a sorted copy. A model in memory that is too large to copy
    stays as it is, for the checker to refuse. Raises ModelError for cycles.
    """
    orders = [_order(nodes) for nodes in _node_lists(proto)]
    for nodes, order in zip(_node_lists(proto), orders, strict=True):
        _refuse_circle(nodes, set(order))
    if not any(before > after for order in orders for before, after in pairwise(order)) or is_large(proto):
        return proto
    copy = ModelProto()
    copy.CopyFrom(proto)
    for nodes, order in zip(_node_lists(copy), orders, strict=True):
        if len(order) == len(nodes):
            ordered = [nodes[at] for at in order]
            del nodes[:]
            nodes.extend(ordered)
    return copy


def _refuse_circle(nodes: Sequence[NodeProto], placed: Set[int]) -> None:
    """Raise ModelError for a cycle. `placed`: nodes that are not in, or after, a cycle. A value defined by two nodes is
    left to the checker.
    """
    if len(placed) == len(nodes):
        return
    makers = {output: at for at, node in enumerate(nodes) for output in node.output if output}
    if len(makers) < sum(bool(output) for node in nodes for output in node.output):
        return
    at, seen = next(at for at in range(len(nodes)) if at not in placed), list[int]()
    while at not in seen:
        seen.append(at)
        at = min(makers[name] for name in _used_by(nodes[at]) if name in makers and makers[name] not in placed)
    circle = [nodes[place].name or f"{nodes[place].op_type}_{place}" for place in reversed(seen[seen.index(at) :])]
    raise ModelError(
        f"the nodes {' -> '.join([*circle, circle[0]])} go round in a circle: each uses what the one before it gives; "
        "take one of these uses away"
    )


def _node_lists(proto: ModelProto) -> list[MutableSequence[NodeProto]]:
    """Return the node lists of the main graph and the functions, preceded by those of nested graphs."""
    outer = [proto.graph.node, *(function.node for function in proto.functions)]
    nested = [graph.node for nodes in outer for node in all_nodes(nodes) for graph in subgraphs(node)]
    return [*reversed(nested), *outer]


def _order(nodes: Sequence[NodeProto]) -> list[int]:
    """Return a stable topological order of node indices, without nodes in a cycle or after one."""
    makers = {output: at for at, node in enumerate(nodes) for output in node.output if output}
    needed = [{makers[name] for name in _used_by(node) if name in makers} for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for at, needs in enumerate(needed):
        for maker in needs:
            users[maker].append(at)
    waits = [len(needs) for needs in needed]
    ready = [at for at, count in enumerate(waits) if not count]
    order = []
    while ready:
        at = heapq.heappop(ready)
        order.append(at)
        for user in users[at]:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, user)
    return order


def _used_by(node: NodeProto) -> set[str]:
    """Return the names that a node uses, including what its nested graphs capture; local names of these may coincide
    with outer ones.
    """
    return set(node.input).union(*map(_captured, subgraphs(node)))


def _captured(graph: GraphProto) -> set[str]:
    used = {output.name for output in graph.output}.union(*map(_used_by, graph.node))
    given = {value.name for values in (graph.input, graph.initializer) for value in values}
    return used - given - {name for node in graph.node for name in node.output}
