"""Schedules of matrix multiplications on a CPU."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias, TypeVar

from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.sizes import ceil_div, is_open
from tilestitch.compiler.ir.types import compute_dtype, storage_bytes
from tilestitch.passes.plan.cpu.gemm import PLANES, ROUNDED, GemmPlan, GemmShape, planes_fit
from tilestitch.passes.plan.cpu.gemv import GemvShape
from tilestitch.passes.plan.cpu.isa import TILE_ROWS, Dot, Isa
from tilestitch.passes.plan.cpu.limits import LONGEST_SUM
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
"""Most steps of a reduction that is the outermost loop, through all tiles and panels of a task at a time."""
LEAST_TILES = 8
"""Tiles of rows from which a result is stored in long runs rather than panel by panel."""
STREAMS = 8
"""Rows or columns read concurrently of a matrix that is read once."""
MOST_SUMS = 4096
"""Most results per task that multiplies such a matrix: their sums stay in the first-level cache."""
MOST_STREAMED = 8
"""Most rows for which blockwise-quantised weights are dequantised in registers; more rows justify a panel in the
workspace.
"""
STREAMED_VECTORS = (1, 2, 4)
MOST_SUMMED = 16
"""Most vectors of sums of such a tile, without those of a block."""
MOST_ROUNDED = 8
"""Most rows of a tile of such sums, where the left operand is rounded to 8 bits."""
LEAST_SPLIT_COLUMNS = 256
"""Columns from which a row is split into digits: splitting takes as long as 50 columns save."""
LEAST_TASK_COLUMNS = 128
"""The same per task: every task splits the row, and each thread has at least one task."""
TASKS_A_THREAD = 3
TASK_ELEMENTS = 16384
"""Least elements that a task reads of such a matrix where there are several tasks: a few microseconds, as long as a
thread takes to wake up.
"""


@lru_cache(SHAPES)
def choose_gemm(shape: GemmShape, isa: Isa, threads: int) -> CpuGemmSchedule:
    """Return the schedule: tiles and tasks. Raises ValueError for an empty result (m, n or batch is 0): there is
    nothing to launch.
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
    """Yield schedules with one or two tiles of rows, if there are enough, by up to two tiles of columns."""
    vectors = min(2, ceil_div(shape.n, TILE_ROWS))
    for rows in (TILE_ROWS, 2 * TILE_ROWS)[: ceil_div(shape.m, TILE_ROWS)]:
        draft = tile_gemm(shape, dot, rows, vectors, stage=True)
        if next(GemmPlan(shape, replace(draft, stage_left=False)).reasons(), None) is None:
            draft = replace(draft, stage_left=False)
        block_tiles, block_panels = _blocks(GemmPlan(shape, draft), isa, threads)
        yield replace(draft, block_tiles=block_tiles, block_panels=block_panels)


def tile_gemm(shape: GemmShape, dot: Dot, rows: int, vectors: int, *, stage: bool) -> CpuTileGemmSchedule:
    """Return the schedule in tiles, in one pass, by one task."""
    draft = CpuTileGemmSchedule(rows, vectors, TILE_ROWS, 1, 1, 1, stage_left=stage, spill=True, dot=dot.name)
    return in_one_task(replace(draft, k_block=GemmPlan(shape, draft).steps), shape)


_Schedule = TypeVar("_Schedule", bound=CpuGemmSchedule)


def in_one_task(schedule: _Schedule, shape: GemmShape) -> _Schedule:
    """Return the schedule with all tiles and panels in one task."""
    tiles, panels = split_at_most(shape.m, schedule.rows).parts, ceil_div(shape.n, schedule.vectors * schedule.lanes)
    return replace(schedule, block_tiles=tiles, block_panels=panels)


@lru_cache(SHAPES)
def choose_gemm_of_panels(shape: GemmShape, vectors: int, isa: Isa, threads: int) -> CpuGemmSchedule:
    """Return the schedule with panels of the right operand `vectors` wide, if possible: constants are stored in such
    panels.
    """
    return _in_vectors(shape, isa, threads, vectors)


@lru_cache(SHAPES)
def choose_blocks_of_panels(shape: GemmShape, vectors: int, isa: Isa, threads: int) -> CpuGemmSchedule:
    """Return the same for weights in blocks, of which few rows dequantise each panel in registers."""
    if shape.blocks is None or (shape.m > MOST_STREAMED and not shape.rounds):
        return choose_gemm_of_panels(shape, vectors, isa, threads)
    if shape.rounds:
        return _rounded(shape, isa, threads, vectors)
    return _streamed(shape, shape.blocks, isa, threads, vectors)


def _in_vectors(shape: GemmShape, isa: Isa, threads: int, vectors: int | None = None) -> CpuGemmSchedule:
    """Return the schedule with the best register tile, of `vectors` vectors if given."""
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
    """Return the schedule with the reduction as the outermost loop, if that is faster: a task can have more rows of a
    few steps than whole ones, so that fewer tasks read the right operand. What they read of both operands, and the
    sums, stay in three quarters of the second-level cache.
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


def _streamed(
    shape: GemmShape, form: BlockFormat, isa: Isa, threads: int, vectors: int | None = None
) -> CpuBlockGemmSchedule:  # fmt: skip
    """Return the schedule for few rows: each panel is read once and dequantised in registers. Each result has two sums:
    that of a block waits for its scale.
    """
    lanes = isa.lanes(shape.acc_dtype)
    if vectors is None:
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
    """Return the schedule for an open number of rows where panels are widened: few rows, as when tokens come one by
    one, are limited by memory, and widening would take longer.
    """
    if not schedule.widen_right or shape.blocks is None:
        return schedule
    return replace(schedule, few=MOST_STREAMED, stage_left=not shape.reads_blocks(shape.blocks))


def _splits(shape: GemmShape, form: BlockFormat, isa: Isa, threads: int) -> bool:
    """Return whether one row by 4-bit codes is split into 8-bit digits: for 128 codes, 11 integer instructions rather
    than 24 on floats.
    """
    dots = isa.dot is not None and isa.dot.right == ROUNDED
    one = shape.m == 1 and shape.n >= max(LEAST_SPLIT_COLUMNS, LEAST_TASK_COLUMNS * threads)
    return dots and one and not is_open(shape.k) and form.bits == 4 and planes_fit(form)


def _rounded(shape: GemmShape, isa: Isa, threads: int, vectors: int | None = None) -> CpuBlockDotGemmSchedule:
    """Return the schedule with rows rounded to 8 bits, or split into digits: codes become bytes in registers, once for
    as few rows as there are sums.
    """
    if isa.dot is None:
        raise ValueError(f"{isa.name} has no instruction that multiplies bytes; leave the operand as it is")
    lanes = isa.lanes(shape.acc_dtype)
    rows = min(shape.m, MOST_ROUNDED) if not is_open(shape.m) else MOST_ROUNDED
    planes = 1 if shape.rounds else PLANES
    summed = MOST_SUMMED if planes == 1 else min(MOST_SUMMED, isa.vector_registers // 2)
    if vectors is None:
        vectors = max(v for v in STREAMED_VECTORS if v == 1 or (v * lanes <= shape.n and v * rows * planes <= summed))
    draft = CpuBlockDotGemmSchedule(
        rows, vectors, lanes, 1, 1, shape.k, stage_left=True, spill=shape.long_epilogue,
        prefetch_ahead=shape.m <= rows and shape.right_bytes > isa.l2_bytes // 2, dot=isa.dot.name,
        planes=planes,
    )  # fmt: skip
    block_tiles, block_panels = _blocks(GemmPlan(shape, draft), isa, threads)
    return replace(draft, block_tiles=block_tiles, block_panels=block_panels)


def _draft(shape: GemmShape, tile: RegisterTile, isa: Isa) -> CpuGemmSchedule:
    """Return a schedule with one tile per task, in one pass."""
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
    """Return whether rows read in place conflict in the first-level cache."""
    return meet_in_a_set(tile.rows, shape.k * storage_bytes(shape.a_dtype))


def _looks_up(form: BlockFormat, isa: Isa) -> bool:
    """Return whether codes are looked up: that takes one instruction after a shift, a conversion two."""
    return form.bits == 4 and isa.looks_up


def _reduction_block(plan: GemmPlan, rows: Split, isa: Isa) -> int:
    """Return the reduction steps per pass: all, unless a panel would exceed half of the second-level cache, or a sum of
    floats would be too long.
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
    """Return the row tiles and panels per task, whose rows stay in half of the second-level cache while panels are
    streamed.
    """
    best = _cheapest(plan, isa, threads)
    return (1, 1) if best is None else best[1:]


def _cheapest(plan: GemmPlan, isa: Isa, threads: int) -> tuple[float, int, int] | None:
    """Return the cycles of all tasks, and the row tiles and panels per task; None where no task is small enough."""
    task, stays = gemm_task(plan, isa), _outer_stays(plan, isa) if plan.schedule.k_outer else _rows_stay(plan, isa)

    def cycles(tiles: int, panels: int) -> float | None:
        return task(tiles, panels) if stays(tiles, panels) else None

    return cheapest_blocks(plan.rows.parts, plan.panels, plan.shape.batch, threads, cycles)


Stays: TypeAlias = Callable[[int, int], bool]
"""Whether the data that a task of some tiles of rows by some panels reuses stay in the second-level cache."""


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
    """Return the schedule; blocks are whole vectors of whole streams."""
    lanes = isa.lanes(shape.acc_dtype)
    unit = lanes * STREAMS
    tasks = max(1, -(-TASKS_A_THREAD * threads // shape.batch))
    wanted = -(-shape.rows // tasks) if threads > 1 else shape.rows
    wanted = max(wanted, TASK_ELEMENTS // max(1, shape.k))
    return CpuGemvSchedule(min(shape.rows, MOST_SUMS, -(-wanted // unit) * unit), lanes, STREAMS)
