"""Nodes in an order in which each follows what it uses: ONNX demands it, tools that append nodes do not keep it."""

from __future__ import annotations

import heapq
from collections.abc import MutableSequence, Sequence, Set
from itertools import pairwise

from onnx import GraphProto, ModelProto, NodeProto

from .checking import is_large
from .errors import ModelError
from .walks import all_nodes, subgraphs


def in_order(proto: ModelProto) -> ModelProto:
    """Return the model itself where its nodes are in order, else a copy that is. Nodes of a model in memory that is too
    large to be copied stay as they are, for the checker to refuse. ModelError where nodes go round in a circle.
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
    """placed: those that are in none, and need none that is. A value of two nodes is for the checker to refuse."""
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
    """Of the main graph and the functions; before each, of the graphs nested in it."""
    outer = [proto.graph.node, *(function.node for function in proto.functions)]
    nested = [graph.node for nodes in outer for node in all_nodes(nodes) for graph in subgraphs(node)]
    return [*reversed(nested), *outer]


def _order(nodes: Sequence[NodeProto]) -> list[int]:
    """Their places, the first that can be computed first; without those in a circle, and what needs them."""
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
    """Return the names that a node uses, or graphs nested in it take from outside: their own may be names out there,
    too.
    """
    return set(node.input).union(*map(_captured, subgraphs(node)))


def _captured(graph: GraphProto) -> set[str]:
    used = {output.name for output in graph.output}.union(*map(_used_by, graph.node))
    given = {value.name for values in (graph.input, graph.initializer) for value in values}
    return used - given - {name for node in graph.node for name in node.output}
