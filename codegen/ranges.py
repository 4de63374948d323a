"""Slices that are one contiguous range of bytes: a kernel gets the address where the range begins.

So groups that compute the same on different ranges share one kernel, whichever values contain the ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.access.byte_ranges import byte_ranges
from tilestitch.passes.plan.index_checks import checked

from .launch import KernelArg, RangeArg, ValueArg


@dataclass(frozen=True)
class Ranged:
    """A group that reads separate values in place of ranges; `ranges` gives the range of each by name."""

    graph: Graph
    group: Group
    ranges: Mapping[str, RangeArg]

    def placed(self, launches: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the launches of the group with ranges as arguments."""
        return tuple(replace(launch, args=tuple(map(self._argument, launch.args))) for launch in launches)

    def _argument(self, arg: KernelArg) -> KernelArg:
        return self.ranges.get(arg.value, arg) if isinstance(arg, ValueArg) else arg


def ranged(graph: Graph, group: Group) -> Ranged | None:
    """Return the group with contiguous slices of its inputs separated; None if it has none, or if indices are known to
    be in range by nodes elsewhere, which a group by itself does not see.
    """
    nodes = [graph.node(name) for name in group.nodes]
    found = {node: RangeArg(node.inputs[0].name, *place) for node, place in byte_ranges(group, nodes).items()}
    if not found:
        return None
    taken = {value.name for node in nodes for value in (*node.inputs, *node.outputs)}
    names = {node: _free(f"{node.output.name}.range", taken) for node in found}
    operands = {(node, node.inputs[0]): Value(names[node], node.output.type) for node in found}
    alone = Graph(graph.name)
    alone.symbols = graph.symbols
    alone.copy_nodes(nodes, operands)
    for node in found:
        rank = len(node.output.shape)
        alone.node(node.name).attrs.update(starts=(0,) * rank, steps=(1,) * rank)
    if checked(alone.nodes) != checked(nodes):
        return None
    return Ranged(alone, _reading(group, alone, names), {names[node]: range_ for node, range_ in found.items()})


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _reading(group: Group, graph: Graph, names: Mapping[Node, str]) -> Group:
    """Return the group, and its parts, with the inputs of the nodes of `graph`."""
    ranges = {node.name: name for node, name in names.items()}

    def inputs(nodes: Iterable[str], old: tuple[str, ...]) -> tuple[str, ...]:
        read = {value.name for name in nodes for value in graph.node(name).inputs}
        new = [ranges[name] for name in nodes if name in ranges]
        return (*(name for name in old if name in read), *new)

    stages = tuple(
        tuple(replace(part, inputs=inputs(part.nodes, part.inputs)) for part in stage) for stage in group.stages
    )
    return replace(group, inputs=inputs(group.nodes, group.inputs), stages=stages)
