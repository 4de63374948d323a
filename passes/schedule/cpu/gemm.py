"""Schedules of matrix multiplications on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias, TypeVar

from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.sizes import ceil_div, is_open
from tilestitch.compiler.ir.types import compute_dtype, storage_bytes
from tilestitch.passes.plan.cpu.gemm import LONGEST_SUM, PLANES, ROUNDED, GemmPlan, GemmShape, GemvShape, planes_fit
from tilestitch.passes.plan.cpu.isa import TILE_ROWS, Dot, Isa
from tilestitch.passes.plan.cpu.schedules import (
    CpuBlockDotGemmSchedule,
    CpuBlockGemmSchedule,
    CpuDotGemmSchedule,
    CpuGemmSchedule,
    CpuGemvSchedule,
    CpuTileGemmSchedule,
)
from tilestitch.passes.plan.cpu.tiling import RegisterTile, Split, meet_in_a_set, split_at_most

from .cycles import gemm_cycles, gemm_task
from .tasks import SHAPES, cheapest_blocks
from .tiles import choose_tile, lanes_of, widens

OUTER_STEPS = (512, 256)
"""Of a reduction that is the outermost loop, through all tiles and panels of a task at a time, at most."""
LEAST_TILES = 8
"""Tiles of rows of a result that leave in long runs rather than panel by panel."""
STREAMS = 8
"""Rows, or columns, that are read at the same time of a matrix that is read once."""
MOST_SUMS = 4096
"""Results of one task that multiplies such a matrix: their sums stay in the first-level cache."""
MOST_STREAMED = 8
"""Rows for which weights in blocks are dequantised in registers; more of them are worth a panel in the workspace."""
STREAMED_VECTORS = (1, 2, 4)
MOST_SUMMED = 16
"""Vectors of sums of such a tile, without those of a block."""
MOST_ROUNDED = 8
"""Rows of a tile of such sums, where the left operand is rounded to 8 bits."""
LEAST_SPLIT_COLUMNS = 256
"""For which a row is split into digits: that takes as long as 50 columns save."""
LEAST_TASK_COLUMNS = 128
"""The same of each task, of which every one splits the row, and each thread has at least one."""
TASKS_A_THREAD = 3
TASK_ELEMENTS = 16384
"""The least that a task reads of such a matrix where there are several tasks: a few microseconds, as long as a thread
takes to wake up.
"""


@lru_cache(SHAPES)
def choose_gemm(shape: GemmShape, isa: Isa, threads: int) -> CpuGemmSchedule:
    """Return the tiles and tasks. Raises ValueError for an empty result (m, n or batch is 0): there is nothing to
    launch.
    """
    if shape.gates > 1 and (shape.batch > 1 or not shape.packed):
        raise ValueError(f"gates of {shape} need one packed right operand; leave the slices out of the kernel")
    if min(shape.m, shape.n, shape.batch) < 1 or shape.k < 0:
        raise ValueError(f"GEMM of an empty shape {shape}; skip the launch")
    if shape.blocks is not None and (shape.rounds or _splits(shape, shape.blocks, isa, threads)):
        return _rounded(shape, isa, threads)
    if shape.blocks is not None and shape.m <= MOST_STREAMED:
        return _streamed(shape, shape.blocks, isa, threads)
    dot = next((dot for dot in isa.tile_dots if shape.multiplied_by(dot)), None)
    candidates = [_in_vectors(shape, isa, threads), *(_in_tiles(shape, dot, isa, threads) if dot and shape.k else ())]
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda schedule: gemm_cycles(GemmPlan(shape, schedule), isa))


def _in_tiles(shape: GemmShape, dot: Dot, isa: Isa, threads: int) -> Iterator[CpuGemmSchedule]:
    """One or two tiles of rows, where there are so many, by as many columns as there are, up to two."""
    vectors = min(2, ceil_div(shape.n, TILE_ROWS))
    for rows in (TILE_ROWS, 2 * TILE_ROWS)[: ceil_div(shape.m, TILE_ROWS)]:
        draft = tile_gemm(shape, dot, rows, vectors, stage=True)
        if next(GemmPlan(shape, replace(draft, stage_left=False)).reasons(), None) is None:
            draft = replace(draft, stage_left=False)
        block_tiles, block_panels = _blocks(GemmPlan(shape, draft), isa, threads)
        yield replace(draft, block_tiles=block_tiles, block_panels=block_panels)


def tile_gemm(shape: GemmShape, dot: Dot, rows: int, vectors: int, *, stage: bool) -> CpuTileGemmSchedule:
    """In tiles, in one pass, by one task."""
    draft = CpuTileGemmSchedule(rows, vectors, TILE_ROWS, 1, 1, 1, stage_left=stage, spill=True, dot=dot.name)
    return in_one_task(replace(draft, k_block=GemmPlan(shape, draft).steps), shape)


_Schedule = TypeVar("_Schedule", bound=CpuGemmSchedule)


def in_one_task(schedule: _Schedule, shape: GemmShape) -> _Schedule:
    """Return all tiles and panels."""
    tiles, panels = split_at_most(shape.m, schedule.rows).parts, ceil_div(shape.n, schedule.vectors * schedule.lanes)
    return replace(schedule, block_tiles=tiles, block_panels=panels)


@lru_cache(SHAPES)
def choose_gemm_of_panels(shape: GemmShape, vectors: int, isa: Isa, threads: int) -> CpuGemmSchedule:
    """Return the tiles and tasks where the panels of the right operand are so many vectors wide, if that is possible:
    constants lie in memory in these.
    """
    return _in_vectors(shape, isa, threads, vectors)


def _in_vectors(shape: GemmShape, isa: Isa, threads: int, vectors: int | None = None) -> CpuGemmSchedule:
    """Return the best register tile, of so many vectors if that is given."""
    blocks, lanes = shape.blocks is not None, isa.lanes(shape.acc_dtype)
    if not blocks:
        lanes = lanes_of(shape.n, shape.acc_dtype, isa, isa.dot_of(shape))
    tile, rows = choose_tile(shape.m, shape.n, lanes, isa, vectors)
    draft = _draft(shape, tile, isa)
    k_block = _reduction_block(GemmPlan(shape, draft), rows, isa)
    draft = replace(draft, k_block=k_block)
    block_tiles, block_panels = _blocks(GemmPlan(shape, draft), isa, threads)
    dots = isinstance(draft, CpuDotGemmSchedule)
    widen = blocks or (shape.packed and shape.gates == 1 and not dots and widens(shape.b_dtype, block_tiles))
    near = shape.packed and not GemmPlan(shape, draft).splits_k and shape.right_bytes <= isa.l2_bytes // 4
    rows_outer = near and rows.parts >= LEAST_TILES and not widen
    several = -(-shape.n // tile.columns) > 1
    inner = replace(
        draft, block_tiles=block_tiles, block_panels=block_panels, widen_right=widen,
        spill=shape.long_epilogue or shape.gates > 1,
        rows_outer=rows_outer,
        prefetch_next=shape.packed and not (rows_outer or blocks) and several and block_tiles > 1,
        prefetch_ahead=shape.packed and not blocks and block_tiles == 1 and shape.right_bytes > isa.l2_bytes // 2,
    )  # fmt: skip
    read_again = shape.packed and block_tiles < rows.parts and shape.right_bytes > isa.l2_bytes // 2
    if not read_again or blocks or dots or widen or shape.gates > 1:
        return inner
    return _with_k_outer(inner, shape, isa, threads) or inner


def _with_k_outer(inner: CpuGemmSchedule, shape: GemmShape, isa: Isa, threads: int) -> CpuGemmSchedule | None:
    """Return the reduction as the outermost loop, where that is faster: a task has more rows of so many steps than
    whole ones, and the right operand is read by fewer tasks. What they read of both, and the sums, stay in three
    quarters of the second-level cache.
    """
    whole = _cheapest(GemmPlan(shape, inner), isa, threads)
    least, best = math.inf if whole is None else whole[0], None
    for most in OUTER_STEPS:
        if shape.k <= most:
            continue
        steps = -(-split_at_most(shape.k, most).largest // inner.lanes) * inner.lanes
        draft = replace(inner, k_block=steps, k_outer=True, rows_outer=False, prefetch_next=True, prefetch_ahead=False)
        found = _cheapest(GemmPlan(shape, draft), isa, threads)
        if found is not None and found[0] < least:
            least, best = found[0], replace(draft, block_tiles=found[1], block_panels=found[2])
    return best


def _streamed(shape: GemmShape, form: BlockFormat, isa: Isa, threads: int) -> CpuBlockGemmSchedule:
    """Few rows: each panel is read once, and dequantised in registers. There are two sums for each result: that of a
    block waits for its scale.
    """
    lanes = isa.lanes(shape.acc_dtype)
    vectors = max(v for v in STREAMED_VECTORS if v == 1 or (v * lanes <= shape.n and v * shape.m <= MOST_SUMMED))
    stage = not shape.reads_blocks(form)
    ahead = shape.right_bytes > isa.l2_bytes // 2
    draft = CpuBlockGemmSchedule(
        shape.m, vectors, lanes, 1, 1, shape.k, stage, spill=shape.long_epilogue, prefetch_ahead=ahead,
        look_up=_looks_up(form, isa),
    )  # fmt: skip
    block_tiles, block_panels = _blocks(GemmPlan(shape, draft), isa, threads)
    return replace(draft, block_tiles=block_tiles, block_panels=block_panels)


def with_few_rows(schedule: CpuBlockGemmSchedule, shape: GemmShape) -> CpuBlockGemmSchedule:
    """Return where panels are widened for an open number of rows: few of them, as when tokens come one by one, wait for
    memory, and widening would take longer than that.
    """
    if not schedule.widen_right or shape.blocks is None:
        return schedule
    return replace(schedule, few=MOST_STREAMED, stage_left=not shape.reads_blocks(shape.blocks))


def _splits(shape: GemmShape, form: BlockFormat, isa: Isa, threads: int) -> bool:
    """One row by 4-bit codes is split into digits of 8 bits: for 128 codes, 11 instructions of integers rather than 24
    of floats.
    """
    dots = isa.dot is not None and isa.dot.right == ROUNDED
    one = shape.m == 1 and shape.n >= max(LEAST_SPLIT_COLUMNS, LEAST_TASK_COLUMNS * threads)
    return dots and one and not is_open(shape.k) and form.bits == 4 and planes_fit(form)


def _rounded(shape: GemmShape, isa: Isa, threads: int) -> CpuBlockDotGemmSchedule:
    """Rows rounded to 8 bits, or split into such: codes become bytes in registers, of as few rows as there are sums,
    and as often.
    """
    if isa.dot is None:
        raise ValueError(f"{isa.name} has no instruction that multiplies bytes; leave the operand as it is")
    lanes = isa.lanes(shape.acc_dtype)
    rows = min(shape.m, MOST_ROUNDED) if not is_open(shape.m) else MOST_ROUNDED
    planes = 1 if shape.rounds else PLANES
    summed = MOST_SUMMED if planes == 1 else min(MOST_SUMMED, isa.vector_registers // 2)
    vectors = max(v for v in STREAMED_VECTORS if v == 1 or (v * lanes <= shape.n and v * rows * planes <= summed))
    draft = CpuBlockDotGemmSchedule(
        rows, vectors, lanes, 1, 1, shape.k, stage_left=True, spill=shape.long_epilogue,
        prefetch_ahead=shape.m <= rows and shape.right_bytes > isa.l2_bytes // 2, dot=isa.dot.name,
        planes=planes,
    )  # fmt: skip
    block_tiles, block_panels = _blocks(GemmPlan(shape, draft), isa, threads)
    return replace(draft, block_tiles=block_tiles, block_panels=block_panels)


def _draft(shape: GemmShape, tile: RegisterTile, isa: Isa) -> CpuGemmSchedule:
    """One tile a task, in one pass."""
    dot = isa.dot_of(shape)
    if dot is not None:
        stage = not shape.reads_in_place(dot) or _meet(shape, tile)
        return CpuDotGemmSchedule(tile.rows, tile.vectors, tile.lanes, 1, 1, shape.k, stage, dot=dot.name)
    stage = not shape.reads_floats or _meet(shape, tile)
    sizes = tile.rows, tile.vectors, tile.lanes, 1, 1, shape.k, stage
    if shape.blocks is not None:
        return CpuBlockGemmSchedule(*sizes, look_up=_looks_up(shape.blocks, isa))
    return CpuGemmSchedule(*sizes)


def _meet(shape: GemmShape, tile: RegisterTile) -> bool:
    """Return whether rows read where they lie drive each other out of the first-level cache (Zen 4: 196 rows by 1024 by
    256 made 90 GFLOP/s, and 115 with copied rows).
    """
    return meet_in_a_set(tile.rows, shape.k * storage_bytes(shape.a_dtype))


def _looks_up(form: BlockFormat, isa: Isa) -> bool:
    """Return a look-up takes one instruction after a shift, a conversion two."""
    return form.bits == 4 and isa.looks_up


def _reduction_block(plan: GemmPlan, rows: Split, isa: Isa) -> int:
    """Reduction steps per pass: all of them unless a panel would not stay in half of the second-level cache, or a sum
    of floats would be too long.
    """
    if plan.shape.gates > 1:
        return plan.steps
    step_bytes = plan.tile.columns * plan.neighbours * storage_bytes(compute_dtype(plan.shape.b_dtype))
    limit = isa.l2_bytes // 2
    stays = rows.parts == 1 or plan.steps * step_bytes <= limit
    most = plan.steps if stays else limit // step_bytes
    if plan.dot is None:
        most = min(most, LONGEST_SUM)
    return plan.steps if plan.steps <= most else split_at_most(plan.steps, most).largest


def _blocks(plan: GemmPlan, isa: Isa, threads: int) -> tuple[int, int]:
    """Row tiles and panels of one task; its rows stay in half of the second-level cache while the panels stream by."""
    best = _cheapest(plan, isa, threads)
    return (1, 1) if best is None else best[1:]


def _cheapest(plan: GemmPlan, isa: Isa, threads: int) -> tuple[float, int, int] | None:
    """Cycles until all tasks are done, and these row tiles and panels; None where no task is small enough."""
    task, stays = gemm_task(plan, isa), _outer_stays(plan, isa) if plan.schedule.k_outer else _rows_stay(plan, isa)

    def cycles(tiles: int, panels: int) -> float | None:
        return task(tiles, panels) if stays(tiles, panels) else None

    return cheapest_blocks(plan.rows.parts, plan.panels, plan.shape.batch, threads, cycles)


Stays: TypeAlias = Callable[[int, int], bool]
"""Whether what a task of so many tiles of rows by so many panels uses again stays in the second-level cache."""


def _rows_stay(plan: GemmPlan, isa: Isa) -> Stays:
    row_dtype = plan.staged_dtype if plan.schedule.stage_left else plan.shape.a_dtype
    tile_bytes = plan.rows.largest * max(1, plan.shape.k) * storage_bytes(row_dtype)
    return lambda tiles, panels: tiles == 1 or tiles * tile_bytes <= isa.l2_bytes // 2


def _outer_stays(plan: GemmPlan, isa: Isa) -> Stays:
    element = storage_bytes(plan.shape.acc_dtype)
    tile_bytes = plan.rows.largest * plan.schedule.k_block * element
    sums_bytes = plan.rows.largest * plan.tile.columns * element
    two_panels = 2 * plan.schedule.k_block * plan.tile.columns * storage_bytes(plan.shape.b_dtype)
    most = isa.l2_bytes // 4 * 3 - two_panels
    return lambda tiles, panels: tiles * (tile_bytes + panels * sums_bytes) <= most


def choose_gemv(shape: GemvShape, isa: Isa, threads: int) -> CpuGemvSchedule:
    """Blocks are whole vectors of whole streams."""
    lanes = isa.lanes(shape.acc_dtype)
    unit = lanes * STREAMS
    tasks = max(1, -(-TASKS_A_THREAD * threads // shape.batch))
    wanted = -(-shape.rows // tasks) if threads > 1 else shape.rows
    wanted = max(wanted, TASK_ELEMENTS // max(1, shape.k))
    return CpuGemvSchedule(min(shape.rows, MOST_SUMS, -(-wanted // unit) * unit), lanes, STREAMS)
