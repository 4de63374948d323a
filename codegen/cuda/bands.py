"""Row-wise work behind a product, in its launch: the last block, or warp, that stores some of a band of rows computes
the whole band.

Nobody waits: whoever has stored its part of a band counts up the band's word (`ts_grid_last`), and the last one finds
what the others have stored in the L2 cache. The word wraps to 0, so that the launch can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, storage_bits
from tilestitch.codegen.groups import GroupView, roles_in
from tilestitch.codegen.launch import ValueArg
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.fusion.roles import Part, Roles
from tilestitch.passes.fusion.spread import REGISTER_ELEMENTS, WARP

from .abi import Parameter, barrier
from .injective import index_dtype
from .rows import RowEmitter, RowWork, walk_of
from .team import Team

HAND_OVER_CYCLES = 1200
"""From the last store of a band until the last block has read the first of it back: two trips to the L2 cache."""
ROW_CYCLES = 500
REDUCTION_CYCLES = 150
"""Of a row: reading it from the L2 cache and storing results; and of each reduction. Planning figures."""
L2_BYTES_PER_CYCLE = 48


@dataclass(frozen=True)
class RowsBehind:
    """A row-wise group that reads what a product stores; a row of the product, `columns` long, has whole rows of it."""

    nodes: tuple[Node, ...]
    roles: Roles
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    columns: int

    @staticmethod
    def of(view: GroupView, columns: int) -> RowsBehind:
        """All results of a legal group have elements."""
        return RowsBehind(view.nodes, roles_in(view), view.inputs, view.outputs, columns)

    @property
    def values(self) -> tuple[Value, ...]:
        """What it reads and writes in memory."""
        return (*self.inputs, *self.outputs)

    @cached_property
    def walk(self) -> RowWork:
        """The loops, for one thread a row."""
        return walk_of(self.nodes, self.roles, self.inputs, self.outputs)

    @property
    def rows_each(self) -> int:
        """Rows for each row of the product."""
        return self.columns // prod(self.walk.line_extents)

    def work(self, threads: int) -> RowWork:
        """How a block, or a warp, of so many threads shares rows: as few threads a row as can keep it in registers."""
        vectors, length = self.walk.vectors, prod(self.walk.line_extents)
        team = min(WARP, threads, 1 << max(0, vectors - 1).bit_length())
        while team >= WARP and team * REGISTER_ELEMENTS < length and threads % (2 * team) == 0:
            team *= 2
        return replace(self.walk, team=team, rows=threads // team)

    def cycles(self, rows: int, threads: int) -> float:
        """Estimated cycles of so many threads for the rows of as many rows of the product."""
        work = self.work(threads)
        reductions = sum(part is Part.REDUCTION for part in self.roles.parts.values())
        turns = ceil(rows * self.rows_each / work.rows)
        full = [v for v in self.values if v.tensor_type.num_elements >= work.row_count * prod(work.line_extents)]
        moved = rows * self.columns * sum(storage_bits(v.dtype) for v in full) / 8
        longer = ceil(work.steps * work.lanes / REGISTER_ELEMENTS)
        serial = turns * longer * (ROW_CYCLES + reductions * REDUCTION_CYCLES)
        return HAND_OVER_CYCLES + max(serial, moved / L2_BYTES_PER_CYCLE)

    def emit(
        self, buffers: Mapping[Value, Any], threads: int, lane: Expr, first: Expr, end: Expr, most: int, whole: bool
    ) -> None:
        """Compute what belongs to the rows `first` to `end` of the product, at most `most` of them.

        lane: this thread's number among `threads`, a block or a warp, which all come here. whole: bands always have
        `most` rows.
        """
        work, each = self.work(threads), self.rows_each
        dtype = index_dtype([Parameter(ValueArg(v.name), v.dtype, v.tensor_type.num_elements) for v in self.values])
        first, end = (T.bind(T.cast(e, dtype) * each) for e in (first, end))
        across = 0 if work.rows == 1 else T.bind(lane // work.team)
        along = 0 if work.team == 1 else lane if work.rows == 1 else T.bind(lane % work.team)
        exact = (whole and most * each % work.rows == 0) or work.rows == 1
        turns = most * each // work.rows if whole and exact else (end - first + (work.rows - 1)) // work.rows
        own = [buffers[v] for v in self.values]
        with T.serial(0, turns) as turn:
            place = T.bind(first + turn * work.rows + across)
            emitter = RowEmitter(work, self.nodes, self.roles, self.inputs, self.outputs, own, dtype)
            team = Team(work.team, work.rows, False, along, across)
            if exact:
                emitter.row(team, place, None)
            else:
                emitter.row(team, T.bind(T.min(place, end - 1)), place < end)
            if work.team > WARP:
                # The next turn writes the shared memory that slower threads may still read.
                barrier()


def last_of(counter: Any, count: int, function: str = "ts_grid_last") -> Expr:
    """Whether the block (or warp, by another function) is the last of `count` that come here with a counter."""
    return T.call_extern("int32", function, T.address_of(counter), count) != 0
