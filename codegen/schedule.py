"""Schedules of plug-ins: kernels that someone other than tilestitch writes for groups of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from tilestitch.compiler.ir import Graph
from tilestitch.passes.plan import Group

from .backend import Backend
from .errors import KernelError


class Schedule(Protocol):
    """Brings its own kernels for some groups. `target` is the backend's: a `CpuTarget` or a `CudaTarget`.

    `schedule` returns the launches of a group, `codegen.cpu.abi.KernelLaunch` or `codegen.cuda.abi.CudaLaunch` objects,
    whose `ValueArg`s name the group's inputs, constants and outputs; None where tilestitch's own templates shall do it.
    It is asked once for groups that are equal but for names, and looks at nothing but the group's own nodes.
    """

    name: ClassVar[str]

    def schedule(self, graph: Graph, group: Group, target: Any) -> Sequence[Any] | None: ...


def lower_with(schedules: Sequence[Schedule], backend: Backend, graph: Graph, group: Group) -> tuple[Any, ...]:
    """The launches of a group by the first schedule that has some, else by the backend's templates.

    Raises KernelError for a schedule whose launches miss an output of the group.
    """
    for plugin in schedules:
        launches = plugin.schedule(graph, group, backend.target)
        if launches is None:
            continue
        named = {getattr(arg, "value", None) for launch in launches for arg in launch.args}
        missing = [v for v in group.outputs if v not in named]
        if missing:
            raise KernelError(
                f"schedule {plugin.name}: its launches of group {group.name} do not mention the output %{missing[0]}; "
                "repair or leave out the plug-in",
                group.origins,
            )
        return tuple(launches)
    return backend.lower(graph, group)
