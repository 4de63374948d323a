"""Schedules of convolutions on a CPU, transposed ones included."""

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import lru_cache

from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.cpu.conv import LEAST_CHANNELS, ConvPlan, ConvTransposePlan, ConvTransposeShape
from tilestitch.passes.plan.cpu.images import ConvShape
from tilestitch.passes.plan.cpu.isa import TILE_ROWS, Dot, Isa
from tilestitch.passes.plan.cpu.schedules import (
    CpuConvSchedule,
    CpuConvTransposeSchedule,
    CpuDotConvSchedule,
    CpuTileConvSchedule,
    CpuWinogradSchedule,
)
from tilestitch.passes.plan.cpu.tiling import Split, split_at_most
from tilestitch.passes.plan.cpu.winograd import GEMMS, OUTPUTS, WinogradPlan, why_not_winograd

from .cycles import conv_cycles, conv_task, conv_transpose_task
from .tasks import SHAPES, choose_blocks
from .tiles import LAST_CACHE_BYTES, choose_tile, lanes_of, panel_cycles, tile_limits, widens

LEAST_TRANSFORMED = 8
"""Input and output channels below which the algorithm saves nothing."""


def choose_winograd(shape: ConvShape, isa: Isa, threads: int) -> CpuWinogradSchedule | None:
    """Return the best schedule for a convolution; None where there is none, where transforms cost more than they save,
    or where a row of tiles, which a task takes whole, exceeds the last-level cache.
    """
    if why_not_winograd(shape, shape.rank) is not None or min(shape.group_in, shape.group_out) < LEAST_TRANSFORMED:
        return None
    lanes = lanes_of(shape.group_out, shape.acc_dtype, isa)
    first = CpuWinogradSchedule(OUTPUTS, OUTPUTS, 1, lanes, 1, 1, stage=True, spill=True)
    rows = WinogradPlan.of(shape, first).y.parts
    if WinogradPlan.of(shape, first).offsets[1] > LAST_CACHE_BYTES:
        return None
    draft = _transformed_tile(shape, replace(first, block_tiles=rows), isa)
    plan = WinogradPlan.of(shape, draft)
    task = conv_task(plan, isa)

    def cycles(tiles: int, panels: int) -> float | None:
        block = replace(plan, schedule=replace(draft, block_tiles=tiles))
        return None if tiles > 1 and block.offsets[1] > isa.l2_bytes // 2 else task(tiles, panels)

    block_tiles, block_panels = choose_blocks(rows, plan.panels, shape.batch * shape.groups, threads, cycles)
    final = _transformed_tile(shape, replace(draft, block_tiles=block_tiles), isa)
    panels = WinogradPlan.of(shape, final).panels
    filters = GEMMS * shape.group_in * shape.group_out * storage_bytes(shape.w_dtype)
    return replace(
        final, block_panels=min(panels, -(-block_panels * plan.tile.columns // (final.vectors * lanes))),
        prefetch_next=filters > isa.l2_bytes // 4,
    )  # fmt: skip


def _transformed_tile(shape: ConvShape, draft: CpuWinogradSchedule, isa: Isa) -> CpuWinogradSchedule:
    """Return the register tile with the fewest estimated cycles for the tiles of a task."""
    tiles = draft.block_tiles * WinogradPlan.of(shape, draft).x.parts
    best: tuple[float, int, int] | None = None
    for vectors, limit in tile_limits(shape.group_out, draft.lanes, isa):
        for rows in range(1, min(limit, tiles) + 1):
            cycles = -(-tiles // rows) * panel_cycles(rows, shape.group_out, vectors, draft.lanes, isa)
            candidate = (cycles, vectors, rows)
            if best is None or candidate < best:
                best = candidate
    assert best is not None
    return replace(draft, vectors=best[1], tiles=best[2])


MAX_BORDER_TAPS = 48
"""Most kernel taps written out for border tiles, each with its own loop."""
WORTH = 1.1
"""How many times longer direct convolution must take for Winograd's algorithm to be chosen: its filters are larger."""
STREAM_CYCLES = 0.75
"""Cycles to read a filter element from memory, of float32 or bfloat16."""
EPILOGUE_REGISTERS = 7
"""Registers for an epilogue interleaved with the steps of a reduction."""
MEETING = 1.2
"""Slowdown of a tile whose pixels share a set of the first-level cache."""


@lru_cache(SHAPES)
def choose_conv(shape: ConvShape, isa: Isa, threads: int) -> CpuConvSchedule:
    """Return the schedule: tiles, tasks, whether the input is copied, and whether Winograd's algorithm is used. Raises
    ValueError for an empty output: nothing is launched.
    """
    direct = choose_direct(shape, isa, threads)
    dots = isa.dot_of(shape) is not None or any(shape.multiplied_by(dot) for dot in isa.tile_dots)
    winograd = choose_winograd(shape, isa, threads) if isa.winograd and not dots else None
    if winograd is None:
        return direct
    plans = WinogradPlan.of(shape, winograd), ConvPlan.of(shape, direct)
    transformed, written = (_cycles_with_filters(plan, isa) for plan in plans)
    return winograd if transformed * WORTH < written else direct


def _cycles_with_filters(plan: ConvPlan, isa: Isa) -> float:
    """Return the cycles of all tasks and of reading the filters: models have more weights than caches hold, so that
    these come from memory in every run. Prefetching hides little of it.
    """
    shape = plan.shape
    return conv_cycles(plan, isa) + shape.groups * plan.steps * plan.neighbours * shape.group_out * STREAM_CYCLES


def choose_direct(shape: ConvShape, isa: Isa, threads: int) -> CpuConvSchedule:
    """Return the schedule without Winograd's algorithm."""
    whole = shape.in_planes()
    if min(whole.batch, whole.group_out, *whole.output) < 1:
        raise ValueError(f"convolution with an empty result {shape}; skip the launch")
    dot = next((dot for dot in isa.tile_dots if whole.multiplied_by(dot)), None)
    vectors = _in_vectors(shape, whole, isa, threads)
    if dot is None or not whole.reduction:
        return vectors
    candidates = [vectors, *_in_tiles(shape, whole, dot, isa, threads)]
    return min(candidates, key=lambda schedule: conv_cycles(ConvPlan(whole, shape.rank, schedule), isa))


def _in_tiles(shape: ConvShape, whole: ConvShape, dot: Dot, isa: Isa, threads: int) -> Iterator[CpuConvSchedule]:
    """Yield schedules with one or two tiles of pixels, side by side or stacked, by up to two tiles of channels."""
    height, width = whole.output[-2:]
    beside = min(2, ceil_div(width, TILE_ROWS))
    splits = {(1, TILE_ROWS), (1, beside * TILE_ROWS)} | ({(2, width)} if beside == 1 and height > 1 else set())
    for rows, columns in sorted(splits):
        vectors = min(2, ceil_div(whole.group_out, TILE_ROWS))
        draft = ConvPlan(
            whole, shape.rank,
            CpuTileConvSchedule(rows, columns, vectors, TILE_ROWS, 1, 1, stage=True, spill=True, dot=dot.name),
        )  # fmt: skip
        block_tiles, block_panels = _blocks(draft, isa, threads)
        yield replace(draft.schedule, block_tiles=block_tiles, block_panels=block_panels)


def _in_vectors(shape: ConvShape, whole: ConvShape, isa: Isa, threads: int) -> CpuConvSchedule:
    tile, dot = _choose_tile(whole, isa), isa.dot_of(whole)
    assert tile is not None
    if dot is None:
        copied = not whole.plain or not whole.channels_last or whole.x_dtype != whole.acc_dtype
        draft = ConvPlan(whole, shape.rank, tile)
    else:
        copied = not whole.reads_in_place(dot)
        draft = ConvPlan(whole, shape.rank, CpuDotConvSchedule(**asdict(tile), dot=dot.name))
    stage = copied or (whole.padded and not _can_skip(draft)) or (draft.pixels_meet and _copies_sooner(whole))
    draft = replace(
        draft, schedule=replace(draft.schedule, stage=stage, spill=whole.long_epilogue or whole.y_channels_first)
    )
    draft = _interleaved(draft, isa) or draft
    block_tiles, block_panels = _blocks(draft, isa, threads)
    right_bytes = whole.reduction * whole.group_out * storage_bytes(whole.w_dtype)
    tiles = block_tiles * draft.x.parts
    widen = whole.packed and draft.dot is None and widens(whole.w_dtype, tiles)
    rows_outer = whole.packed and right_bytes <= isa.l2_bytes // 4 and not widen and not draft.transposes_sums
    return replace(
        draft.schedule, block_tiles=block_tiles, block_panels=block_panels, widen_right=widen, rows_outer=rows_outer,
        prefetch_next=whole.packed and not rows_outer and draft.panels > 1 and tiles >= draft.tile.vectors,
    )  # fmt: skip


def _interleaved(draft: ConvPlan, isa: Isa) -> ConvPlan | None:
    """Return the plan with lower tiles, whose epilogues are interleaved with the steps of the next ones, if there is
    such a kernel.

    Not with pairs (`vpmaddwd`): those take four times as many instructions, and interleaving epilogues saves no time.
    Nor where both need the same ports: tiles would be lower without benefit, and sums stored and reloaded.
    """
    schedule, few = draft.schedule, isa.vector_registers < 4 * EPILOGUE_REGISTERS
    if isa.shares_ports or few or draft.dot is None or draft.dot.name != "vpdpbusd" or draft.skips or schedule.spill:
        return None
    tile = _choose_tile(draft.shape, isa, interleaved=True)
    if tile is None:
        return None
    tile = replace(tile, stage=schedule.stage, spill=True)
    plan = replace(draft, schedule=CpuDotConvSchedule(**asdict(tile), dot=draft.dot.name, interleave=True))
    return plan if next(plan.reasons(), None) is None else None


def _can_skip(plan: ConvPlan) -> bool:
    """Return whether skipping taps pays: enough work per tap, and few tiles that need separate code."""
    return plan.shape.group_in >= LEAST_CHANNELS and plan.border_taps <= MAX_BORDER_TAPS


def _copies_sooner(shape: ConvShape) -> bool:
    """Return whether copying pixels that share a cache set pays, although taps in the padding are then multiplied."""
    if not shape.padded:
        return True
    met = math.prod(
        sum(0 <= shape.source(dim, at, tap) < shape.spatial[dim] for at in range(extent) for tap in range(kernel))
        / (extent * kernel)
        for dim, (extent, kernel) in enumerate(zip(shape.output, shape.kernel, strict=True))
    )
    return met * MEETING > 1


def _pixel_split(shape: ConvShape, limit: int) -> tuple[Split, Split]:
    """Return the rows and columns split so that a tile has at most `limit` pixels: part of a row, or several short
    rows.
    """
    height, width = shape.output[-2:]
    if width >= limit:
        return Split(height, height), split_at_most(width, limit)
    return split_at_most(height, limit // width), Split(width, 1)


def _choose_tile(shape: ConvShape, isa: Isa, interleaved: bool = False) -> CpuConvSchedule | None:
    """Return the register tile with the fewest estimated cycles for one image (compare `choose_tile`), in one task;
    None if the epilogue is to be interleaved and no panels are whole.
    """
    taken = EPILOGUE_REGISTERS if interleaved else 0
    lanes = lanes_of(shape.group_out, shape.acc_dtype, isa, isa.dot_of(shape))
    best: tuple[float, int, int] | None = None
    for vectors, limit in tile_limits(shape.group_out, lanes, isa, taken):
        if interleaved and shape.group_out % (vectors * lanes):
            continue
        for pixels in range(1, limit + 1):
            y, x = _pixel_split(shape, pixels)
            cycles = sum(
                many * count * panel_cycles(rows * columns, shape.group_out, vectors, lanes, isa)
                for rows, many in y.sizes()
                for columns, count in x.sizes()
            )
            candidate = (cycles, vectors, pixels)
            if best is None or candidate < best:
                best = candidate
    if best is None:
        return None
    y, x = _pixel_split(shape, best[2])
    return CpuConvSchedule(y.largest, x.largest, best[1], lanes, y.parts, 1)


def _blocks(plan: ConvPlan, isa: Isa, threads: int) -> tuple[int, int]:
    """Return the parts of rows and panels of one task, whose copied rows stay in half of the second-level cache."""
    shape, task = plan.shape, conv_task(plan, isa)
    element = storage_bytes(plan.staged_dtype)

    def cycles(tiles: int, panels: int) -> float | None:
        if tiles > 1:
            staged = replace(plan, schedule=replace(plan.schedule, block_tiles=tiles)).staged_shape
            if math.prod(staged) * element > isa.l2_bytes // 2:
                return None
        return task(tiles, panels)

    repeats = shape.batch * shape.groups * math.prod(plan.outer)
    return choose_blocks(plan.y.parts, plan.panels, repeats, threads, cycles)


def choose_conv_transpose(shape: ConvTransposeShape, isa: Isa, threads: int) -> CpuConvTransposeSchedule:
    """Return the schedule: tiles and tasks. Raises ValueError for an empty output."""
    if min(shape.batch, shape.group_out, *shape.output) < 1:
        raise ValueError(f"transposed convolution with an empty result {shape}; skip the launch")
    lanes = lanes_of(shape.group_out, shape.acc_dtype, isa)
    tile, _ = choose_tile(shape.phase, shape.group_out, lanes, isa)
    schedule = CpuConvTransposeSchedule(tile.rows, tile.vectors, tile.lanes, 1)
    plan = ConvTransposePlan(shape, schedule)
    task = conv_transpose_task(plan, isa)
    rows = shape.batch * shape.groups * math.prod(shape.output[:-1])
    _, panels = choose_blocks(1, plan.panels, rows, threads, task)
    return replace(schedule, block_panels=panels)
