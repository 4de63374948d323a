"""Checks that the emitted launches of a group are those of the plan."""

from collections.abc import Sequence
from dataclasses import replace

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.launches.launch import Launch
from tilestitch.passes.plan.own_kernels import Temporary

from .errors import KernelError
from .launch import CountersArg, KernelArg, RangeArg, TemporaryArg, TensorMapArg, ValueArg
from .parameters import Written


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
