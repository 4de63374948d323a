"""From a group of the plan to kernel launches: chooses the template and lists the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilestitch.codegen.compute.dtypes import native_dtypes
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir.graph import Graph, Node, Value
from tilestitch.compiler.ir.types import is_static_tensor
from tilestitch.passes.fusion.roles import Roles, RowSpace, roles_of
from tilestitch.passes.plan import Group, GroupKind, WhyNot

from .abi import KernelArg, KernelLaunch, TemporaryArg, ValueArg
from .checks import lower_index_checks
from .contraction import lower_contraction
from .convolution import lower_window
from .injective import emit_injective
from .reducers import ARG_REDUCTIONS
from .rowplan import plan_rows
from .rowwise import emit_rowwise
from .scan import lower_cumulative
from .scatter import lower_scatter
from .sort import lower_top_k
from .split import parts_of, split_rows
from .target import CpuTarget


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


def lower_group(graph: Graph, group: Group, target: CpuTarget, threads: int = 4) -> tuple[KernelLaunch, ...]:
    """The launches of a group, in order; none if its outputs have no elements.

    Raises KernelError, naming the ONNX nodes, for a group that no template fits.
    """
    view = view_group(graph, group)
    outputs = tuple(v for v in view.outputs if v.tensor_type.num_elements)
    if not outputs:
        return ()
    try:
        checks = () if group.kind is GroupKind.OPAQUE else lower_index_checks(view.nodes, view.inputs)
        return (*checks, *_template(view, group.kind, outputs, target, threads))
    except RecursionError:
        raise KernelError(
            f"group {group.name} nests {len(view.nodes)} nodes too deeply; compile with --planner none", view.origins
        ) from None


def _template(
    view: GroupView, kind: GroupKind, outputs: Sequence[Value], target: CpuTarget, threads: int
) -> tuple[KernelLaunch, ...]:
    if kind is GroupKind.INJECTIVE:
        return _injective(view, outputs, target)
    if kind is GroupKind.ROWWISE:
        return _rowwise(view, outputs, target)
    if kind is GroupKind.CONTRACTION:
        return (lower_contraction(view.nodes, _roles(view), view.inputs, outputs, target.isa, threads),)
    return _opaque(view, outputs, target, threads)


def _opaque(view: GroupView, outputs: Sequence[Value], target: CpuTarget, threads: int) -> tuple[KernelLaunch, ...]:
    anchor = view.anchor
    assert anchor is not None
    if anchor.op == "window_reduce":
        return (lower_window(view.nodes, _roles(view), view.inputs, outputs, target.isa, threads),)
    if anchor.op == "cumulative":
        return (lower_cumulative(anchor, target.isa),)
    if anchor.op == "top_k":
        return (lower_top_k(anchor),)
    if anchor.op in ("scatter_elements", "scatter_nd"):
        return lower_scatter(anchor, target.isa)
    raise KernelError(f"group {view.name}: {anchor.op} has no kernel template; make it a host step", view.origins)


def _injective(view: GroupView, outputs: Sequence[Value], target: CpuTarget) -> tuple[KernelLaunch, ...]:
    func, tasks = emit_injective(view.nodes, view.inputs, outputs, target.isa)
    args = tuple(ValueArg(v.name) for v in (*view.inputs, *outputs))
    return (KernelLaunch("injective", func, tasks, args, view.origins),)


def _roles(view: GroupView) -> Roles:
    roles = roles_of(view.nodes, view.outputs, view.name)
    if isinstance(roles, WhyNot):
        raise KernelError(
            f"group {view.name} fits no kernel template: {roles}; compile with --planner none", view.origins
        )
    return roles


def _rowwise(view: GroupView, outputs: Sequence[Value], target: CpuTarget) -> tuple[KernelLaunch, ...]:
    roles = _roles(view)
    assert roles.rows is not None
    parts = parts_of(roles.rows)
    if parts > 1 and not any(node.op in ARG_REDUCTIONS for node in view.nodes):
        return _rows_in_parts(view, outputs, roles.rows, parts, target)
    args = tuple(ValueArg(v.name) for v in (*view.inputs, *outputs))
    return (_row_launch(view.nodes, roles, view.inputs, outputs, args, view.origins, target),)


def _row_launch(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value],
    args: tuple[KernelArg, ...], origins: tuple[str, ...], target: CpuTarget,
) -> KernelLaunch:  # fmt: skip
    plan = plan_rows(nodes, roles, inputs, outputs, target.isa)
    func = emit_rowwise(plan, inputs, outputs)
    return KernelLaunch("rowwise", func, plan.loops.tasks, args, origins, plan.scratch_bytes)


def _rows_in_parts(
    view: GroupView, outputs: Sequence[Value], rows: RowSpace, parts: int, target: CpuTarget
) -> tuple[KernelLaunch, ...]:
    pieces, own = split_rows(view.nodes, view.inputs, outputs, rows, parts)

    def argument(value: Value) -> KernelArg:
        if value in own:
            return ValueArg(own[value].name)
        return TemporaryArg(f"{view.name}.{value.name}", value.tensor_type.nbytes)

    launches = []
    for piece in pieces:
        args = tuple(argument(v) for v in (*piece.inputs, *piece.outputs))
        roles = roles_of(piece.nodes, piece.outputs, view.name)
        assert isinstance(roles, Roles), roles
        if roles.kind is GroupKind.ROWWISE:
            launches.append(_row_launch(piece.nodes, roles, piece.inputs, piece.outputs, args, view.origins, target))
            continue
        func, tasks = emit_injective(piece.nodes, piece.inputs, piece.outputs, target.isa)
        launches.append(KernelLaunch("injective", func, tasks, args, view.origins))
    return tuple(launches)
