"""Substitution of symbols in the types and attributes of a graph with open dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from .graph import Graph, Node
from .sizes import Size, Symbol, at, is_open, over, size_of
from .types import Dim, TensorType, Type


def graph_at(graph: Graph, values: Mapping[str, Size]) -> Graph:
    """Return a copy of the graph, with the same names, in which symbols have these sizes."""
    copy = graph.clone()
    put_sizes(copy, values)
    return copy


def nodes_at(nodes: Sequence[Node], values: Mapping[str, Size]) -> dict[str, Node]:
    """Return copies of nodes, which are in topological order, by name, in which symbols have these sizes.

    They have no readers, and their operands no producers, but for each other.
    """
    part = Graph("nodes")
    part.copy_nodes(nodes, {})
    read = (value for node in part.nodes for value in node.inputs)
    part.inputs = list(dict.fromkeys(v for v in read if v.producer is None and not v.is_constant))
    put_sizes(part, values)
    return {node.name: node for node in part.nodes}


def put_sizes(graph: Graph, values: Mapping[str, Size]) -> None:
    """Replace symbols of a graph and its nested graphs by these sizes, in place."""
    _replace(graph, lambda size: at(size, values))
    graph.symbols = tuple(symbol for symbol in graph.symbols if symbol.name not in values)


def sizes_given(graph: Graph, shapes: Sequence[Sequence[Dim] | None]) -> dict[str, int]:
    """Return the values of the graph's symbols for inputs of these shapes, as far as dimensions determine them; None:
    unknown rank.
    """
    found: dict[str, int] = {}
    symbols = {size_of(symbol): symbol.name for symbol in graph.symbols}
    for value, shape in zip(graph.inputs, shapes, strict=True):
        if shape is not None and isinstance(value.type, TensorType):
            pairs = zip(value.type.shape, shape, strict=True)
            found.update((symbols[size], n) for size, n in pairs if size in symbols and isinstance(n, int))
    return found


def change_ranges(graph: Graph, symbols: Mapping[str, Symbol]) -> None:
    """Give the symbols of a graph and its nested graphs other ranges; sizes simplified earlier stay so."""
    _replace(graph, lambda size: over(size, symbols))
    for each in _graphs(graph):
        each.symbols = tuple(symbols.get(symbol.name, symbol) for symbol in each.symbols)


def _graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for inner in graph.subgraphs():
        yield from _graphs(inner)


def _replace(graph: Graph, replaced: Callable[[Size], Size]) -> None:
    # Most values share few types and sizes.
    new = cache(replaced)
    type_of = cache(lambda type_: _type_of(type_, new))
    for value in graph.inputs:
        value.type = type_of(value.type)
    for node in graph.nodes:
        for value in node.outputs:
            value.type = type_of(value.type)
        node.attrs = {key: _attribute_of(attribute, new) for key, attribute in node.attrs.items()}
    graph.claims = tuple(replace(claim, size=new(claim.size)) for claim in graph.claims)
    for inner in graph.subgraphs():
        _replace(inner, new)


def _type_of(type_: Type, new: Callable[[Size], Size]) -> Type:
    if not isinstance(type_, TensorType) or type_.is_static:
        return type_
    return type_.with_shape(tuple(d if isinstance(d, str) else new(d) for d in type_.shape))


def _attribute_of(attribute: Any, new: Callable[[Size], Size]) -> Any:
    if is_open(attribute):
        return new(attribute)
    if isinstance(attribute, tuple):
        return tuple(_attribute_of(entry, new) for entry in attribute)
    return attribute


def data_at(data: Any, values: Mapping[str, Size]) -> Any:
    """Return data (frozen dataclasses, mappings and tuples of them) with symbols replaced in all sizes."""
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
