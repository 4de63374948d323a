"""A launch as its template emits it, before the group determines which values are its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.types import HALVES, storage_bytes
from tilestitch.passes.plan.group import Group
from tilestitch.passes.plan.launches.launch import ONE, Launch
from tilestitch.passes.plan.own_kernels import Dim3, Temporary

SHARED_ALIGNMENT = 64
"""Alignment of arrays in static shared memory, for accounting."""

COUNTER_BYTES = 4

Argument: TypeAlias = Value | Temporary


@dataclass(frozen=True)
class Emitted:
    """Like `Launch`, but with `arguments`: what it accesses, in the order of its parameters.

    part: whether its code can be emitted again as a part of a stitched launch.
    """

    kind: str
    grid: Dim3
    block: Dim3
    arguments: tuple[Argument, ...]
    counter_bytes: int = 0
    cluster: Dim3 = ONE
    shared_bytes: int = 0
    static_shared_bytes: int = 0
    cooperative: bool = False
    elastic: bool = False
    beside: bool = False
    scratch_bytes: int = 0
    overlaps: tuple[int, ...] = ()
    part: bool = False

    @staticmethod
    def of(kind: str, blocks: int, threads: int, arguments: Iterable[Argument], *, part: bool = False) -> Emitted:
        """Return a launch without shared memory, with one-dimensional grid and blocks."""
        return Emitted(kind, (blocks, 1, 1), (threads, 1, 1), tuple(arguments), part=part)

    @property
    def threads(self) -> int:
        return prod(self.block)


def shared_array(elements: int, itemsize: int) -> int:
    """Return the bytes that an array in static shared memory is counted as."""
    return -(-elements * itemsize // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def accumulator_bytes(dtype: str) -> int:
    """Return the bytes of a running sum, product or extremum of elements of `dtype`: half floats are accumulated in
    float32.
    """
    return 4 if dtype in HALVES else storage_bytes(dtype)


def results_of(nodes: Mapping[str, Node], group: Group) -> frozenset[Value]:
    """Return what a group's kernels may write: its outputs and those results of its nodes that nothing reads."""
    made = (v for name in group.nodes for v in nodes[name].outputs)
    return frozenset(v for v in made if v.name not in group.inputs)


def classified(launch: Emitted, results: frozenset[Value], group: str) -> Launch:
    """Return the launch of a group. A launch that mentions a result of the group may write all of it."""
    values = list(dict.fromkeys(arg for arg in launch.arguments if isinstance(arg, Value)))
    return Launch(
        kind=launch.kind, grid=launch.grid, block=launch.block,
        reads=tuple(v.name for v in values if v not in results and not v.is_constant),
        writes=tuple(v.name for v in values if v in results),
        temporaries=tuple(dict.fromkeys(arg for arg in launch.arguments if isinstance(arg, Temporary))),
        counter_bytes=launch.counter_bytes, cluster=launch.cluster, shared_bytes=launch.shared_bytes,
        static_shared_bytes=launch.static_shared_bytes, cooperative=launch.cooperative, elastic=launch.elastic,
        beside=launch.beside, scratch_bytes=launch.scratch_bytes, overlaps=launch.overlaps, group=group,
    )  # fmt: skip
