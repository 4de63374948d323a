"""The graph for viewers: as Graphviz text, nodes of one group in one box; as an ONNX file, for Netron."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tilestitch.compiler.ir import Graph, Node, TensorType, Type, Value, kind_of
from tilestitch.compiler.ir.types import to_numpy_dtype

DOMAIN = "tilestitch"
MAX_ELEMENTS = 64
"""Larger constants are shown as inputs, so that the file stays small."""

_COLOURS = {
    "view": "#eeeeee", "injective": "#cfe8cf", "reduction": "#ffe0b3", "contraction": "#c7d8f5", "opaque": "#e6d0ee",
    "host": "#f5c7c7", "control": "#f5c7c7",
}  # fmt: skip


def to_dot(graph: Graph, groups: Mapping[str, str] | None = None) -> str:
    """Return `graph` as Graphviz text; `groups` maps a node's name to its group. Constants are left out."""
    lines = [f"digraph {json.dumps(graph.name)} {{", "  node [shape=box, style=filled, fontname=Helvetica];"]
    for value in graph.inputs:
        label = json.dumps("\n".join([value.name, str(value.type)]))
        lines.append(f"  {_id(value.name)} [label={label}, shape=ellipse];")
    members: dict[str | None, list[Node]] = {}
    for node in graph.nodes:
        members.setdefault((groups or {}).get(node.name), []).append(node)
    for number, (group, nodes) in enumerate(members.items()):
        statements = [f"  {_box(node)}" for node in nodes]
        if group is not None:
            statements = [f"  subgraph cluster_{number} {{ label={json.dumps(group)};", *statements, "  }"]
        lines += statements
    for node in graph.nodes:
        for value in node.inputs:
            if not value.is_constant:
                lines.append(f"  {_source(value)} -> {_id(node.name)} [label={json.dumps(str(value.type))}];")
    for position, value in enumerate(graph.outputs):
        lines.append(f"  {_id(f'output {position}')} [label={json.dumps(value.name)}, shape=ellipse];")
        if not value.is_constant:
            lines.append(f"  {_source(value)} -> {_id(f'output {position}')};")
    return "\n".join([*lines, "}", ""])


def _id(name: str) -> str:
    return json.dumps(name)


def _source(value: Value) -> str:
    return _id(value.name if value.producer is None else value.producer.name)


def _box(node: Node) -> str:
    label = "\n".join([node.op, *node.origins[:3]])
    return f"{_id(node.name)} [label={json.dumps(label)}, fillcolor={json.dumps(_COLOURS[kind_of(node.op).value])}];"


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """Return `graph` as an ONNX model for viewing: primitives are operators of the domain `tilestitch`; it cannot be
    run.
    """
    opsets = [helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    return helper.make_model(_graph(graph), opset_imports=opsets, producer_name="tilestitch")


def _graph(graph: Graph) -> onnx.GraphProto:
    small = [
        c for c in graph.constants if c.data is not None and c.data.size <= MAX_ELEMENTS and c.data.dtype != object
    ]
    large = [c for c in graph.constants if c not in small]
    nodes = [_node(n) for n in graph.nodes]
    inputs = [_info(v) for v in (*graph.inputs, *large)]
    known = [_info(v) for n in graph.nodes for v in n.outputs]
    tensors = [onnx.numpy_helper.from_array(np.asarray(c.data), c.name) for c in small]
    return helper.make_graph(nodes, graph.name, inputs, [_info(v) for v in graph.outputs], tensors, value_info=known)


def _node(node: Node) -> onnx.NodeProto:
    attributes = {key: _attribute(value) for key, value in node.attrs.items()}
    if node.origins:
        attributes["onnx_nodes"] = list(node.origins)
    proto = helper.make_node(
        node.op, [v.name for v in node.inputs], [v.name for v in node.outputs], node.name, domain=DOMAIN
    )
    # An empty tuple has no element from which to infer a type.
    proto.attribute.extend(helper.make_attribute(k, v if v != [] else "()") for k, v in attributes.items())
    return proto


def _attribute(value: Any) -> Any:
    if isinstance(value, Graph):
        return _graph(value)
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (tuple, list)):
        items = [_attribute(item) for item in value]
        plain = all(isinstance(i, (int, float)) for i in items) or all(isinstance(i, str) for i in items)
        return items if plain else str(items)
    return value if isinstance(value, (int, float, str)) else str(value)


def _info(value: Value) -> onnx.ValueInfoProto:
    type_: Type = value.type
    if not isinstance(type_, TensorType):
        return onnx.ValueInfoProto(name=value.name, doc_string=str(type_))
    element = helper.np_dtype_to_tensor_dtype(to_numpy_dtype(type_.dtype))
    return helper.make_tensor_value_info(
        value.name, element, [d if isinstance(d, int) else str(d) for d in type_.shape]
    )
