"""Multi-output fusion: kernels that read the same tensor, or one of which reads the other, share a loop and store both
results.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.fusion.rules.builtin import AllowsAll, Fuse
from tilestitch.passes.plan.roles import reduced_axes

from ..clusters import Cluster, Fusion
from .diamonds import has_diamond, is_reduction
from .kernels import fits
from .priority import first_node, is_fusible
from .run_time import LAUNCH_US, kernel_us

SMALL_BYTES = 1024
"""Disjoint parts of a tensor of fewer bytes may be read by one kernel."""


@dataclass(frozen=True)
class MultiOutputFusion(AllowsAll):
    """From the last tensor to the first: fuses its readers with each other, then its producer with a reader."""

    name: ClassVar[str] = "multi_output_fusion"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        values = [*state.graph.inputs, *(o for n in state.nodes for o in n.outputs)]
        for value in reversed(values):
            yield from _siblings(state, value)
            if value.producer is not None:
                yield from _with_a_reader(state, value.producer)


def _siblings(state: Fusion, value: Value) -> Iterator[Fuse]:
    place = 0
    while place + 1 < len(readers := _candidates(state, value)):
        first, joins = readers[place], state.joins
        for other in readers[place + 1 :]:
            if not _share_a_loop(first, other) or _disjoint(value, first, other) or _connected(state, first, other):
                continue
            if fits(state, [first, other]):
                yield Fuse((first_node(first), first_node(other)), forced=True)
                break
        if state.joins == joins:
            place += 1


def _candidates(state: Fusion, value: Value) -> list[Cluster]:
    """Return the kernels that read `value` from memory, those with most operators first."""
    readers = dict.fromkeys(c for user in value.users for c in state.computing(user) if value.producer not in c.members)
    found = [c for c in readers if _may_have_outputs(state, c)]
    return sorted(found, key=lambda c: (-len(state.outputs_of(c)), -len(c.members), state.first_position(c)))


def _may_have_outputs(state: Fusion, cluster: Cluster) -> bool:
    """Return whether a kernel may have several outputs; Triton's kernels and library calls have one."""
    return is_fusible(state, cluster) and not has_diamond(state.in_order(cluster.members))


def _connected(state: Fusion, a: Cluster, b: Cluster) -> bool:
    return b in state.readers(a) or a in state.readers(b)


def _with_a_reader(state: Fusion, node: Node) -> Iterator[Fuse]:
    producer = state.cluster_of(node)
    if not state.is_live(producer) or not _may_have_outputs(state, producer) or len(state.outputs_of(producer)) > 1:
        return
    if any(n.op == "transpose" for n in producer.members) or node.outputs[0] not in state.outputs_of(producer):
        return
    readers = [r for r in state.readers(producer) if _may_have_outputs(state, r) and _share_a_loop(producer, r)]
    readers = [r for r in readers if fits(state, [producer, r]) and _pays(state, producer, r)]
    if readers:
        best = max(readers, key=lambda r: (len(state.outputs_of(r)), len(r.members)))
        yield Fuse((node, first_node(best)), forced=True)


def _pays(state: Fusion, producer: Cluster, reader: Cluster) -> bool:
    apart_us = 0.0
    for cluster in (producer, reader):
        apart_us += LAUNCH_US + kernel_us(state.in_order(cluster.members), state.outputs_of(cluster))
    union = state.union([producer, reader])
    return LAUNCH_US + kernel_us(union.nodes, union.stored) <= apart_us


def _share_a_loop(a: Cluster, b: Cluster) -> bool:
    """Return whether two kernels share a loop: reductions over the same axes of the same shape, or equal numbers of
    elements.
    """
    loops = [_loop(c) for c in (a, b)]
    if all(axes for _, axes in loops):
        return loops[0] == loops[1]
    return prod(loops[0][0]) == prod(loops[1][0])


def _loop(cluster: Cluster) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of a kernel's loop, and the axes that it reduces."""
    reduction = next((n for n in cluster.members if is_reduction(n)), None)
    if reduction is not None:
        return reduction.inputs[0].shape, reduced_axes(reduction)
    roots = [n for n in cluster.owned if not any(u in cluster.members for o in n.outputs for u in o.users)]
    return max((n.output.shape for n in roots), key=prod), ()


def _disjoint(value: Value, a: Cluster, b: Cluster) -> bool:
    """Return whether two kernels read disjoint parts of `value`, so that fusing them saves no traffic."""
    if value.tensor_type.nbytes < SMALL_BYTES:
        return False
    parts = [[n for n in value.users if n in c.members] for c in (a, b)]
    if any(len(nodes) != 1 or nodes[0].op != "slice" for nodes in parts):
        return False
    (first,), (second,) = (list(map(_ranges, nodes)) for nodes in parts)
    return any(low >= end or start >= high for (low, high), (start, end) in zip(first, second, strict=True))


def _ranges(node: Node) -> list[tuple[int, int]]:
    """Return the range, first and end, that a slice reads along each axis."""
    extents = zip(node.attrs["starts"], node.attrs["steps"], node.output.shape, strict=True)
    ends = [(start, start + (size - 1) * step) for start, step, size in extents]
    return [(min(pair), max(pair) + 1) for pair in ends]
