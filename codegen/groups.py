"""A group of the plan with its names looked up, as templates of any target see it."""

from __future__ import annotations

from dataclasses import dataclass

from tilestitch.codegen.compute.dtypes import native_dtypes
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir.graph import Graph, Node, Value
from tilestitch.compiler.ir.types import is_static_tensor
from tilestitch.passes.fusion.roles import Roles, roles_of
from tilestitch.passes.plan import Group, WhyNot


@dataclass(frozen=True)
class GroupView:
    """A group with its names looked up: member nodes, values read from memory, values to store, the anchor."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    anchor: Node | None

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(o for node in self.nodes for o in node.origins))


def view_group(graph: Graph, group: Group) -> GroupView:
    """Look up a group's names in its graph. Constants of one element are no inputs: they become part of the code.

    Raises KernelError for values that kernels cannot hold.
    """
    by_name = {node.name: node for node in graph.nodes}
    nodes = tuple(by_name[name] for name in group.nodes)
    made = {value.name: value for node in nodes for value in node.outputs}
    read = {value: None for node in nodes for value in node.inputs if value.name not in made}
    inputs = tuple(v for v in read if v.data is None or v.data.size != 1)
    outputs = tuple(made[name] for name in group.outputs)
    view = GroupView(group.name, nodes, inputs, outputs, by_name[group.anchor] if group.anchor else None)
    for value in (*read, *made.values()):
        if not is_static_tensor(value.type):
            raise KernelError(
                f"group {group.name}: %{value.name} has type {value.type}, but kernels need static shapes", view.origins
            )
        if value.dtype not in native_dtypes:
            raise KernelError(
                f"group {group.name}: kernels cannot hold %{value.name} of dtype {value.dtype}; make it a host step",
                view.origins,
            )
    return view


def roles_in(view: GroupView) -> Roles:
    """Which part each node of a group plays. Raises KernelError if they form no group that a template fits."""
    roles = roles_of(view.nodes, view.outputs, view.name)
    if isinstance(roles, WhyNot):
        raise KernelError(
            f"group {view.name} fits no kernel template: {roles}; compile with --planner none", view.origins
        )
    return roles
