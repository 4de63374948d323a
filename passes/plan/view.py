"""A group of the plan with its names looked up in the graph, as schedulers and templates of any target see it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilestitch.compiler.ir import Node, Value

from .group import Group
from .parts import Part, Roles


@dataclass(frozen=True)
class GroupView:
    """A group with its names resolved: member nodes, values read from memory, values to store, the anchor."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    anchor: Node | None

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(o for node in self.nodes for o in node.origins))

    @property
    def stored(self) -> tuple[Value, ...]:
        """The outputs that have elements, at some sizes at least."""
        return tuple(v for v in self.outputs if not v.tensor_type.always_empty)


def look_up(by_name: Mapping[str, Node], group: Group) -> GroupView:
    """Return a group's view, with names resolved among the graph's nodes. One-element constants are not inputs: they
    become part of the code.
    """
    nodes = tuple(by_name[name] for name in group.nodes)
    made = {value.name: value for node in nodes for value in node.outputs}
    outputs = tuple(made[name] for name in group.outputs)
    return GroupView(group.name, nodes, read_by(nodes), outputs, by_name[group.anchor] if group.anchor else None)


def read_by(nodes: Iterable[Node]) -> tuple[Value, ...]:
    """Return the values that nodes read from memory, in order of first use."""
    members = tuple(nodes)
    made = {value for node in members for value in node.outputs}
    read = dict.fromkeys(value for node in members for value in node.inputs if value not in made)
    return tuple(v for v in read if v.data is None or v.data.size != 1)


def levels(nodes: Sequence[Node], roles: Roles) -> dict[Value, int]:
    """Return after how many passes over a row each value is known: 0 if it depends on no reduction, one more after
    each.
    """
    level: dict[Value, int] = {}
    for node in nodes:
        below = max((level.get(v, 0) for v in node.inputs), default=0)
        for value in node.outputs:
            level[value] = below + (roles.parts[node] is Part.REDUCTION)
    return level
