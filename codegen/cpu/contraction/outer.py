"""A matrix multiplication whose reduction is the outermost loop of a task, as in Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication" (2008): a block of its steps is applied to all tiles and panels, whose sums stay
in the workspace between blocks.

The parts of both operands for a block stay in the second-level cache. So a task can have rows of a long reduction that
would not fit there as a whole, and the right operand is read from memory once, not by task after task.
"""

from collections.abc import Callable

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.contraction import dots
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.gemm import GemmEmitter
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.compiler.ir.sizes import ceil_div


class OuterEmitter(GemmEmitter):
    """Emitter with further state: the present block of steps, ``[first_k, last_k)``, and the panels."""

    first_k: Expr = 0
    last_k: Expr = 0
    first_panel: Expr = 0
    last_panel: Expr = 0

    def _walk(self, first_panel: Expr, last_panel: Expr) -> None:
        plan, most = self.plan, self.schedule.k_block
        self.first_panel, self.last_panel = first_panel, last_panel
        with mk.serial(first_panel, last_panel) as panel:
            self._clear_sums(self._sums_of(panel), self._row_count)
        with mk.serial(0, ceil_div(plan.steps, most)) as block:
            self.first_k = T.bind(block * most)
            self.last_k = T.bind(T.min(self.first_k + most, plan.steps))
            if self.schedule.stage_left:
                self._stage_rows()
            self._for_each_panel(first_panel, last_panel, self._panel)
        self._for_each_panel(first_panel, last_panel, self._store_panel)

    def _stage_rows(self) -> None:
        """Copy these steps of the task's rows."""
        shape, staged_dtype = self.plan.shape, self.plan.staged_dtype

        def copy(row: Expr, step: Expr) -> None:
            value = self.load_a(self.batch, self.first_row + row, self.first_k + step)
            T.buffer_store(self.staged, dots.staged(value, shape.a_dtype, staged_dtype), [row, step])

        steps = self.schedule.k_block
        if shape.k % steps:
            steps = T.bind(self.last_k - self.first_k)
        if shape.left_runs == "m":
            with mk.serial(0, steps) as step, mk.serial(0, self._row_count) as row:
                copy(row, step)
            return
        with mk.serial(0, self._row_count) as row:
            mk.for_each_column(steps, self.plan.tile.lanes, lambda step: copy(row, step))

    def _panel(self, panel: Expr, width: Expr) -> None:
        def add(index: Expr, rows: int) -> None:
            acc, tile, row0 = self._multiply(panel, width, index, rows, self.first_k, self.last_k)
            self._add_to_sums(acc, tile, self._sums_of(panel) + (row0 - self.first_row))

        self._for_each_tile(add)

    def _store_panel(self, panel: Expr, width: Expr) -> None:
        first = self._sums_of(panel)
        with mk.serial(0, self._row_count) as row:
            self._store_row(panel, width, self.first_row + row, first + row)

    def _sums_of(self, panel: Expr) -> Expr:
        """Return the workspace row where a panel's sums begin."""
        return (panel - self.first_panel) * self.plan.block_rows

    def _left(self, row0: Expr) -> Callable[[Expr, Expr], Expr]:
        if not self.schedule.stage_left:
            return super()._left(row0)
        local, first = row0 - self.first_row, self.first_k
        return lambda row, k: self.staged[local + row, k - first]

    def _ask_for_next(self, operand: Expr, panel: Expr, index: Expr, k: Expr) -> None:
        """Prefetch the same steps of the next panel, or, after the last one, the next steps of the first."""
        steps = self.schedule.k_block
        after = mk.as_index(panel) + 1
        last = after >= self.last_panel
        following = T.Select(last, mk.as_index(self.first_panel), after)
        first = T.Select(last, self.first_k + steps, self.first_k)
        self.panels.prefetch_piece(operand, following, first, index, self.piece, steps, k - self.first_k)
