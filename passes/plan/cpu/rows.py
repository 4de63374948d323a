"""Row-wise kernels on a CPU as scheduled: loops, passes over a row, and which values a row keeps in the workspace.

The iteration shape consists of kept dimensions (each index of which is a row) and reduced ones. If the last dimension
is reduced, a pass walks along one row in vectors. If it is kept, a pass handles a vector of neighbouring rows at once.
A reduction whose operand depends on other reductions runs in a later pass over the row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tilestitch.compiler.ir import Node, Value, is_elementwise
from tilestitch.compiler.ir.sizes import bounds_of, is_open, largest
from tilestitch.compiler.ir.types import compute_dtype, storage_bytes
from tilestitch.passes.plan.parts import Part, Roles
from tilestitch.passes.plan.view import levels

from .limits import lane_reasons
from .schedules import CpuRowSchedule
from .tiling import align

MOST_VECTORS = 64
"""Most vectors of a step, each written out in code."""


@dataclass(frozen=True)
class RowPass:
    """One walk over the row: finishes `reductions`, stores `outputs`, keeps `cached` values for later passes."""

    reductions: tuple[Node, ...]
    outputs: tuple[Value, ...]
    cached: tuple[Value, ...]


@dataclass(frozen=True)
class RowGroup:
    """A row-wise group whose outputs are not empty."""

    nodes: tuple[Node, ...]
    roles: Roles
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        assert self.roles.rows is not None
        return self.roles.rows.shape

    @property
    def axes(self) -> tuple[int, ...]:
        assert self.roles.rows is not None
        return self.roles.rows.axes

    @cached_property
    def level(self) -> dict[Value, int]:
        return levels(self.nodes, self.roles)

    @cached_property
    def reductions(self) -> tuple[Node, ...]:
        return tuple(n for n, part in self.roles.parts.items() if part is Part.REDUCTION)

    @cached_property
    def full(self) -> tuple[Value, ...]:
        """Outputs with every element of the rows."""
        views, parts = self.roles.viewed, self.roles.parts
        return tuple(
            v for v in self.outputs if v in views or (v.producer is not None and parts[v.producer] is Part.FULL)
        )

    @cached_property
    def reduced(self) -> tuple[Value, ...]:
        """Results of reduced nodes and reductions, in topological order."""
        parts = (Part.REDUCTION, Part.REDUCED)
        return tuple(n.outputs[0] for n, part in self.roles.parts.items() if part in parts)

    @property
    def walked(self) -> list[Value]:
        """Values that the passes over a row compute element by element."""
        views = self.roles.viewed
        return [*(n.inputs[0] for n in self.reductions), *(views.get(v, v) for v in self.full)]

    def kept(self, wanted: Callable[[Value], bool]) -> dict[Value, int]:
        """Return which `wanted` values, of those with every element of the rows that several passes need, stay in the
        workspace, and the pass that computes each. Neither they nor their operands are computed again.
        """
        return self._walk(wanted)[0]

    def computed(self, kept: Collection[Value]) -> dict[Value, int]:
        """Return how many passes compute or read each value along the row, if `kept` are kept."""
        return {value: len(where) for value, where in self._walk(kept.__contains__)[1].items() if where}

    def _walk(self, wanted: Callable[[Value], bool]) -> tuple[dict[Value, int], dict[Value, set[int]]]:
        """Return the kept values, and the passes that compute or read each value."""
        demanded = self._demanded()
        kept: dict[Value, int] = {}
        for node in reversed(self.nodes):
            if len(node.outputs) != 1 or self.roles.parts[node] in (Part.REDUCED, Part.REDUCTION):
                continue
            value = node.output
            where = demanded.get(value, set())
            if not where:
                continue
            whole = value.shape == self.shape and is_elementwise(node.op)
            if whole and len(where) > 1 and wanted(value):
                kept[value] = min(where)
                where = demanded[value] = {min(where)}
            for operand in node.inputs:
                demanded.setdefault(operand, set()).update(where)
        return kept, demanded

    def places(self, values: Iterable[Value]) -> tuple[int, ...]:
        """Return the positions of the nodes that compute these values."""
        wanted = frozenset(values)
        return tuple(at for at, node in enumerate(self.nodes) if not wanted.isdisjoint(node.outputs))

    def _demanded(self) -> dict[Value, set[int]]:
        """Return the passes that need each value along the row."""
        demanded: dict[Value, set[int]] = {}
        for node in self.reductions:
            demanded.setdefault(node.inputs[0], set()).add(self.level[node.outputs[0]] - 1)
        for value in self.full:
            demanded.setdefault(value, set()).add(self.level[value])
        return demanded

    def passes(self, kept: Mapping[Value, int]) -> tuple[RowPass, ...]:
        """Return the passes over a row, in order, with the values that each keeps."""
        passes = []
        for number in range(max(self.level[n.outputs[0]] for n in self.reductions) + 1):
            finished = tuple(n for n in self.reductions if self.level[n.outputs[0]] == number + 1)
            stored = tuple(v for v in self.full if self.level[v] == number)
            if finished or stored:
                passes.append(RowPass(finished, stored, tuple(v for v, where in kept.items() if where == number)))
        return tuple(passes)


@dataclass(frozen=True)
class RowLoops:
    """The loops of a schedule over rows of a shape. A block is `lanes * vectors` elements of the last dimension: of one
    row, or (`columns`) of that many rows.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    schedule: CpuRowSchedule

    @property
    def extents(self) -> tuple[int, ...]:
        return self.schedule.extents

    @property
    def reduced(self) -> tuple[bool, ...]:
        return self.schedule.reduced

    @property
    def lanes(self) -> int:
        return self.schedule.lanes

    @property
    def vectors(self) -> int:
        return self.schedule.vectors

    @property
    def columns(self) -> bool:
        return not self.reduced[-1]

    @property
    def block(self) -> int:
        return self.lanes * self.vectors

    @property
    def row_extents(self) -> tuple[int, ...]:
        """The extents that rows (or blocks of rows) are numbered over."""
        kept = [e for e, r in zip(self.extents, self.reduced, strict=True) if not r]
        if self.columns:
            kept[-1] = -(-kept[-1] // self.block)
        return tuple(kept)

    @property
    def line_extents(self) -> tuple[int, ...]:
        """The reduced dimensions."""
        return tuple(e for e, r in zip(self.extents, self.reduced, strict=True) if r)

    @property
    def row_elements(self) -> int:
        return prod(self.line_extents)

    @property
    def width(self) -> int:
        """Rows that are computed together."""
        return self.block if self.columns else 1

    @property
    def tasks(self) -> int:
        return -(-prod(self.row_extents) // self.schedule.rows)

    def cache_bytes(self, value: Value) -> int:
        """Return the workspace of a kept value, for the rows that are computed together."""
        elements = self.row_elements * self.width
        return align(elements * storage_bytes(compute_dtype(value.dtype)))

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel can have these loops."""
        schedule, last = self.schedule, largest(1, (self.extents or (1,))[-1])
        if len(self.extents) != len(self.reduced) or not self._covers():
            yield (
                f"loops over {self.extents}, of which {self.reduced} are reduced, do not cover rows of {self.shape} "
                f"over axes {self.axes}"
            )
            return
        odd = next(lane_reasons(schedule.lanes, 1), None)
        if odd is not None:
            yield odd
        if not 1 <= schedule.vectors <= MOST_VECTORS or schedule.vectors & (schedule.vectors - 1):
            yield f"a step has {schedule.vectors} vectors; their number is a power of two, at most {MOST_VECTORS}"
        longest = self.block if self.columns else schedule.lanes
        if not is_open(last) and longest > last:
            yield f"{schedule.vectors} vectors of {schedule.lanes} lanes are longer than the last dimension, {last}"
        if not schedule.rows:
            yield "a task has 0 rows; it has at least one"

    def _covers(self) -> bool:
        """Return whether the loops are the dimensions of the rows, possibly with neighbours of one kind merged."""
        dims = [(size, axis in self.axes) for axis, size in enumerate(self.shape) if size != 1] or [(1, False)]
        for extent, reduced in zip(self.extents, self.reduced, strict=True):
            size = None
            while dims and size != extent and dims[0][1] == reduced:
                size = (1 if size is None else size) * dims.pop(0)[0]
            if size != extent:
                return False
        return not dims


@dataclass(frozen=True)
class RowPlan:
    """Row-wise work and its schedule, and what follows from both: passes, tasks and workspace."""

    group: RowGroup
    schedule: CpuRowSchedule

    @cached_property
    def loops(self) -> RowLoops:
        return RowLoops(self.group.shape, self.group.axes, self.schedule)

    @cached_property
    def narrower(self) -> tuple[RowPlan, ...]:
        """Plans for fewer neighbouring rows at once, where a whole block may not be there: for one vector, and for one
        row.
        """
        if not self.loops.columns or bounds_of(self.loops.extents[-1])[0] >= self.loops.block:
            return ()
        vector = replace(self.schedule, vectors=1)
        fewer = dict.fromkeys((vector, replace(vector, lanes=1)))
        return tuple(RowPlan(self.group, schedule) for schedule in fewer if schedule != self.schedule)

    @cached_property
    def kept(self) -> dict[Value, int]:
        wanted = frozenset(
            v for at in self.schedule.kept if at < len(self.group.nodes) for v in self.group.nodes[at].outputs
        )
        return self.group.kept(lambda value: value in wanted)

    @cached_property
    def passes(self) -> tuple[RowPass, ...]:
        return self.group.passes(self.kept)

    @property
    def computed(self) -> dict[Value, int]:
        """The number of passes that compute each value along the row, or read it from memory."""
        return self.group.computed(self.kept.keys())

    @property
    def reduced(self) -> tuple[Value, ...]:
        return self.group.reduced

    @property
    def tasks(self) -> int:
        return self.loops.tasks

    def cache_offset(self, value: Value) -> int:
        """Return the byte offset of a kept value's row in the workspace."""
        offset = 0
        for kept in (v for p in self.passes for v in p.cached):
            if kept is value:
                return offset
            offset += self.loops.cache_bytes(kept)
        raise KeyError(value.name)

    @property
    def scratch_bytes(self) -> int:
        return sum(self.loops.cache_bytes(v) for p in self.passes for v in p.cached)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel computes the rows as scheduled."""
        yield from self.loops.reasons()
        odd = sorted(set(self.schedule.kept) - set(self.group.places(self.kept)))
        if odd:
            yield f"node {odd[0]} of the group is not kept: it has not whole rows, or one pass only needs it"
