"""Groups whose kernels a plug-in brings: its kernels become launches of the backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tilestitch.compiler.ir import Graph
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.own_kernels import KernelTarget, OwnKernel

from .backend import Backend, OwnedKernel


class Schedule(Protocol):
    """A plug-in that brings kernels of its own for some groups. `identity` says in messages whose it is."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> object: ...

    def kernels(self, graph: Graph, group: Group, target: KernelTarget) -> tuple[OwnKernel, ...] | None:
        """Kernels that write all outputs of `group`; None where tilestitch's own template does it."""
        ...


def lower_with(schedules: Sequence[Schedule], backend: Backend, graph: Graph, group: Group) -> tuple[Any, ...]:
    """The launches of a group by the first schedule that has kernels for it, else by the backend's templates.

    Raises PluginFault for a schedule that fails, or whose kernels do not fit the group.
    """
    if not schedules:
        return backend.lower(graph, group)
    nodes = [graph.node(name) for name in group.nodes]
    types = {v.name: v.tensor_type for n in nodes for v in (*n.inputs, *n.outputs)}
    if not any(types[name].num_elements for name in group.outputs):
        return backend.lower(graph, group)
    for plugin in schedules:
        kernels = plugin.kernels(graph, group, backend.target_of_schedules)
        if kernels is not None:
            return tuple(
                backend.own_launch(OwnedKernel(kernel, plugin.name, str(plugin.identity), group.origins, types))
                for kernel in kernels
            )
    return backend.lower(graph, group)
