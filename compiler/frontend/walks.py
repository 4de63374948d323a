"""Walks over ONNX graphs and the graphs in their nodes' attributes."""

from collections.abc import Iterable, Iterator
from itertools import chain

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes, and those of the graphs nested in them."""
    for node in nodes:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner.node)


def names_read(proto: ModelProto) -> frozenset[str]:
    """Return the names that any node uses, and those of the outputs of all graphs and functions."""
    lists = (proto.graph.node, *(function.node for function in proto.functions))
    nodes = [node for each in lists for node in all_nodes(each)]
    graphs = (proto.graph, *(graph for node in nodes for graph in subgraphs(node)))
    outputs = (output.name for graph in graphs for output in graph.output)
    used = (node.input for node in nodes)
    return frozenset(chain(outputs, *used, *(function.output for function in proto.functions)))


def all_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the tensors in initialisers and attributes of the graph and the graphs nested in it."""
    yield from graph.initializer
    for node in graph.node:
        yield from node_tensors(node)


def node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    """Yield the tensors among a node's attributes, and those of the graphs in it."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
    for inner in subgraphs(node):
        yield from all_tensors(inner)
