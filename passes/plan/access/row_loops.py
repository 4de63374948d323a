"""The loops of a row-wise kernel on a GPU: merged dimensions, and how threads are laid out over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.accesses import merge, walk_of
from tilestitch.compiler.ir.indexing import reshape_index
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.access.vectors import lanes_of
from tilestitch.passes.plan.parts import Part, Roles
from tilestitch.passes.plan.schedules import OpenRowSchedule, RowSchedule

REGISTER_ELEMENTS = 32
"""Elements of a row that a thread keeps in registers."""


@dataclass(frozen=True)
class RowLoops:
    """`extents`: dimensions of the iteration shape, some merged; `reduced` says which are reduced.

    Each thread walks `steps` vectors of `lanes` elements; `team` threads of each of `parts` blocks share a row, `rows`
    rows a block. `columns`: the last dimension is kept, and the threads of a warp compute neighbouring rows.
    """

    shape: tuple[int, ...]
    extents: tuple[int, ...]
    reduced: tuple[bool, ...]
    lanes: int
    team: int
    rows: int
    parts: int = 1

    @property
    def columns(self) -> bool:
        return not self.reduced[-1]

    @property
    def row_extents(self) -> tuple[int, ...]:
        return tuple(e for e, r in zip(self.extents, self.reduced, strict=True) if not r)

    @property
    def line_extents(self) -> tuple[int, ...]:
        return tuple(e for e, r in zip(self.extents, self.reduced, strict=True) if r)

    @property
    def vectors(self) -> int:
        """Vectors of a row."""
        return prod(self.line_extents) // self.lanes

    @property
    def walkers(self) -> int:
        """Threads that share a row, over all blocks."""
        return self.team * self.parts

    @property
    def steps(self) -> int:
        return -(-self.vectors // self.walkers)

    @property
    def unrolled(self) -> bool:
        return not is_open(self.steps) and self.steps * self.lanes <= REGISTER_ELEMENTS

    @property
    def row_count(self) -> int:
        return prod(self.row_extents)

    @property
    def row_blocks(self) -> int:
        return -(-self.row_count // self.rows)

    @property
    def blocks(self) -> int:
        return self.row_blocks * self.parts

    @property
    def block(self) -> tuple[int, int, int]:
        return (self.rows, self.team, 1) if self.columns else (self.team, self.rows, 1)

    def scheduled(self, schedule: RowSchedule) -> RowLoops:
        """These loops with the threads of a schedule."""
        return replace(
            self, lanes=schedule.lanes, team=schedule.team, rows=schedule.rows, parts=schedule.blocks_per_row
        )

    @property
    def schedule(self) -> RowSchedule:
        return RowSchedule(self.lanes, self.team, self.rows, self.parts)


def row_loops(nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value]) -> RowLoops:
    """Return the loops of a row-wise kernel with one thread per row and the widest vectors."""
    assert roles.rows is not None
    shape, axes = roles.rows.shape, roles.rows.axes
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    extents, reduced = [shape[d] for d in dims] or [1], [d in axes for d in dims] or [True]
    views, stored = roles.viewed, full_outputs(roles, outputs)
    reductions = [n for n, p in roles.parts.items() if p is Part.REDUCTION]
    walked = [*(n.inputs[0] for n in reductions), *(views.get(v, v) for v in stored)]
    if prod(shape):
        known = [*inputs, *(v for n in reductions for v in n.outputs)]
        walk = walk_of(walked, known, extents, lambda i: [reshape_index(i, extents, v.shape) for v in walked])
        extents, reduced = merge(extents, reduced, walk.accesses)
    length = prod(e for e, r in zip(extents, reduced, strict=True) if r)
    lanes = lanes_of([v for v in (*inputs, *stored) if v.tensor_type.num_elements >= length]) if reduced[-1] else 1
    while extents[-1] % lanes:
        lanes //= 2
    return RowLoops(shape, tuple(extents), tuple(reduced), lanes, 1, 1)


def scheduled_loops(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], schedule: RowSchedule
) -> RowLoops:
    """Return the loops of a row-wise kernel as its schedule prescribes."""
    if not isinstance(schedule, OpenRowSchedule):
        return row_loops(nodes, roles, inputs, outputs).scheduled(schedule)
    assert roles.rows is not None
    return RowLoops(roles.rows.shape, schedule.extents, schedule.reduced, 1, 1, 1).scheduled(schedule)


def full_outputs(roles: Roles, outputs: Sequence[Value]) -> list[Value]:
    """Return the outputs that have all elements of the rows."""
    return [v for v in outputs if v.producer is not None and roles.parts[v.producer] in (Part.FULL, Part.VIEW)]
