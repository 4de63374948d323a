"""Estimated cycles of tasks of contractions and windows on a core, from their plans.

These determine how a result is split into tasks; latency models get the sum of all tasks.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.cpu.attention import AttentionPlan
from tilestitch.passes.plan.cpu.conv import ConvPlan, ConvTransposePlan, staged_extent
from tilestitch.passes.plan.cpu.gemm import GemmPlan
from tilestitch.passes.plan.cpu.isa import (
    DOTS,
    TILE_CYCLES,
    TILE_LATENCY,
    TILE_LOAD_CYCLES,
    TILE_ROWS,
    TILE_STORE_CYCLES,
    Isa,
)
from tilestitch.passes.plan.cpu.window import WindowPlan
from tilestitch.passes.plan.cpu.winograd import GEMMS, OUTPUTS, WinogradPlan

from .tiles import PACK_CYCLES, again_cycles, right_cycles, step_cycles

COPY_CYCLES, TURN_CYCLES, NEAR_CYCLES = 0.5, 1.5, 0.1
"""Cycles per element of the left operand: copied as it is, copied from channels first, and read in place."""
MEETING_CYCLES = 2.0
"""Cycles per step of a tile whose rows, read in place, share a set of the first-level cache."""
BLOCK_CYCLES, IN_REGISTERS_CYCLES = 0.15, 0.03
"""Cycles to dequantise an element of blockwise-quantised weights into a panel, or, in addition to the multiplication,
in registers.
"""
BYTES_CYCLES, ROUND_CYCLES, SPLIT_CYCLES = 0.016, 1.0, 4.0
"""Cycles to convert an element of such weights to bytes in registers, and to round an element of the left operand, or
split it.
"""
SCALED_STEPS = 3
"""Steps that scaling the sums of a block takes."""
PIXEL_CYCLES, RESULT_CYCLES = 0.1, 0.1
"""Cycles to transform an element that Winograd's algorithm multiplies, and an element that a GEMM results in."""
SHARED_PORTS = 2.0
"""Slowdown of that where the multiply ports also add and shuffle."""
SUM_CYCLES = 2.0
"""Cycles to add a vector of sums to those waiting in the workspace."""
SUM_STEPS = 6
"""Steps that beginning a reduction and storing its sums takes."""
WINDOW_CYCLES, RUN_CYCLES = 4.0, 8.0
"""Cycles of a window besides its taps; and of a short run of channels, which uses memory badly."""
ACROSS_LANES = 4
"""Neighbouring windows that are computed in the time of one."""

TaskCycles: TypeAlias = Callable[[int, int], float]
"""Cycles of a task with a number of tiles of rows (rows of windows) and of panels (steps of channels)."""


def gemm_task(plan: GemmPlan, isa: Isa) -> TaskCycles:
    """Return the cycles of a task of a GEMM: it reads its panels and rows from further away once. Tasks of other rows
    and the same panels come next, and read these again. With the reduction outermost, waiting sums are added to each
    time.
    """
    shape, (tile, row) = plan.shape, _tile_and_row(plan, isa)
    elements, right = plan.tile.columns * max(1, plan.steps), _right_cycles(plan, isa)
    itemsize = storage_bytes(shape.b_dtype)
    passes = ceil_div(plan.steps, plan.schedule.k_block) if plan.schedule.k_outer else 0
    tile += plan.rows.largest * plan.schedule.vectors * SUM_CYCLES * passes

    def cycles(tiles: int, panels: int) -> float:
        again = shape.packed and tiles < plan.rows.parts
        read = right + (again_cycles(panels * elements * itemsize, isa) if again else 0.0)
        return shape.gates * panels * (tiles * tile + elements * read) + tiles * row

    return cycles


def _right_cycles(plan: GemmPlan, isa: Isa) -> float:
    """Return the cycles per element of the right operand, each time that a task needs it."""
    if plan.shape.blocks is None:
        return right_cycles(plan.shape.packed, plan.shape.right_bytes, isa)
    if plan.rounds:
        return BYTES_CYCLES
    return BLOCK_CYCLES if plan.schedule.widen_right else IN_REGISTERS_CYCLES


def _tile_and_row(plan: GemmPlan, isa: Isa) -> tuple[float, float]:
    """Return the cycles of a register tile through the whole reduction, and those to copy or read its rows of the left
    operand.
    """
    form, elements = plan.shape.blocks, plan.rows.largest * max(1, plan.shape.k)
    if plan.multiplies_tiles:
        tiles = _tiles(plan.tile_rows, plan.schedule.vectors, plan.steps)
        return tiles, elements * (COPY_CYCLES if plan.schedule.stage_left else NEAR_CYCLES)
    step = step_cycles(plan.rows.largest * plan.planes, plan.tile.vectors, isa)
    if not plan.schedule.stage_left and plan.rows_meet:
        step += MEETING_CYCLES
    if plan.rounds and form is not None:
        copied = elements * (ROUND_CYCLES if plan.planes == 1 else SPLIT_CYCLES)
        return step * form.blocks * (form.block // DOTS["vpdpbusd"].group + SCALED_STEPS), copied
    return step * max(1, plan.steps), elements * (COPY_CYCLES if plan.schedule.stage_left else NEAR_CYCLES)


def _tiles(rows: int, beside: int, steps: int) -> float:
    """Return the cycles of tiles of sums through the whole reduction, after which they are stored for the epilogue."""
    below = rows // TILE_ROWS
    step = max(TILE_CYCLES * below * beside, TILE_LOAD_CYCLES * (below + beside), TILE_LATENCY)
    return steps // TILE_ROWS * step + below * beside * 2 * TILE_STORE_CYCLES


def conv_task(plan: ConvPlan, isa: Isa) -> TaskCycles:
    """Return the cycles of a task, as for a GEMM; rows that neighbouring tasks both need are copied by both."""
    if isinstance(plan, WinogradPlan):
        return winograd_task(plan, isa)
    shape, stage, columns = plan.shape, plan.schedule.stage, plan.x.parts
    reduction = max(1, plan.steps)
    if plan.multiplies_tiles:
        tile = _tiles(plan.sums_rows, plan.schedule.vectors, plan.steps)
    else:
        tile = step_cycles(plan.tile.rows, plan.tile.vectors, isa) * reduction
    right_bytes = shape.reduction * shape.group_out * storage_bytes(shape.w_dtype)
    panel = plan.tile.columns * reduction * right_cycles(shape.packed, right_bytes, isa)
    copy = NEAR_CYCLES if not stage else COPY_CYCLES if shape.channels_last else TURN_CYCLES
    line = math.prod(shape.kernel[:-2]) * staged_extent(shape, -1, shape.output[-1]) * shape.group_in

    def cycles(tiles: int, panels: int) -> float:
        rows = staged_extent(shape, -2, min(shape.output[-2], tiles * plan.y.largest))
        return tiles * columns * panels * tile + rows * line * copy + panels * panel

    return cycles


def winograd_task(plan: WinogradPlan, isa: Isa) -> TaskCycles:
    """Return the cycles of a task: transforms, and GEMMs whose sums are stored after each."""
    shape, columns = plan.shape, plan.tile.columns
    step = step_cycles(plan.tile.rows, plan.tile.vectors, isa) * (shape.group_in + SUM_STEPS)
    right_bytes = GEMMS * shape.group_in * shape.group_out * storage_bytes(shape.w_dtype)
    panel = GEMMS * shape.group_in * columns * right_cycles(True, right_bytes, isa)
    copy = COPY_CYCLES if shape.channels_last else TURN_CYCLES
    line = (OUTPUTS * plan.x.parts + 2) * shape.group_in
    slower = SHARED_PORTS if isa.shares_ports else 1.0

    def cycles(rows: int, panels: int) -> float:
        tiles = rows * plan.x.parts
        gemms = GEMMS * -(-tiles // plan.tile.rows) * step
        pixels = (OUTPUTS * rows + 2) * line * copy + GEMMS * tiles * shape.group_in * PIXEL_CYCLES * slower
        return pixels + panels * (gemms + panel + GEMMS * tiles * columns * RESULT_CYCLES * slower)

    return cycles


def conv_transpose_task(plan: ConvTransposePlan, isa: Isa) -> TaskCycles:
    """Return the cycles of a task, which has one row."""
    shape = plan.shape
    taps = math.prod(-(-kernel // stride) for kernel, stride in zip(shape.kernel, shape.strides, strict=True))
    steps = plan.column_tiles * shape.strides[-1] * taps * max(1, shape.group_in)
    tile = step_cycles(plan.tile.rows, plan.tile.vectors, isa) * steps
    copy = math.prod(plan.staged_shape) * (COPY_CYCLES if shape.channels_last else TURN_CYCLES)
    return lambda tiles, panels: tiles * (panels * tile + copy)


def window_task(plan: WindowPlan) -> TaskCycles:
    shape, schedule = plan.shape, plan.schedule
    step = shape.output[-1] * (math.prod(shape.kernel) + WINDOW_CYCLES) * schedule.vectors
    run = shape.output[-1] * RUN_CYCLES
    if schedule.form in ("across", "line"):
        step, run = step / min(ACROSS_LANES, schedule.lanes), 0.0
    return lambda rows, steps: rows * (steps * step + run)


# -- all tasks ---------------------------------------------------------------------------------------------------------


def gemm_cycles(plan: GemmPlan, isa: Isa) -> float:
    tiles, panels = plan.schedule.block_tiles, plan.schedule.block_panels
    return plan.shape.batch * _sum(gemm_task(plan, isa), (plan.rows.parts, tiles), (plan.panels, panels))


def conv_cycles(plan: ConvPlan, isa: Isa) -> float:
    tiles, panels = plan.schedule.block_tiles, plan.schedule.block_panels
    repeats = plan.shape.batch * plan.shape.groups * math.prod(plan.outer)
    return repeats * _sum(conv_task(plan, isa), (plan.y.parts, tiles), (plan.panels, panels))


def conv_transpose_cycles(plan: ConvTransposePlan, isa: Isa) -> float:
    shape = plan.shape
    repeats = shape.batch * shape.groups * math.prod(shape.output[:-1])
    return repeats * _sum(conv_transpose_task(plan, isa), (1, 1), (plan.panels, plan.schedule.block_panels))


def window_cycles(plan: WindowPlan, isa: Isa) -> float:
    """Return the cycles of all windows: multiply-adds of neighbouring channels start on several ports at once;
    comparisons take additional instructions.
    """
    shape, schedule, step = plan.shape, plan.schedule, plan.step
    steps = -(-shape.out_channels // step), max(1, schedule.block_channels // step)
    repeats = shape.batch * math.prod(plan.outer)
    cycles = repeats * _sum(window_task(plan), (shape.output[-2], schedule.block_rows), steps)
    return cycles if shape.pools else cycles / isa.fma_ports


def attention_cycles(plan: AttentionPlan, isa: Isa) -> float:
    """Return the cycles of attention: every task packs the keys and values of its head for the GEMMs of its blocks."""
    shape = plan.shape
    packing = shape.keys * (shape.width + shape.columns) * PACK_CYCLES
    gemms = 0.0
    for size, count in plan.blocks.sizes():
        for gemm in plan.gemms(size):
            tile, row = _tile_and_row(gemm, isa)
            gemms += count * gemm.rows.parts * (gemm.panels * tile + row)
    return shape.heads * gemms + plan.tasks * packing


def _sum(task: TaskCycles, rows: tuple[int, int], columns: tuple[int, int]) -> float:
    """Return the cycles of all tasks of a grid; each pair is an extent and the part of it per task."""
    return sum(
        row_count * column_count * task(height, width)
        for height, row_count in _sizes(*rows)
        for width, column_count in _sizes(*columns)
    )


def _sizes(extent: int, block: int) -> list[tuple[int, int]]:
    """Return (size, number of blocks with that size)."""
    full, rest = divmod(extent, block)
    return [(size, count) for size, count in ((block, full), (rest, 1)) if size and count]
