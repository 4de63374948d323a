"""From a group of the plan to kernel launches: chooses the template and lists the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilestitch.codegen.compute.dtypes import native_dtypes
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir.graph import Graph, Node, Value
from tilestitch.compiler.ir.types import is_static_tensor
from tilestitch.passes.fusion.roles import Roles, roles_of
from tilestitch.passes.plan import Group, GroupKind, WhyNot

from .abi import KernelLaunch, ValueArg
from .checks import lower_index_checks
from .contraction import lower_contraction, lower_window
from .injective import emit_injective
from .rowplan import plan_rows
from .rowwise import emit_rowwise
from .scan import lower_cumulative
from .scatter import lower_scatter
from .sort import lower_top_k
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
    checks = () if group.kind is GroupKind.OPAQUE else lower_index_checks(view.nodes, view.inputs)
    return (*checks, *_template(view, group.kind, outputs, target, threads))


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


def _opaque(
    view: GroupView, outputs: Sequence[Value], target: CpuTarget, threads: int
) -> tuple[KernelLaunch, ...]:
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
        raise KernelError(f"group {view.name} fits no kernel template: {roles}; compile with --planner none", view.origins)
    return roles


def _rowwise(view: GroupView, outputs: Sequence[Value], target: CpuTarget) -> tuple[KernelLaunch, ...]:
    plan = plan_rows(view.nodes, _roles(view), view.inputs, outputs, target.isa)
    func = emit_rowwise(plan, view.inputs, outputs)
    args = tuple(ValueArg(v.name) for v in (*view.inputs, *outputs))
    return (KernelLaunch("rowwise", func, plan.loops.tasks, args, view.origins, plan.scratch_bytes),)
