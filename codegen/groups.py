"""A group of the plan with its names resolved, as templates of any target see it, and checks that the emitted launches
are those of the plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm.tirx import IntImm

from tilestitch.codegen.compute.dtypes import Expr, native_dtypes
from tilestitch.codegen.compute.indexing import forward_index
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir.graph import Graph, Node, Value
from tilestitch.compiler.ir.types import SMALL_FLOATS, is_sized_tensor
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.launches.launch import Launch
from tilestitch.passes.plan.own_kernels import Temporary
from tilestitch.passes.plan.roles import Part, Roles, roles_of
from tilestitch.passes.plan.view import GroupView, levels, look_up

from .launch import CountersArg, KernelArg, RangeArg, TemporaryArg, TensorMapArg, ValueArg
from .parameters import Written

__all__ = ["GroupView", "before_views", "gate_number", "levels", "roles_in", "view_group"]


def members(graph: Graph, group: Group) -> dict[str, Node]:
    """Return the nodes of a group by name."""
    return {name: graph.node(name) for name in group.nodes}


def touched(graph: Graph, group: Group, args: Sequence[KernelArg], launch: Launch) -> Launch:
    """Return the launch of a group with the values of its arguments."""
    values = {v.name: v for n in members(graph, group).values() for v in (*n.inputs, *n.outputs)}
    written, over = Written(group), [arg.over if isinstance(arg, TensorMapArg) else arg for arg in args]
    names = list(dict.fromkeys(arg.value for arg in over if isinstance(arg, ValueArg | RangeArg)))
    return replace(
        launch,
        reads=tuple(n for n in names if values[n] not in written and not values[n].is_constant),
        writes=tuple(n for n in names if values[n] in written),
        temporaries=tuple(dict.fromkeys(Temporary(a.name, a.nbytes) for a in over if isinstance(a, TemporaryArg))),
        counter_bytes=sum(arg.nbytes for arg in over if isinstance(arg, CountersArg)),
        group=group.name,
    )


def check_planned(group: Group, emitted: Sequence[Launch], planned: Sequence[Launch]) -> None:
    """Raise KernelError unless the launches of a group are those that its schedule gives."""
    if tuple(emitted) != tuple(planned):
        found = f"its schedule gives {planned}, the templates emit {emitted}"
        raise KernelError(f"group {group.name}: {found}; this is a fault of tilestitch", group.origins)


def view_group(graph: Graph, group: Group) -> GroupView:
    """Resolve a group's names in its graph. Raises KernelError for values that kernels cannot handle."""
    view = look_up({name: graph.node(name) for name in group.nodes}, group)
    for value in dict.fromkeys(v for node in view.nodes for v in (*node.inputs, *node.outputs)):
        if not is_sized_tensor(value.type):
            raise KernelError(
                f"group {group.name}: %{value.name} has type {value.type}, whose sizes only a run can tell; make it a "
                "host step",
                view.origins,
            )
        if value.dtype not in native_dtypes and value.dtype not in SMALL_FLOATS:
            raise KernelError(
                f"group {group.name}: kernels cannot hold %{value.name} of dtype {value.dtype}; make it a host step",
                view.origins,
            )
    return view


def roles_in(view: GroupView) -> Roles:
    """Return the role of each node in a group. Raises KernelError if no template fits them."""
    roles = roles_of(view.nodes, view.outputs, view.name)
    if isinstance(roles, WhyNot):
        raise KernelError(
            f"group {view.name} fits no kernel template: {roles}; compile with --planner none", view.origins
        )
    return roles


def before_views(
    roles: Roles, value: Value, index: tuple[Expr, ...], simplify: Callable[[Expr], Expr]
) -> tuple[Value, tuple[Expr, ...]]:
    """Return the value before the chain of views that makes a stored `value`, and the index in it of its element at
    `index`.
    """
    views: list[Node] = []
    while value.producer is not None and roles.parts.get(value.producer) is Part.VIEW:
        views.append(value.producer)
        value = value.producer.inputs[0]
    place = index
    for view in reversed(views):
        place = forward_index(view, place, simplify)
    return value, place


def gate_number(roles: Roles, column: Expr, at: Expr, simplify: Callable[[Expr], Expr]) -> int:
    """Return the gate whose column `column` is at column `at` of the whole GEMM; 0 without gates.

    Raises KernelError if there is none.
    """
    width = roles.gate_width
    if width is None:
        return 0
    # A reader of an axis of size one uses index 0.
    offset = simplify(at if width == 1 else at - column)
    if not isinstance(offset, (int, IntImm)):
        assert roles.anchor is not None
        raise KernelError(f"column {at} of the GEMM is in no gate", roles.anchor.origins)
    return int(offset) // width
