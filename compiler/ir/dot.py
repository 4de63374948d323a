"""The graph as Graphviz text, nodes of one group in one box."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .graph import Graph, Node
from .ops import kind_of

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
            source = value.name if value.producer is None else value.producer.name
            if not value.is_constant:
                lines.append(f"  {_id(source)} -> {_id(node.name)} [label={json.dumps(str(value.type))}];")
    for position, value in enumerate(graph.outputs):
        lines.append(f"  {_id(f'output {position}')} [label={json.dumps(value.name)}, shape=ellipse];")
        if not value.is_constant:
            source = value.name if value.producer is None else value.producer.name
            lines.append(f"  {_id(source)} -> {_id(f'output {position}')};")
    return "\n".join([*lines, "}", ""])


def _id(name: str) -> str:
    return json.dumps(name)


def _box(node: Node) -> str:
    label = "\n".join([node.op, *node.origins[:3]])
    return f"{_id(node.name)} [label={json.dumps(label)}, fillcolor={json.dumps(_COLOURS[kind_of(node.op).value])}];"
