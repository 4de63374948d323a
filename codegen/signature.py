"""Groups that compute the same on different values: the layers of a model repeat, and each is lowered once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.magnitudes import divides_by_one_more_than_exp, divides_by_softmax_sum
from tilestitch.compiler.ir.text import digest
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.attention.mask_band import band_of, same_inside
from tilestitch.passes.plan.index_checks import are_places, index_checks, pending_checks

from .compute.sizes import symbols_among
from .groups import roles_in, view_group
from .launch import KernelArg, PackedArg, TensorMapArg, ValueArg
from .separated import ScalarArguments, ranged

Lower = Callable[[Graph, Group], tuple[Any, ...]]


@dataclass(frozen=True)
class Signature:
    """`key` determines a group's kernels; `values` are the names in it and `origins` those of its nodes, in order."""

    key: object
    values: tuple[str, ...]
    origins: tuple[tuple[str, ...], ...]


class LoweredOnce:
    """Lowers `groups` with `lower`; a group that equals an earlier one except for names, ranges of values that it
    reads, and constants that are arguments, gets the same launches, renamed.

    `ranges`, `scalars`: whether to separate such ranges and constants; a plug-in's schedule sees groups as planned.
    Launches are dataclasses with the fields `args` and `origins`, and perhaps `fault_origins`.
    """

    def __init__(self, lower: Lower, groups: Iterable[tuple[Graph, Group]], *, ranges: bool, scalars: bool) -> None:
        self._lower = lower
        self._ranges = ranges
        self._scalars = ScalarArguments(groups if scalars else (), lambda *of: signature(*of).key)
        self._known: dict[object, tuple[tuple[Any, ...], Signature]] = {}

    def __call__(self, graph: Graph, group: Group) -> tuple[Any, ...]:
        graph, group = self._scalars.apart(graph, group)
        apart = ranged(graph, group) if self._ranges else None
        return self._once(graph, group) if apart is None else apart.placed(self._once(apart.graph, apart.group))

    def _once(self, graph: Graph, group: Group) -> tuple[Any, ...]:
        here = signature(graph, group)
        if here.key not in self._known:
            self._known[here.key] = self._lower(graph, group), here
        launches, there = self._known[here.key]
        return launches if there is here else tuple(_renamed(launch, there, here) for launch in launches)


def signature(graph: Graph, group: Group, scalars: frozenset[str] = frozenset()) -> Signature:
    """Return the signature of a group of `graph`, ignoring the values of the constants `scalars`."""
    number: dict[str, int] = {}

    def place(name: str) -> int:
        return number.setdefault(name, len(number))

    nodes = [graph.node(name) for name in group.nodes]
    parts: list[object] = [group.kind.value, group.tie, group.schedule]
    if symbols_among(nodes):
        parts.append(graph.symbols)  # kernels find each by its position
    if group.kind is GroupKind.ATTENTION:
        # Kernels skip keys that masks hide from every query, also masks that other kernels compute.
        parts += _band(graph, group, place)
    masked = any(part.kind is GroupKind.ATTENTION for part in group.parts or (group,))
    seen = {name for node in nodes for name in (_integers(node) if masked else _indices(node))}
    # The producer of indices may show that they are in range: then they are not checked.
    pending = {node.name: tuple(check.column for check in checks) for node, checks in pending_checks(nodes).items()}
    for node in nodes:
        attrs = tuple((key, _frozen(value)) for key, value in sorted(node.attrs.items()))
        reads = tuple((place(v.name), str(v.type), v.name in scalars or _constant(v, seen)) for v in node.inputs)
        makes = tuple((place(v.name), str(v.type)) for v in node.outputs)
        # What is known of indices and divisors may come from nodes elsewhere.
        known = (*map(are_places, index_checks(node)), divides_by_softmax_sum(node), divides_by_one_more_than_exp(node))
        parts.append((node.op, attrs, reads, makes, node.name == group.anchor, pending.get(node.name), known))
    for names in (group.inputs, group.constants, group.outputs, group.floats):
        parts.append(tuple(place(name) for name in names))
    order = {node.name: i for i, node in enumerate(nodes)}
    for number_, stage in enumerate(group.stages):
        for part in stage:
            stored = tuple(place(name) for name in part.outputs)
            parts.append((number_, part.kind.value, part.schedule, tuple(order[name] for name in part.nodes), stored))
    every = tuple(dict.fromkeys(o for node in nodes for o in node.origins))
    return Signature(tuple(parts), tuple(number), (every, *(node.origins for node in nodes)))


def _band(graph: Graph, group: Group, place: Callable[[str], int]) -> list[object]:
    softmax = roles_in(view_group(graph, group)).softmax
    band = band_of(softmax) if softmax is not None else None
    if softmax is None or band is None:
        return []
    return [band, *((place(value.name), number) for value, number in same_inside(softmax, band).items())]


def _indices(node: Node) -> Iterator[str]:
    return (check.indices.name for check in index_checks(node))


def _integers(node: Node) -> Iterator[str]:
    return (v.name for v in node.inputs if v.data is not None and v.data.dtype.kind in "iu")


def _constant(value: Value, seen: Collection[str]) -> object:
    """Return what of a constant determines kernels. Small ones become part of the code; of those in `seen`, kernels may
    use the values: indices are in range, masks hide keys.
    """
    data = value.data
    if data is None:
        return None
    return digest(data) if data.size == 1 or value.name in seen else True


def _frozen(value: Any) -> object:
    return digest(value) if isinstance(value, np.ndarray) else repr(value)


def _renamed(launch: Any, there: Signature, here: Signature) -> Any:
    names = dict(zip(there.values, here.values, strict=True))
    origins = dict(zip(reversed(there.origins), reversed(here.origins), strict=True))

    def constant_or_value(arg: ValueArg | PackedArg) -> ValueArg | PackedArg:
        return dataclasses.replace(arg, value=names[arg.value])

    def argument(arg: KernelArg) -> KernelArg:
        match arg:
            case ValueArg() | PackedArg():
                return constant_or_value(arg)
            case TensorMapArg(ValueArg() | PackedArg() as over):
                return dataclasses.replace(arg, over=constant_or_value(over))
        return arg

    def nodes(those: tuple[str, ...]) -> tuple[str, ...]:
        return origins.get(those, here.origins[0])

    changes: dict[str, Any] = {"args": tuple(map(argument, launch.args)), "origins": nodes(launch.origins)}
    if getattr(launch, "fault_origins", ()):
        changes["fault_origins"] = tuple(map(nodes, launch.fault_origins))
    return dataclasses.replace(launch, **changes)
