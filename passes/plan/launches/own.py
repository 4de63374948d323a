"""Launches of plug-ins' kernels, as plans describe them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.plan.group import Group
from tilestitch.passes.plan.launches.launch import ONE, Launch
from tilestitch.passes.plan.own_kernels import CudaKernel, OwnKernel, Temporary, TirKernel


def kind_of_plugin(name: str) -> str:
    """Return the prefix of the names of a plug-in's kernels."""
    return re.sub(r"\W", "_", name)


@dataclass(frozen=True)
class OwnKernels:
    """The kernels that the plug-in `plugin` provides for a group; `identity` names it in messages."""

    plugin: str
    identity: str
    kernels: tuple[OwnKernel, ...]


KernelsOf: TypeAlias = Callable[[Graph, Group], OwnKernels | None]
"""A function that returns the kernels of plug-ins for a group; None where tilestitch's own templates compile it."""


def no_kernels(graph: Graph, group: Group) -> None:
    """Return None: for compilations without plug-ins that provide kernels."""


def own_launches(nodes: Mapping[str, Node], group: Group, own: OwnKernels, *, on_gpu: bool) -> tuple[Launch, ...]:
    """Return the launches of a group whose kernels a plug-in provides, in order."""
    members = [nodes[name] for name in group.nodes]
    made = {v.name for n in members for v in n.outputs} - set(group.inputs)
    constants = {v.name for n in members for v in n.inputs if v.is_constant}
    launches = [_launch(kernel, kind_of_plugin(own.plugin), on_gpu) for kernel in own.kernels]
    return tuple(
        replace(
            launch,
            reads=tuple(name for name in launch.reads if name not in made and name not in constants),
            writes=tuple(name for name in launch.reads if name in made),
            group=group.name,
        )
        for launch in launches
    )


def _launch(kernel: OwnKernel, kind: str, on_gpu: bool) -> Launch:
    """Return a launch that lists all accessed values under `reads`."""
    names = tuple(dict.fromkeys(arg for arg in kernel.args if isinstance(arg, str)))
    temporaries = tuple(dict.fromkeys(arg for arg in kernel.args if isinstance(arg, Temporary)))
    if isinstance(kernel, CudaKernel):
        return Launch(
            kind, kernel.grid, kernel.block, names, (), temporaries, shared_bytes=kernel.shared_bytes,
            cooperative=kernel.cooperative,
        )  # fmt: skip
    if isinstance(kernel, TirKernel) and on_gpu:
        return Launch(kind, kernel.grid, kernel.block, names, (), temporaries)
    return Launch(kind, (kernel.tasks, 1, 1), ONE, names, (), temporaries)
