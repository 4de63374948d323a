"""Groups with kernels from a plug-in: its kernels become launches of the backend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilestitch.compiler.ir import Graph
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.launches.own import OwnKernels
from tilestitch.passes.plan.own_kernels import KernelTarget, OwnKernel

from .backend import Backend, OwnedKernel
from .launch import PackedArg


class Schedule(Protocol):
    """A plug-in with kernels for some groups. `identity` names it in messages."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> object: ...

    def kernels(self, graph: Graph, group: Group, target: KernelTarget) -> tuple[OwnKernel, ...] | None:
        """Return the kernels that write all outputs of `group`; None to use tilestitch's own template."""
        ...


@dataclass(frozen=True)
class KernelsOfPlugins:
    """The kernels of plug-ins for groups: those of the first schedule that has some."""

    schedules: Sequence[Schedule]
    target: KernelTarget

    def __call__(self, graph: Graph, group: Group) -> OwnKernels | None:
        """Return a plug-in's kernels for a group, or None. Raises PluginFault for a schedule that fails, or whose
        kernels do not fit the group.
        """
        if not self.schedules or not _has_elements(graph, group):
            return None
        for plugin in self.schedules:
            kernels = plugin.kernels(graph, group, self.target)
            if kernels is not None:
                return OwnKernels(plugin.name, str(plugin.identity), kernels)
        return None


def _has_elements(graph: Graph, group: Group) -> bool:
    """Return whether there is anything to compute."""
    wanted = set(group.outputs)
    made = (v for name in group.nodes for v in graph.node(name).outputs)
    return any(v.tensor_type.num_elements for v in made if v.name in wanted)


def lower_with(
    kernels_of: KernelsOfPlugins, backend: Backend, graph: Graph, group: Group,
    packed: Mapping[str, PackedArg] | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the launches of a group by a plug-in's kernels, else by the backend's templates, for which some constants
    are `packed`.
    """
    own = kernels_of(graph, group)
    if own is None:
        return backend.lower(graph, group, packed)
    nodes = [graph.node(name) for name in group.nodes]
    types = {v.name: v.tensor_type for n in nodes for v in (*n.inputs, *n.outputs)}
    return tuple(
        backend.own_launch(OwnedKernel(kernel, own.plugin, own.identity, group.origins, types))
        for kernel in own.kernels
    )
