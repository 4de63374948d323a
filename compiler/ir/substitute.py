"""A graph with open dimensions at some sizes: its symbols replaced in types and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from .graph import Graph
from .sizes import Size, at, is_open
from .types import TensorType, Type


def graph_at(graph: Graph, values: Mapping[str, Size]) -> Graph:
    """A copy of the graph, nodes and values of the same names, in which symbols have these sizes."""
    copy = graph.clone()
    _replace(copy, values)
    copy.symbols = tuple(symbol for symbol in graph.symbols if symbol.name not in values)
    copy.claims = tuple(replace(claim, size=at(claim.size, values)) for claim in graph.claims)
    return copy


def _replace(graph: Graph, values: Mapping[str, Size]) -> None:
    for value in graph.inputs:
        value.type = _type_at(value.type, values)
    for node in graph.nodes:
        for value in node.outputs:
            value.type = _type_at(value.type, values)
        node.attrs = {key: _attribute_at(attribute, values) for key, attribute in node.attrs.items()}
    for inner in graph.subgraphs():
        _replace(inner, values)


def _type_at(type_: Type, values: Mapping[str, Size]) -> Type:
    if not isinstance(type_, TensorType) or type_.is_static:
        return type_
    return type_.with_shape(tuple(d if isinstance(d, str) else at(d, values) for d in type_.shape))


def _attribute_at(attribute: Any, values: Mapping[str, Size]) -> Any:
    if is_open(attribute):
        return at(attribute, values)
    if isinstance(attribute, tuple):
        return tuple(_attribute_at(entry, values) for entry in attribute)
    return attribute


def data_at(data: Any, values: Mapping[str, Size]) -> Any:
    """Frozen dataclasses, mappings and tuples of them, with symbols replaced in whatever sizes they hold."""
    if is_open(data):
        return at(data, values)
    if isinstance(data, tuple):
        return tuple(data_at(entry, values) for entry in data)
    if isinstance(data, Mapping):
        return {key: data_at(entry, values) for key, entry in data.items()}
    if not is_dataclass(data) or isinstance(data, type):
        return data
    old = {field.name: getattr(data, field.name) for field in fields(data) if field.init}
    new = {name: data_at(value, values) for name, value in old.items()}
    changed = {name: value for name, value in new.items() if value is not old[name] and value != old[name]}
    return replace(data, **changed) if changed else data
