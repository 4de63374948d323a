"""A group of the plan with its names looked up, as templates of any target see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm.tirx import IntImm

from tilestitch.codegen.compute.dtypes import Expr, native_dtypes
from tilestitch.codegen.compute.indexing import forward_index
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir.graph import Graph, Node, Value
from tilestitch.compiler.ir.types import is_static_tensor
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.roles import Part, Roles, roles_of


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


def levels(nodes: Sequence[Node], roles: Roles) -> dict[Value, int]:
    """After how many passes over a row a value is known: 0 without reductions before it, one more behind each one."""
    level: dict[Value, int] = {}
    for node in nodes:
        below = max((level.get(v, 0) for v in node.inputs), default=0)
        for value in node.outputs:
            level[value] = below + (roles.parts[node] is Part.REDUCTION)
    return level


def before_views(
    roles: Roles, value: Value, index: tuple[Expr, ...], simplify: Callable[[Expr], Expr]
) -> tuple[Value, tuple[Expr, ...]]:
    """The value in front of the chain of views that makes a stored `value`, and where its element at `index` goes."""
    views: list[Node] = []
    while value.producer is not None and roles.parts.get(value.producer) is Part.VIEW:
        views.append(value.producer)
        value = value.producer.inputs[0]
    place = index
    for view in reversed(views):
        place = forward_index(view, place, simplify)
    return value, place


def gate_number(roles: Roles, column: Expr, at: Expr, simplify: Callable[[Expr], Expr]) -> int:
    """The gate that has its column number `column` at column `at` of the whole product; 0 without gates.

    Raises KernelError if none has.
    """
    width = roles.gate_width
    if width is None:
        return 0
    # Whoever reads an axis of one element asks for element 0.
    offset = simplify(at if width == 1 else at - column)
    if not isinstance(offset, (int, IntImm)):
        assert roles.anchor is not None
        raise KernelError(f"column {at} of the product is in no gate", roles.anchor.origins)
    return int(offset) // width
