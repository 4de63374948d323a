"""Row-wise work after a GEMM in the same launch: bands of rows, and how the blocks that store a band share it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.plan.access.row_loops import REGISTER_ELEMENTS, RowLoops, row_loops
from tilestitch.passes.plan.parts import Roles
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.view import GroupView

WARP = 32
WARP_ROWS = 16
"""Rows that a warp has of every 64 rows of a wgmma tile, which form a band there."""


@dataclass(frozen=True)
class Band:
    """`rows` rows of a GEMM stored by `writers` writers: blocks, or `warps`, of `threads` threads. They share the band
    if possible, `share_rows` each.
    """

    rows: int
    writers: int
    threads: int
    share_rows: int
    warps: bool = False

    @property
    def shares(self) -> int:
        return ceil(self.rows / self.share_rows)

    @property
    def words(self) -> int:
        """Words in the launch's own memory: the count of arrived blocks, and the share of each, if there are
        several.
        """
        return 0 if self.writers == 1 else 1 if self.shares == 1 else 1 + self.shares


@dataclass(frozen=True)
class RowsAfter:
    """A row-wise group that reads what a GEMM stores; a row of the GEMM, `columns` long, contains whole rows of the
    group.

    made: the values that the GEMM stores, where that matters.
    """

    nodes: tuple[Node, ...]
    roles: Roles
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    columns: int
    made: tuple[Value, ...] = field(default=(), kw_only=True)

    @classmethod
    def of(cls, view: GroupView, columns: int, made: tuple[Value, ...] = ()) -> RowsAfter:
        """Return the view of a legal group without empty results."""
        roles = legal_roles(view)
        return cls(view.nodes, roles, view.inputs, view.outputs, columns, made=made)

    @property
    def values(self) -> tuple[Value, ...]:
        """The values that it reads and writes in memory."""
        return (*self.inputs, *self.outputs)

    @cached_property
    def walk(self) -> RowLoops:
        """The loops with one thread per row."""
        return row_loops(self.nodes, self.roles, self.inputs, self.outputs)

    @property
    def rows_each(self) -> int:
        """Rows per row of the GEMM."""
        return self.columns // prod(self.walk.line_extents)

    def work(self, threads: int) -> RowLoops:
        """Return how a block (or warp) of `threads` threads shares rows: as few threads per row as can keep it in
        registers, and all of them where more than a warp is needed: only a block with a single row may give it several
        warps.
        """
        vectors, length = self.walk.vectors, prod(self.walk.line_extents)
        team = min(WARP, threads, 1 << max(0, vectors - 1).bit_length())
        if team == WARP and team * REGISTER_ELEMENTS < length:
            team = threads
        return replace(self.walk, team=team, rows=threads // team)

    def band(self, rows: int, writers: int, threads: int, warps: bool = False) -> Band:
        """Return how the writers of a band share it: as evenly as whole iterations of their threads allow. An iteration
        of more rows than the band has leaves threads idle.
        """
        turn = max(1, self.work(threads).rows // self.rows_each)
        return Band(rows, writers, threads, min(rows, ceil(ceil(rows / writers) / turn) * turn), warps)
