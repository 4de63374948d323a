"""What is separated from groups as arguments, so that groups which differ in it alone share kernels.

Slices that are one contiguous range of bytes: a kernel gets the address where the range begins, whichever value
contains it. One-element constants in which many otherwise equal groups differ, such as the scales and zero points of a
quantised model's layers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.text import digest
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.access.byte_ranges import byte_ranges
from tilestitch.passes.plan.index_checks import checked

from .launch import KernelArg, RangeArg, ValueArg

ARITHMETIC = frozenset({"add", "div", "maximum", "minimum", "mul", "sub"})
"""Operators of which any operand may be a constant or not."""
FEWEST_KERNELS = 4
"""Least number of kernels that differ only in constants: from there on compiling them costs more than reading the
constants.
"""

Key = Callable[[Graph, Group, frozenset[str]], object]
"""Function that returns what determines the kernels of a group, ignoring the constants of these names."""


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


class ScalarArguments:
    """The constants of groups that are arguments."""

    def __init__(self, groups: Iterable[tuple[Graph, Group]], key: Key) -> None:
        families: dict[object, list[tuple[Graph, Group, Sequence[Value]]]] = {}
        for graph, group in groups:
            scalars = _scalars(graph, group)
            if scalars:
                family = key(graph, group, frozenset(value.name for value in scalars))
                families.setdefault(family, []).append((graph, group, scalars))
        self._names: dict[tuple[int, str], frozenset[str]] = {}
        for members in families.values():
            self._choose(members)

    def apart(self, graph: Graph, group: Group) -> tuple[Graph, Group]:
        """Return the group with inputs in place of the constants that are arguments, and its graph."""
        names = self._names.get((id(graph), group.name))
        if not names:
            return graph, group
        alone = Graph(graph.name)
        alone.symbols = graph.symbols
        nodes = [graph.node(name) for name in group.nodes]
        inputs = {
            value: Value(value.name, value.type) for node in nodes for value in node.inputs if value.name in names
        }
        alone.copy_nodes(
            nodes, {(node, value): inputs[value] for node in nodes for value in node.inputs if value in inputs}
        )
        if checked(alone.nodes) != checked(nodes):
            return graph, group  # nodes elsewhere show that indices are in range
        stages = tuple(tuple(_with_inputs(part, names) for part in stage) for stage in group.stages)
        return alone, replace(_with_inputs(group, names), stages=stages)

    def _choose(self, members: Sequence[tuple[Graph, Group, Sequence[Value]]]) -> None:
        data = [tuple(digest(value.data) for value in scalars if value.data is not None) for *_, scalars in members]
        if len(set(data)) < FEWEST_KERNELS:
            return
        differing = [len(set(column)) > 1 for column in zip(*data, strict=True)]
        for graph, group, scalars in members:
            names = (value.name for value, differs in zip(scalars, differing, strict=True) if differs)
            self._names[id(graph), group.name] = frozenset(names)


def _scalars(graph: Graph, group: Group) -> list[Value]:
    """Return the one-element constants that only arithmetic reads, in order of first use."""
    if any(part.kind is GroupKind.ATTENTION for part in group.parts or (group,)):
        return []  # its code depends on constants: scales and masks
    nodes = [graph.node(name) for name in group.nodes]
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v.data is not None and v.data.size == 1)
    other = {v for node in nodes if not _arithmetic(node) for v in node.inputs}
    return [value for value in read if value not in other]


def _arithmetic(node: Node) -> bool:
    """Return whether a node is arithmetic whose operands need not be constant; a constant integer divisor is known to
    be nonzero.
    """
    return node.op in ARITHMETIC and (node.op != "div" or node.output.dtype.startswith(("float", "bfloat")))


def _with_inputs(group: Group, names: frozenset[str]) -> Group:
    """Return the group with the constants of these names among its inputs."""
    moved = tuple(name for name in group.constants if name in names)
    constants = tuple(name for name in group.constants if name not in names)
    return replace(group, inputs=(*group.inputs, *moved), constants=constants)
