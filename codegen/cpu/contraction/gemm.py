"""Matrix multiplication with register tiles: ``result[b, m, n] = sum over k of left(b, m, k) * right(b, k, n)``.

``emit_gemm`` emits the TIR of one task, as scheduled, inside an open IRBuilder. See docs/cpu_kernels.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import storage_dtype, widen
from tilestitch.codegen.cpu.contraction import dots, panels, words
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.panels import LoadedOperand, Operand
from tilestitch.codegen.cpu.contraction.registers import empty_registers
from tilestitch.compiler.ir.sizes import ceil_div, is_open
from tilestitch.passes.plan.cpu.gemm import GemmPlan
from tilestitch.passes.plan.cpu.tiling import RegisterTile

Load = Callable[[Expr, Expr, Expr], Expr]
"""``load(batch, m, k)`` gives one element of the left operand in its compute dtype; k may be a lane of a vector."""

Epilogue = Callable[..., None]
"""``epilogue(batch, m, n, *values)`` emits the store of one result; there is one value per gate (without gates, one).

``n`` may be a lane of a vectorised loop.
"""


@dataclass(frozen=True)
class Window:
    """A part of a GEMM: its columns and its reduction steps, each from a first one to an end.

    Whole panels of columns are computed wherever they overlap it.
    """

    columns: tuple[Expr, Expr]
    steps: tuple[Expr, Expr]


def emit_gemm(
    plan: GemmPlan, load_a: Load, b: Operand, epilogue: Epilogue, task: Expr, scratch: Expr,
    window: Window | None = None, emitter: type[GemmEmitter] | None = None,
) -> None:  # fmt: skip
    """Emit the body of one task, or its part in a window.

    ``scratch`` is the workspace handle, at least ``plan.scratch_bytes`` long.
    """
    whole = Window((0, plan.shape.n), (0, plan.steps))
    with dots.imported(plan.dot):
        (emitter or GemmEmitter)(plan, load_a, b, epilogue, scratch, window or whole).run(task)


class GemmEmitter:
    """State shared by the pieces of one kernel: the plan, the callbacks and the workspace buffers."""

    def __init__(
        self, plan: GemmPlan, load_a: Load, b: Operand, epilogue: Epilogue, scratch: Expr, window: Window
    ) -> None:  # fmt: skip
        self.plan, self.load_a, self.epilogue, self.window = plan, load_a, epilogue, window
        self.schedule = plan.schedule
        shape, tile = plan.shape, plan.tile
        if plan.schedule.stage_left:
            staged_shape = (plan.block_rows * plan.planes, plan.staged_stride)
            self.staged = mk.scratch_buffer(scratch, 0, staged_shape, storage_dtype(plan.staged_dtype), "staged")
        panel = None
        if plan.panel_bytes and plan.dot is not None:
            _, _, *sizes = plan.packing().shape
            panel = mk.scratch_buffer(scratch, plan.staged_bytes, tuple(sizes), storage_dtype(shape.b_dtype), "panel")
        elif plan.panel_bytes:
            panel = panels.workspace(scratch, plan.staged_bytes, shape.k, tile.columns, shape.b_dtype)
        self.panels = self._panels(b, panel)
        if plan.sums_rows:
            offset = plan.staged_bytes + plan.panel_bytes
            self.sums = mk.scratch_buffer(scratch, offset, (plan.sums_rows, tile.columns), shape.acc_dtype, "sums")

    def _panels(self, b: Operand, panel: Any) -> panels.Panels:
        plan, shape = self.plan, self.plan.shape
        return panels.Panels(b, plan.steps, plan.tile, shape.b_dtype, shape.acc_dtype, panel, plan.neighbours)

    def run(self, task: Expr) -> None:
        plan = self.plan
        task = T.bind(T.cast(task, "int64"))
        m_block = task % plan.m_blocks
        n_block = (task // plan.m_blocks) % plan.n_blocks
        self.batch = T.bind(task // (plan.m_blocks * plan.n_blocks))
        self.first_tile = T.bind(m_block * self.schedule.block_tiles)
        self.last_tile = T.bind(T.min(self.first_tile + self.schedule.block_tiles, plan.rows.parts))
        self.first_row = T.bind(mk.start_of(plan.rows, self.first_tile))
        first_panel = T.bind(n_block * self.schedule.block_panels)
        end = plan.panels if plan.takes_all_panels else T.min(first_panel + self.schedule.block_panels, plan.panels)
        last_panel = T.bind(end)
        first, last = self.window.columns
        if (first, last) != (0, plan.shape.n):
            first_panel = T.bind(T.max(first_panel, first // plan.tile.columns))
            last_panel = T.bind(T.min(last_panel, (last + (plan.tile.columns - 1)) // plan.tile.columns))
        if self.schedule.prefetch_next:
            self.piece = self._piece()
        self._walk(first_panel, last_panel)

    def _piece(self) -> Expr:
        """Return the elements of a step of the next panel that each row tile prefetches."""
        parts = self.plan.rows.parts
        if is_open(parts):
            return T.bind(self.panels.piece_of(self.last_tile - self.first_tile))
        return self.panels.piece_of(min(self.schedule.block_tiles, parts))

    def _walk(self, first_panel: Expr, last_panel: Expr) -> None:
        """Multiply all row tiles of the task by these panels."""
        if self.schedule.stage_left:
            self._stage_rows()
        if self.schedule.rows_outer:
            self._for_each_tile(
                lambda tile, rows: self._for_each_panel(
                    first_panel, last_panel, lambda panel, width: self._tile(panel, width, tile, rows)
                )
            )
            return
        self._for_each_panel(first_panel, last_panel, self._panel)

    def _for_each_tile(self, body: Callable[[Expr, int], None]) -> None:
        mk.for_each_part(self.plan.rows, self.first_tile, self.last_tile, body)

    def _for_each_panel(self, first: Expr, last: Expr, body: Callable[[Expr, Expr], None]) -> None:
        panels.for_each_panel(self.plan.shape.n, self.plan.tile.columns, first, last, body)

    def _stage_rows(self) -> None:
        plan, shape = self.plan, self.plan.shape
        count = self._row_count

        def copy(row: Expr, k: Expr) -> None:
            value = self.load_a(self.batch, self.first_row + row, k)
            T.buffer_store(self.staged, dots.staged(value, shape.a_dtype, plan.staged_dtype), [row, k])

        if shape.left_runs == "m":
            with mk.serial(0, shape.k) as k, mk.serial(0, count) as row:
                copy(row, k)
        else:
            with mk.serial(0, count) as row:
                mk.for_each_column(shape.k, plan.tile.lanes, lambda k: copy(row, k))
        if plan.staged_steps != shape.k:
            zero = mk.constant(0, storage_dtype(plan.staged_dtype))
            with mk.serial(0, count) as row, mk.serial(shape.k, plan.staged_steps) as k:
                T.buffer_store(self.staged, zero, [row, k])

    def _panel(self, panel: Expr, width: Expr) -> None:
        """Multiply all row tiles of the block by one panel, of which ``width`` columns exist."""
        plan = self.plan
        self._prepare(panel, width)
        if not plan.splits_k:
            self._for_each_tile(lambda tile, rows: self._tile(panel, width, tile, rows))
            return
        self._clear_sums(0, plan.block_rows)
        with mk.serial(0, -(-plan.steps // self.schedule.k_block)) as block:
            self._for_each_tile(lambda tile, rows: self._partial_tile(panel, width, tile, rows, block))
        with mk.serial(0, self._row_count) as row:
            self._store_row(panel, width, self.first_row + row, row)

    @property
    def _row_count(self) -> Expr:
        """Rows of the task."""
        return mk.start_of(self.plan.rows, self.last_tile) - self.first_row

    def _clear_sums(self, first: Expr, rows: Expr) -> None:
        zero = mk.constant(0, self.plan.shape.acc_dtype)
        columns, lanes = self.plan.tile.columns, self.plan.tile.lanes
        with mk.serial(0, rows) as row:
            mk.for_each_column(columns, lanes, lambda column: T.buffer_store(self.sums, zero, [first + row, column]))

    def _prepare(self, panel: Expr, width: Expr) -> None:
        """Bring a panel into the workspace, if it is packed or widened there."""
        plan, read = self.plan, self.panels
        if plan.dot is None or not isinstance(read.operand, LoadedOperand):
            read.prepare(self.batch, panel, width, self.window.steps)
            return
        k = plan.shape.k
        words.pack_panel(
            read.operand, plan.dot, (self.batch, panel), k, width, plan.tile, (0, ceil_div(k, plan.neighbours)),
            lambda step, place, value: T.buffer_store(read.workspace, value, [step, place]), plan.steps,
        )  # fmt: skip

    def _left(self, row0: Expr) -> Callable[[Expr, Expr], Expr]:
        """Return ``left(row of the tile, k)`` for the tile whose first row is ``row0``; k may be a ramp."""
        shape, dot = self.plan.shape, self.plan.dot
        if self.schedule.stage_left:
            local = row0 - self.first_row
            return lambda row, k: self.staged[local + row, k]
        if dot is not None:
            return lambda row, k: dots.group_of(dot, k, lambda at: self.load_a(self.batch, row0 + row, at))
        return lambda row, k: widen(self.load_a(self.batch, row0 + row, k), shape.a_dtype, shape.acc_dtype)

    def _multiply(
        self, panel: Expr, width: Expr, index: Expr, rows: int, first_k: Expr, last_k: Expr, gate: Expr | None = None
    ) -> tuple[Any, RegisterTile, Expr]:
        """Return the accumulators of one tile after the reduction over [first_k, last_k), their shape and first row."""
        plan = self.plan
        operand = self.batch if gate is None else gate
        row0 = T.bind(mk.start_of(plan.rows, index))
        vectors = -(-width // plan.tile.lanes) if mk.is_number(width) else plan.tile.vectors
        tile = RegisterTile(rows, vectors, plan.tile.lanes)
        chains = mk.chains(plan.rows, tile) if plan.dot is None else 1
        if chains > 1:
            return self._multiply_in_chains(chains, tile, operand, panel, row0, first_k, last_k), tile, row0
        acc = mk.allocate(tile, plan.shape.acc_dtype)
        mk.fill(acc, tile, mk.constant(0, plan.shape.acc_dtype))
        left = self._left(row0)
        if plan.shape.k:
            with mk.serial(first_k, last_k) as k:
                if self.schedule.prefetch_ahead:
                    self.panels.prefetch_ahead(operand, panel, k, plan.ahead_bytes)
                if self.schedule.prefetch_next:
                    self._ask_for_next(operand, panel, mk.number_of(index) - self.first_tile, k)
                self._step(acc, tile, left, operand, panel, k)
        return acc, tile, row0

    def _ask_for_next(self, operand: Expr, panel: Expr, index: Expr, k: Expr) -> None:
        """In step k of tile ``index`` of the task, prefetch a piece of what is read after this panel."""
        self.panels.prefetch_next(operand, panel, index, self.piece, k)

    def _multiply_in_chains(
        self, chains: int, tile: RegisterTile, operand: Expr, panel: Expr, row0: Expr, first_k: Expr, last_k: Expr
    ) -> Any:
        """Return the accumulators of a low tile: several per result take turns, to hide the latency of
        multiply-adds.
        """
        wide = RegisterTile(tile.rows * chains, tile.vectors, tile.lanes)
        acc = mk.allocate(wide, self.plan.shape.acc_dtype)
        mk.fill(acc, wide, mk.constant(0, self.plan.shape.acc_dtype))
        left = self._left(row0)

        def step(k: Expr, chain: int) -> None:
            mk.multiply_add(
                acc,
                wide,
                lambda row: left(row - chain * tile.rows, k),
                lambda column: self.panels.at(operand, panel, k, column),
                range(chain * tile.rows, (chain + 1) * tile.rows),
            )

        first = T.bind(mk.as_index(first_k))
        groups = T.bind((mk.as_index(last_k) - first) // chains)
        with mk.serial(0, groups) as group:
            start = T.bind(first + group * chains)
            if self.schedule.prefetch_ahead:
                self.panels.prefetch_ahead(operand, panel, start, self.plan.ahead_bytes)
            for chain in range(chains):
                step(start + chain, chain)
        with mk.serial(first + groups * chains, last_k) as k:
            step(k, 0)
        for chain in range(1, chains):
            mk.for_each_vector(
                tile,
                lambda row, column, below=chain * tile.rows: T.buffer_store(  # type: ignore[misc]
                    acc, acc[row, column] + acc[below + row, column], [row, column]
                ),
            )
        return acc

    def _step(
        self, acc: Any, tile: RegisterTile, left: Callable[[Expr, Expr], Expr], operand: Expr, panel: Expr, k: Expr
    ) -> None:
        dot = self.plan.dot
        if dot is None:
            mk.multiply_add(
                acc, tile, lambda row: left(row, k), lambda column: self.panels.at(operand, panel, k, column)
            )
            return
        group = T.ramp(k * dot.group, T.int64(1), dot.group)
        dots.dot_add(
            acc, tile, dot, lambda row: left(row, group),
            lambda column: self.panels.neighbours_at(operand, panel, k, column, tile.lanes),
        )  # fmt: skip

    def _tile(self, panel: Expr, width: Expr, index: Expr, rows: int) -> None:
        """Emit one register tile: multiply, then epilogue."""
        plan = self.plan
        if plan.shape.gates > 1:
            self._gated_tile(panel, width, index, rows)
            return
        acc, tile, row0 = self._multiply(panel, width, index, rows, *self.window.steps)
        first = panel * plan.tile.columns
        if not self.schedule.spill and mk.is_number(width):
            mk.finish(
                acc, rows, width, tile.lanes,
                lambda row, column, value: self.epilogue(self.batch, row0 + row, first + column, value),
            )  # fmt: skip
            return
        mk.for_each_vector(tile, lambda row, column: T.buffer_store(self.sums, acc[row, column], [row, column]))
        empty_registers()
        self._store_tile(panel, width, row0, rows)

    def _gated_tile(self, panel: Expr, width: Expr, index: Expr, rows: int) -> None:
        """Emit the same tile of every gate's GEMM, stacked in the workspace; then the epilogue."""
        plan = self.plan
        with mk.serial(0, plan.shape.gates) as gate:
            acc, tile, _ = self._multiply(panel, width, index, rows, 0, plan.steps, gate)
            first = gate * plan.tile_rows
            mk.for_each_vector(
                tile, lambda row, column: T.buffer_store(self.sums, acc[row, column], [first + row, column])
            )
        row0 = T.bind(mk.start_of(plan.rows, index))
        self._store_tile(panel, width, row0, rows)

    def _partial_tile(self, panel: Expr, width: Expr, index: Expr, rows: int, block: Expr) -> None:
        """Emit one register tile over one block of the reduction, added to the sums in the workspace."""
        first, last = T.bind(block * self.schedule.k_block), self.window.steps[1]
        begin = T.max(first, self.window.steps[0])
        acc, tile, row0 = self._multiply(panel, width, index, rows, begin, T.min(first + self.schedule.k_block, last))
        self._add_to_sums(acc, tile, row0 - self.first_row)

    def _add_to_sums(self, acc: Any, tile: RegisterTile, first: Expr) -> None:
        """Add accumulators to sums in the workspace, from its row ``first`` on."""

        def add(row: Expr, column: Expr) -> None:
            where = [first + row, column]
            T.buffer_store(self.sums, self.sums[first + row, column] + acc[row, column], where)

        mk.for_each_vector(tile, add)

    def _store_tile(self, panel: Expr, width: Expr, row0: Expr, rows: int) -> None:
        """Emit the epilogue of a tile with sums in the workspace: one loop over its vectors, less deep than the
        reduction.

        In a loop as deep as that, LLVM ranks the constants of a cell's exponentials with the accumulators, and spills
        the latter: GEMMs of 2 to 8 rows with gates were 2 to 6 times slower.
        """
        lanes = self.plan.tile.lanes
        if not mk.is_number(width):
            with mk.serial(0, rows) as row:
                mk.for_each_column(width, lanes, lambda column: self._store(panel, row0 + row, row, column))
            return
        whole = width // lanes
        if whole:
            with mk.serial(0, rows * whole) as step:
                row, column = T.bind(step // whole), T.bind(step % whole * lanes)
                mk.vector(lanes, lambda lane: self._store(panel, row0 + row, row, column + lane))
        if width % lanes:
            with mk.serial(0, rows) as row:
                mk.for_each_column(
                    width % lanes, lanes, lambda rest: self._store(panel, row0 + row, row, whole * lanes + rest)
                )

    def _store_row(self, panel: Expr, width: Expr, row: Expr, local: Expr) -> None:
        """Emit the epilogue of one row with sums in the workspace."""
        mk.for_each_column(width, self.plan.tile.lanes, lambda column: self._store(panel, row, local, column))

    def _store(self, panel: Expr, row: Expr, local: Expr, column: Expr) -> None:
        gates, stride = self.plan.shape.gates, self.plan.tile_rows
        sums = (self.sums[local + gate * stride, column] for gate in range(gates))
        self.epilogue(self.batch, row, panel * self.plan.tile.columns + column, *sums)
