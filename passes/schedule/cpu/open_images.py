"""Schedules of convolutions and pooling over images of open size.

Register tiles are chosen for wide images; code for smaller tiles is generated as well. Results are spilled to keep this
code short: an epilogue unrolled over every register of every tile takes LLVM twice as long. The number of rows per task
is an expression over the sizes, so that it suits all of them.
"""

import math
from dataclasses import replace

from tilestitch.compiler.ir.sizes import Size, ceil_div, is_open, largest, smallest
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.cpu.conv import ConvPlan, staged_extent, staged_step
from tilestitch.passes.plan.cpu.images import ConvShape
from tilestitch.passes.plan.cpu.isa import TILE_ROWS, Isa
from tilestitch.passes.plan.cpu.schedules import (
    CpuConvSchedule,
    CpuDotConvSchedule,
    CpuTileConvSchedule,
    CpuWindowSchedule,
    CpuWinogradSchedule,
)
from tilestitch.passes.plan.cpu.window import WindowPlan, why_no_line
from tilestitch.passes.plan.cpu.winograd import GEMMS, WinogradPlan

from .tiles import panel_cycles, tile_limits
from .window import most_columns

TASKS_A_THREAD = 4
"""Tasks per thread, where an image has enough rows."""


def open_conv(shape: ConvShape, chosen: CpuConvSchedule, isa: Isa, threads: int) -> CpuConvSchedule:
    """Return the schedule for images of open height or width; `chosen` is the one at typical sizes."""
    shape = shape.in_planes()
    if isinstance(chosen, CpuDotConvSchedule) and chosen.interleave:  # requires a reduction of fixed size
        chosen = replace(chosen, interleave=False, spill=shape.long_epilogue or shape.y_channels_first)
    lanes = chosen.lanes
    rows, columns, vectors = chosen.rows, chosen.columns, chosen.vectors
    tiles = isinstance(chosen, CpuTileConvSchedule)
    if is_open(shape.output[-1]):
        vectors, columns = (vectors, TILE_ROWS) if tiles else _wide_tile(shape.group_out, lanes, isa)
        rows = 1
    borders = is_open(shape.spatial[-1]) or (is_open(shape.spatial[-2]) and not is_open(shape.output[-2]))
    stage = chosen.stage or (shape.padded and (borders or is_open(shape.output[-1]) or rows > 1))
    if stage and not chosen.stage and is_open(shape.output[-1]):
        stage = not ConvPlan(shape, shape.rank, replace(chosen, rows=rows, columns=columns)).near_borders
    panels = -(-shape.group_out // (vectors * lanes))
    draft = replace(
        chosen, rows=rows, columns=columns, vectors=vectors, stage=stage, block_tiles=1, block_panels=panels,
        prefetch_next=False, spill=chosen.spill or is_open(shape.output[-1]),
    )  # fmt: skip
    if ConvPlan(shape, shape.rank, draft).pixels_meet:
        draft = replace(draft, stage=True)
    right_bytes = shape.reduction * shape.group_out * storage_bytes(shape.w_dtype)
    wanted = _tasks_wanted(threads)
    if threads > 1 and right_bytes > isa.l2_bytes:
        draft = replace(draft, block_panels=-(-panels // min(panels, wanted)))
    plan = ConvPlan(shape, shape.rank, draft)
    repeats = shape.batch * shape.groups * math.prod(plan.outer) * plan.n_blocks
    block = _share(plan.y.parts, repeats, wanted)
    if draft.stage or plan.skips:
        block = smallest(block, _tiles_that_fit(plan, isa.l2_bytes // 2))
    return replace(draft, block_tiles=largest(1, block))


def open_winograd(shape: ConvShape, chosen: CpuWinogradSchedule, isa: Isa, threads: int) -> CpuWinogradSchedule:
    """Return the Winograd schedule: a register tile may extend across rows of tiles, so that all are whole."""
    vectors, tiles = _wide_tile(shape.group_out, chosen.lanes, isa)
    draft = replace(chosen, vectors=vectors, tiles=tiles, block_tiles=1, prefetch_next=False)
    plan = WinogradPlan.of(shape, draft)
    wanted, panels = _tasks_wanted(threads), plan.panels
    right_bytes = plan.steps * shape.group_out * storage_bytes(shape.w_dtype)
    blocks = min(panels, wanted) if threads > 1 and right_bytes > isa.l2_bytes else 1
    row_bytes = plan.x.parts * GEMMS * shape.group_in * storage_bytes(shape.acc_dtype)
    block = smallest(
        _share(plan.y.parts, shape.batch * shape.groups * blocks, wanted), isa.l2_bytes // 2 // largest(1, row_bytes)
    )
    return replace(draft, block_tiles=largest(1, block), block_panels=-(-panels // blocks))


def _wide_tile(channels: int, lanes: int, isa: Isa) -> tuple[int, int]:
    """Return the vectors and pixels of the register tile with the fewest estimated cycles per pixel."""
    candidates = ((panel_cycles(n, channels, v, lanes, isa) / n, v, n) for v, n in tile_limits(channels, lanes, isa))
    _, vectors, pixels = min(candidates)
    return vectors, pixels


def _tiles_that_fit(plan: ConvPlan, limit_bytes: int) -> Size:
    """Return the number of tiles of rows whose copied input has at most `limit_bytes`; 0 or less if none fits."""
    shape = plan.shape
    columns = staged_extent(shape, -1, shape.output[-1])
    row_bytes = math.prod(shape.kernel[:-2]) * columns * shape.group_in * storage_bytes(shape.acc_dtype)
    rows = limit_bytes // largest(1, row_bytes) - shape.dilations[-2] * (shape.kernel[-2] - 1) - 1
    return (rows // staged_step(shape, -2) + 1) // plan.y.largest


def open_window(shape: ConvShape, chosen: CpuWindowSchedule, isa: Isa, threads: int) -> CpuWindowSchedule:
    """Return the schedule of windows of open height or width; `chosen` is the one at typical sizes."""
    shape = shape.in_planes()
    form, columns, lanes = chosen.form, chosen.columns, chosen.lanes
    if is_open(shape.output[-1]):
        form, lanes = _open_form(shape, chosen, isa)
        columns = most_columns(shape, chosen.vectors, isa) if form == "columns" else chosen.columns
    draft = replace(chosen, form=form, lanes=lanes, columns=columns, block_rows=1)
    plan = WindowPlan(shape, shape.rank, draft)
    draft = replace(draft, block_channels=-(-shape.out_channels // plan.step) * plan.step)
    repeats = shape.batch * math.prod(plan.outer)
    return replace(draft, block_rows=largest(1, _share(shape.output[-2], repeats, _tasks_wanted(threads))))


def _open_form(shape: ConvShape, chosen: CpuWindowSchedule, isa: Isa) -> tuple[str, int]:
    """Return the form and its lanes: whether there is a full vector of columns is known only at run time."""
    if shape.channels_last:
        return chosen.form, chosen.lanes
    lanes = isa.lanes(shape.acc_dtype)
    if lanes < 2:
        return "channels", 1
    return "line" if why_no_line(shape, lanes) is None else "across", lanes


def _tasks_wanted(threads: int) -> int:
    return 1 if threads == 1 else TASKS_A_THREAD * threads


def _share(rows: Size, repeats: Size, tasks: int) -> Size:
    """Return the rows per task for at least `tasks` tasks, if there are enough rows."""
    return rows if tasks == 1 else ceil_div(rows * repeats, tasks)
