"""Schedules of matrix multiplications on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilestitch.compiler.ir.types import compute_dtype, storage_bytes
from tilestitch.passes.plan.cpu.gemm import GemmPlan, GemmShape, GemvShape
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.cpu.schedules import CpuDotGemmSchedule, CpuGemmSchedule, CpuGemvSchedule
from tilestitch.passes.plan.cpu.tiling import RegisterTile, Split, split_at_most

from .cycles import gemm_task
from .tasks import SHAPES, choose_blocks
from .tiles import choose_tile, widens

LEAST_TILES = 8
"""Tiles of rows of a result that leave in long runs rather than panel by panel."""
STREAMS = 8
"""Rows, or columns, that are read at the same time of a matrix that is read once."""
MOST_SUMS = 4096
"""Results of one task that multiplies such a matrix: their sums stay in the first-level cache."""
TASKS_A_THREAD = 3
TASK_ELEMENTS = 16384
"""The least that a task reads of such a matrix where there are several tasks: a few microseconds, as long as a thread
takes to wake up.
"""


@lru_cache(SHAPES)
def choose_gemm(shape: GemmShape, isa: Isa, threads: int) -> CpuGemmSchedule:
    """Tiles and tasks. Raises ValueError for an empty result (m, n or batch is 0): there is nothing to launch."""
    if shape.gates > 1 and (shape.batch > 1 or not shape.packed):
        raise ValueError(f"gates of {shape} need one packed right operand; leave the slices out of the kernel")
    if min(shape.m, shape.n, shape.batch) < 1 or shape.k < 0:
        raise ValueError(f"GEMM of an empty shape {shape}; skip the launch")
    tile, rows = choose_tile(shape.m, shape.n, isa.lanes(shape.acc_dtype), isa)
    draft = _draft(shape, tile, isa)
    k_block = _reduction_block(GemmPlan(shape, draft), rows, isa)
    draft = replace(draft, k_block=k_block)
    block_tiles, block_panels = _blocks(GemmPlan(shape, draft), isa, threads)
    dots = isinstance(draft, CpuDotGemmSchedule)
    widen = shape.packed and shape.gates == 1 and not dots and widens(shape.b_dtype, block_tiles)
    near = shape.packed and not GemmPlan(shape, draft).splits_k and shape.right_bytes <= isa.l2_bytes // 4
    rows_outer = near and rows.parts >= LEAST_TILES and not widen
    several = -(-shape.n // tile.columns) > 1
    return replace(
        draft, block_tiles=block_tiles, block_panels=block_panels, widen_right=widen,
        spill=shape.long_epilogue or shape.gates > 1,
        rows_outer=rows_outer,
        prefetch_next=shape.packed and not rows_outer and several and block_tiles >= tile.vectors,
        prefetch_ahead=shape.packed and rows.parts == 1 and shape.right_bytes > isa.l2_bytes // 2,
    )  # fmt: skip


def _draft(shape: GemmShape, tile: RegisterTile, isa: Isa) -> CpuGemmSchedule:
    """One tile a task, in one pass."""
    if isa.dot is not None and shape.multiplies_bytes:
        stage = not shape.reads_in_place(isa.dot)
        return CpuDotGemmSchedule(tile.rows, tile.vectors, tile.lanes, 1, 1, shape.k, stage, dot=isa.dot.name)
    stage = shape.a_dtype != shape.acc_dtype or shape.left_runs == "m" or not shape.plain
    return CpuGemmSchedule(tile.rows, tile.vectors, tile.lanes, 1, 1, shape.k, stage)


def _reduction_block(plan: GemmPlan, rows: Split, isa: Isa) -> int:
    """Reduction steps per pass: all of them unless a panel would not stay in half of the second-level cache."""
    step_bytes = plan.tile.columns * plan.neighbours * storage_bytes(compute_dtype(plan.shape.b_dtype))
    limit = isa.l2_bytes // 2
    if rows.parts == 1 or plan.steps * step_bytes <= limit or plan.shape.gates > 1:
        return plan.steps
    return split_at_most(plan.steps, limit // step_bytes).largest


def _blocks(plan: GemmPlan, isa: Isa, threads: int) -> tuple[int, int]:
    """Row tiles and panels of one task; its rows stay in half of the second-level cache while the panels stream by."""
    shape, task = plan.shape, gemm_task(plan, isa)
    row_dtype = plan.staged_dtype if plan.schedule.stage_left else shape.a_dtype
    row_bytes = plan.rows.largest * max(1, shape.k) * storage_bytes(row_dtype)

    def cycles(tiles: int, panels: int) -> float | None:
        if tiles > 1 and tiles * row_bytes > isa.l2_bytes // 2:
            return None
        return task(tiles, panels)

    return choose_blocks(plan.rows.parts, plan.panels, shape.batch, threads, cycles)


def choose_gemv(shape: GemvShape, isa: Isa, threads: int) -> CpuGemvSchedule:
    """Blocks are whole vectors of whole streams."""
    lanes = isa.lanes(shape.acc_dtype)
    unit = lanes * STREAMS
    tasks = max(1, -(-TASKS_A_THREAD * threads // shape.batch))
    wanted = -(-shape.rows // tasks) if threads > 1 else shape.rows
    wanted = max(wanted, TASK_ELEMENTS // max(1, shape.k))
    return CpuGemvSchedule(min(shape.rows, MOST_SUMS, -(-wanted // unit) * unit), lanes, STREAMS)
