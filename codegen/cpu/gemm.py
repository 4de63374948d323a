"""Matrix multiplication with register tiles: ``result[b, m, n] = sum over k of left(b, m, k) * right(b, k, n)``.

``plan_gemm`` decides tiles, tasks and workspace as plain data; ``emit_gemm`` writes the TIR of one task inside an open
IRBuilder. The right operand is read as panels ``[K, tile.columns]``: packed at compile time when it is constant, else
packed by each task into its workspace. See docs/cpu_kernels.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import compute_dtype
from tilestitch.codegen.cpu import microkernel as mk
from tilestitch.codegen.cpu import panels
from tilestitch.codegen.cpu.isa import Isa, dtype_bytes
from tilestitch.codegen.cpu.microkernel import Expr, RegisterTile, Split
from tilestitch.codegen.cpu.panels import Operand, Packing
from tilestitch.codegen.cpu.tasks import choose_blocks

AHEAD_BYTES = 8192
"""How far ahead of a stream that is read once its lines are asked for (measured: 4 to 16 KiB are alike)."""

Load = Callable[[Expr, Expr, Expr], Expr]
"""``load(batch, m, k)`` gives one element of the left operand in its compute dtype; k may be a lane of a vector."""

Epilogue = Callable[..., None]
"""``epilogue(batch, m, n, *values)`` emits the store of one result; there is one value a gate (without gates, one).

``n`` may be a lane of a vectorised loop.
"""


@dataclass(frozen=True)
class GemmShape:
    """``batch`` products of [m, k] by [k, n]; elements are widened to ``acc_dtype``, in which the sum is kept.

    ``acc_dtype`` is float32 for half floats and int32 for small integers. ``gates``: so many constant right operands
    [k, n] lie side by side as packing groups, and the epilogue gets element (m, n) of all products together.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a_dtype: str = "float32"
    b_dtype: str = "float32"
    acc_dtype: str = "float32"
    gates: int = 1

    @property
    def right_bytes(self) -> int:
        return self.gates * self.k * self.n * dtype_bytes(self.b_dtype)


@dataclass(frozen=True)
class GemmPlan:
    """All decisions about one matrix multiplication.

    A task computes ``block_tiles`` register tiles of rows by ``block_panels`` panels of columns of one batch element.
    ``k_block`` < k splits the reduction, the sums waiting in the workspace. ``stage_a``: the rows are first copied
    into the workspace (prologue evaluated once, converted). ``pack_b``: panels are packed by the task. ``widen_b``: the
    task converts packed panels of half floats.
    ``spill``: results go through the workspace before the epilogue (smaller code for long epilogues).
    ``rows_outer``: the task walks row tile by row tile (results leave in long runs, for a right operand that stays in
    cache), otherwise panel by panel (each panel is read from memory once, the next one being prefetched).
    ``streams_once``: each panel is read by a single register tile, from beyond the second-level cache.
    """

    shape: GemmShape
    tile: RegisterTile
    rows: Split
    block_tiles: int
    block_panels: int
    k_block: int
    stage_a: bool
    pack_b: bool
    widen_b: bool
    spill: bool
    rows_outer: bool
    streams_once: bool
    a_contiguous: str

    @property
    def panels(self) -> int:
        return -(-self.shape.n // self.tile.columns)

    @property
    def m_blocks(self) -> int:
        return -(-self.rows.parts // self.block_tiles)

    @property
    def n_blocks(self) -> int:
        return -(-self.panels // self.block_panels)

    @property
    def tasks(self) -> int:
        return self.shape.batch * self.m_blocks * self.n_blocks

    @property
    def block_rows(self) -> int:
        """Most rows of one task."""
        return min(self.shape.m, self.block_tiles * self.rows.largest)

    @property
    def staged_stride(self) -> int:
        """Elements between staged rows: an odd number of cache lines, so that rows meet no set conflict."""
        lanes = 64 // dtype_bytes(self.shape.acc_dtype)
        lines = -(-self.shape.k // lanes)
        return (lines + 1 - lines % 2) * lanes

    @property
    def staged_bytes(self) -> int:
        size = self.block_rows * self.staged_stride * dtype_bytes(self.shape.acc_dtype)
        return mk.align(size) if self.stage_a else 0

    @property
    def panel_bytes(self) -> int:
        kept = self.pack_b or self.widen_b
        return panels.panel_bytes(self.shape.k, self.tile.columns, self.shape.b_dtype) if kept else 0

    @property
    def prefetches(self) -> bool:
        streams = not self.pack_b and not self.rows_outer
        return streams and self.panels > 1 and self.block_tiles >= self.tile.vectors

    @property
    def sums_rows(self) -> int:
        """Rows of partial sums that wait in the workspace: the whole block when the reduction is split."""
        if self.k_block < self.shape.k:
            return self.block_rows
        return self.shape.gates * self.rows.largest if self.spill else 0

    @property
    def scratch_bytes(self) -> int:
        sums = self.sums_rows * self.tile.columns * dtype_bytes(self.shape.acc_dtype)
        return self.staged_bytes + self.panel_bytes + mk.align(sums)

    def packing(self, groups: int = 1) -> Packing:
        """Layout of a constant right operand for this plan."""
        return Packing(groups, self.shape.k, self.shape.n, self.tile.columns, self.shape.b_dtype)


def plan_gemm(
    shape: GemmShape,
    isa: Isa,
    *,
    threads: int = 4,
    b_packed: bool = True,
    a_plain: bool = True,
    a_contiguous: str = "k",
    long_epilogue: bool = False,
) -> GemmPlan:
    """Chooses tiles and tasks.

    ``b_packed``: the right operand is a constant in ``plan.packing()`` layout, otherwise each task packs it.
    ``a_plain``: ``load_a`` is just a load; False for a prologue that should be evaluated once per element.
    ``a_contiguous``: the index ("m" or "k") that runs along memory in the left operand.

    Raises ValueError for an empty result (m, n or batch is 0): such a kernel has nothing to launch.
    """
    if shape.gates > 1 and (shape.batch > 1 or not b_packed):
        raise ValueError(f"gates of {shape} need one packed right operand; leave the slices out of the kernel")
    if min(shape.m, shape.n, shape.batch) < 1 or shape.k < 0:
        raise ValueError(f"matrix product of an empty shape {shape}; skip the launch")
    tile, rows = mk.choose_tile(shape.m, shape.n, isa.lanes(shape.acc_dtype), isa)
    stage_a = shape.a_dtype != shape.acc_dtype or a_contiguous == "m" or not a_plain
    k_block = _reduction_block(shape, tile, rows, isa)
    block_tiles, block_panels = _blocks(shape, tile, rows, isa, threads, stage_a, not b_packed)
    widen_b = b_packed and shape.gates == 1 and panels.widens(shape.b_dtype, block_tiles)
    near = b_packed and k_block == shape.k and shape.right_bytes <= isa.l2_bytes // 4
    streams_once = b_packed and rows.parts == 1 and shape.right_bytes > isa.l2_bytes // 2
    rows_outer = near and rows.parts >= 8 and not widen_b
    return GemmPlan(
        shape, tile, rows, block_tiles, block_panels, k_block, stage_a, not b_packed, widen_b,
        long_epilogue or shape.gates > 1, rows_outer, streams_once, a_contiguous,
    )  # fmt: skip


def _reduction_block(shape: GemmShape, tile: RegisterTile, rows: Split, isa: Isa) -> int:
    """Reduction steps per pass: all of them unless a panel would not stay in half of the second-level cache."""
    step_bytes = tile.columns * dtype_bytes(compute_dtype(shape.b_dtype))
    limit = isa.l2_bytes // 2
    if rows.parts == 1 or shape.k * step_bytes <= limit or shape.gates > 1:
        return shape.k
    return mk.split_at_most(shape.k, limit // step_bytes).largest


def _blocks(
    shape: GemmShape, tile: RegisterTile, rows: Split, isa: Isa, threads: int, stage_a: bool, pack_b: bool
) -> tuple[int, int]:
    """Row tiles and panels of one task.

    The rows of a block stay in half of the second-level cache while the panels stream by; every task reads its panels
    and rows from further away once.
    """
    tile_cycles = mk.step_cycles(rows.largest, tile.vectors, isa) * max(1, shape.k)
    row_elements = rows.largest * max(1, shape.k)
    row_bytes = row_elements * dtype_bytes(shape.acc_dtype if stage_a else shape.a_dtype)
    panel_elements = tile.columns * max(1, shape.k)
    stage_cycles = row_elements * (0.5 if stage_a else 0.1)
    near = shape.right_bytes <= isa.l2_bytes // 4
    panel_cycles = panel_elements * (0.5 if pack_b else 0.03 if near else 0.12)

    def cycles(tiles: int, panels: int) -> float | None:
        if tiles > 1 and tiles * row_bytes > isa.l2_bytes // 2:
            return None
        return shape.gates * panels * (tiles * tile_cycles + panel_cycles) + tiles * stage_cycles

    return choose_blocks(rows.parts, -(-shape.n // tile.columns), shape.batch, threads, cycles)


@dataclass(frozen=True)
class Window:
    """A part of a product: its columns and its steps of the reduction, each from a first one to behind the last.

    Whole panels of columns are computed, as far as they overlap.
    """

    columns: tuple[Expr, Expr]
    steps: tuple[Expr, Expr]


def emit_gemm(
    plan: GemmPlan, load_a: Load, b: Operand, epilogue: Epilogue, task: Expr, scratch: Expr,
    window: Window | None = None,
) -> None:  # fmt: skip
    """Emits the body of one task, or of what of it lies in a window.

    ``scratch`` is the workspace handle, at least ``plan.scratch_bytes`` long.
    """
    shape = plan.shape
    _Emitter(plan, load_a, b, epilogue, scratch, window or Window((0, shape.n), (0, shape.k))).run(task)


class _Emitter:
    """State shared by the pieces of one kernel: the plan, the callbacks and the workspace buffers."""

    def __init__(
        self, plan: GemmPlan, load_a: Load, b: Operand, epilogue: Epilogue, scratch: Expr, window: Window
    ) -> None:  # fmt: skip
        self.plan, self.load_a, self.epilogue, self.window = plan, load_a, epilogue, window
        shape, tile = plan.shape, plan.tile
        if plan.stage_a:
            staged_shape = (plan.block_rows, plan.staged_stride)
            self.staged = mk.scratch_buffer(scratch, 0, staged_shape, shape.acc_dtype, "staged")
        panel = None
        if plan.panel_bytes:
            panel = panels.workspace(scratch, plan.staged_bytes, shape.k, tile.columns, shape.b_dtype)
        self.panels = panels.Panels(b, shape.k, tile, shape.b_dtype, shape.acc_dtype, panel)
        if plan.sums_rows:
            offset = plan.staged_bytes + plan.panel_bytes
            self.sums = mk.scratch_buffer(scratch, offset, (plan.sums_rows, tile.columns), shape.acc_dtype, "sums")

    def run(self, task: Expr) -> None:
        plan = self.plan
        task = T.bind(T.cast(task, "int64"))
        m_block = task % plan.m_blocks
        n_block = (task // plan.m_blocks) % plan.n_blocks
        self.batch = T.bind(task // (plan.m_blocks * plan.n_blocks))
        self.first_tile = T.bind(m_block * plan.block_tiles)
        self.last_tile = T.bind(T.min(self.first_tile + plan.block_tiles, plan.rows.parts))
        self.first_row = T.bind(plan.rows.start(self.first_tile))
        first_panel = T.bind(n_block * plan.block_panels)
        last_panel = T.bind(T.min(first_panel + plan.block_panels, plan.panels))
        first, last = self.window.columns
        if (first, last) != (0, plan.shape.n):
            first_panel = T.bind(T.max(first_panel, first // plan.tile.columns))
            last_panel = T.bind(T.min(last_panel, (last + (plan.tile.columns - 1)) // plan.tile.columns))
        if plan.stage_a:
            self._stage_rows()
        if plan.rows_outer:
            self._for_each_tile(
                lambda tile, rows: self._for_each_panel(
                    first_panel, last_panel, lambda panel, width: self._tile(panel, width, tile, rows)
                )
            )
            return
        self._for_each_panel(first_panel, last_panel, self._panel)

    def _for_each_tile(self, body: Callable[[Expr, int], None]) -> None:
        mk.for_each_part(self.plan.rows, self.first_tile, self.last_tile, body)

    def _for_each_panel(self, first: Expr, last: Expr, body: Callable[[Expr, int], None]) -> None:
        panels.for_each_panel(self.plan.shape.n, self.plan.tile.columns, first, last, body)

    def _stage_rows(self) -> None:
        plan, shape = self.plan, self.plan.shape
        count = plan.rows.start(self.last_tile) - self.first_row

        def copy(row: Expr, k: Expr) -> None:
            value = self.load_a(self.batch, self.first_row + row, k)
            T.buffer_store(self.staged, mk.widen(value, shape.a_dtype, shape.acc_dtype), [row, k])

        if plan.a_contiguous == "m":
            with mk.serial(0, shape.k) as k, mk.serial(0, count) as row:
                copy(row, k)
            return
        with mk.serial(0, count) as row:
            mk.for_each_column(shape.k, plan.tile.lanes, lambda k: copy(row, k))

    def _panel(self, panel: Expr, width: int) -> None:
        """All row tiles of the block by one panel, of which ``width`` columns exist."""
        plan = self.plan
        self.panels.prepare(self.batch, panel, width, self.window.steps)
        if plan.k_block == plan.shape.k:
            self._for_each_tile(lambda tile, rows: self._tile(panel, width, tile, rows))
            return
        zero = mk.constant(0, plan.shape.acc_dtype)
        columns, lanes = plan.tile.columns, plan.tile.lanes
        with mk.serial(0, plan.block_rows) as row:
            mk.for_each_column(columns, lanes, lambda column: T.buffer_store(self.sums, zero, [row, column]))
        with mk.serial(0, -(-plan.shape.k // plan.k_block)) as block:
            self._for_each_tile(lambda tile, rows: self._partial_tile(panel, width, tile, rows, block))
        with mk.serial(0, plan.rows.start(self.last_tile) - self.first_row) as row:
            self._store_row(panel, width, self.first_row + row, row)

    def _left(self, row0: Expr) -> Callable[[Expr, Expr], Expr]:
        """``left(row of the tile, k)`` for the tile whose first row is ``row0``."""
        shape = self.plan.shape
        if self.plan.stage_a:
            local = row0 - self.first_row
            return lambda row, k: self.staged[local + row, k]
        return lambda row, k: mk.widen(self.load_a(self.batch, row0 + row, k), shape.a_dtype, shape.acc_dtype)

    def _multiply(
        self, panel: Expr, width: int, index: Expr, rows: int, first_k: Expr, last_k: Expr, gate: Expr | None = None
    ) -> tuple[Any, RegisterTile, Expr]:
        """Accumulators of one tile after the reduction over [first_k, last_k), their shape and first row."""
        plan = self.plan
        operand = self.batch if gate is None else gate
        row0 = T.bind(plan.rows.start(index))
        tile = RegisterTile(rows, -(-width // plan.tile.lanes), plan.tile.lanes)
        acc = mk.allocate(tile, plan.shape.acc_dtype)
        mk.fill(acc, tile, mk.constant(0, plan.shape.acc_dtype))
        left = self._left(row0)
        if plan.shape.k:
            with mk.serial(first_k, last_k) as k:
                if plan.streams_once:
                    self.panels.prefetch_ahead(operand, panel, k, AHEAD_BYTES)
                if plan.prefetches:
                    self.panels.prefetch_next(operand, panel, index - self.first_tile, plan.block_tiles, k)
                mk.multiply_add(
                    acc,
                    tile,
                    lambda row: left(row, k),
                    lambda column: self.panels.at(operand, panel, k, column),
                )
        return acc, tile, row0

    def _tile(self, panel: Expr, width: int, index: Expr, rows: int) -> None:
        """One register tile from start to end: multiply, then epilogue."""
        plan = self.plan
        if plan.shape.gates > 1:
            self._gated_tile(panel, width, index, rows)
            return
        acc, tile, row0 = self._multiply(panel, width, index, rows, *self.window.steps)
        first = panel * plan.tile.columns
        if not plan.spill:
            mk.finish(
                acc, rows, width, tile.lanes,
                lambda row, column, value: self.epilogue(self.batch, row0 + row, first + column, value),
            )  # fmt: skip
            return
        mk.for_each_vector(tile, lambda row, column: T.buffer_store(self.sums, acc[row, column], [row, column]))
        self._store_tile(panel, width, row0, rows)

    def _gated_tile(self, panel: Expr, width: int, index: Expr, rows: int) -> None:
        """The same tile of every gate's product, one below the other in the workspace; then the epilogue."""
        plan = self.plan
        with mk.serial(0, plan.shape.gates) as gate:
            acc, tile, _ = self._multiply(panel, width, index, rows, 0, plan.shape.k, gate)
            first = gate * plan.rows.largest
            mk.for_each_vector(
                tile, lambda row, column: T.buffer_store(self.sums, acc[row, column], [first + row, column])
            )
        row0 = T.bind(plan.rows.start(index))
        self._store_tile(panel, width, row0, rows)

    def _partial_tile(self, panel: Expr, width: int, index: Expr, rows: int, block: Expr) -> None:
        """One register tile over one block of the reduction, added to the sums in the workspace."""
        plan = self.plan
        first, last = T.bind(block * plan.k_block), self.window.steps[1]
        begin = T.max(first, self.window.steps[0])
        acc, tile, row0 = self._multiply(panel, width, index, rows, begin, T.min(first + plan.k_block, last))
        local = row0 - self.first_row

        def add(row: Expr, column: Expr) -> None:
            where = [local + row, column]
            T.buffer_store(self.sums, self.sums[local + row, column] + acc[row, column], where)

        mk.for_each_vector(tile, add)

    def _store_tile(self, panel: Expr, width: int, row0: Expr, rows: int) -> None:
        """Epilogue of a tile whose sums lie in the workspace: one loop over its vectors, less deep than the reduction.

        In a loop as deep as that, LLVM takes the constants of a cell's exponentials for as important as the
        accumulators, and spills the latter: products of 2 to 8 rows with gates were 2 to 6 times slower.
        """
        lanes = self.plan.tile.lanes
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

    def _store_row(self, panel: Expr, width: int, row: Expr, local: Expr) -> None:
        """Epilogue of one row whose sums lie in the workspace."""
        mk.for_each_column(width, self.plan.tile.lanes, lambda column: self._store(panel, row, local, column))

    def _store(self, panel: Expr, row: Expr, local: Expr, column: Expr) -> None:
        gates, stride = self.plan.shape.gates, self.plan.rows.largest
        sums = (self.sums[local + gate * stride, column] for gate in range(gates))
        self.epilogue(self.batch, row, panel * self.plan.tile.columns + column, *sums)
