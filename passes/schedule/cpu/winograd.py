"""Schedules of convolutions by Winograd's algorithm, where it applies."""

from __future__ import annotations

from dataclasses import replace

from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.cpu.images import ConvShape
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.cpu.schedules import CpuWinogradSchedule
from tilestitch.passes.plan.cpu.winograd import GEMMS, OUTPUTS, WinogradPlan, why_not_winograd

from .cycles import conv_task
from .tasks import choose_blocks
from .tiles import LAST_CACHE_BYTES, lanes_of, panel_cycles, tile_limits

LEAST_CHANNELS = 8
"""Input and output channels below which the algorithm saves nothing."""


def choose_winograd(shape: ConvShape, isa: Isa, threads: int) -> CpuWinogradSchedule | None:
    """Return the best schedule for a convolution; None where there is none, where transforms cost more than they save,
    or where a row of tiles, which a task takes whole, exceeds the last-level cache.
    """
    if why_not_winograd(shape, shape.rank) is not None or min(shape.group_in, shape.group_out) < LEAST_CHANNELS:
        return None
    lanes = lanes_of(shape.group_out, shape.acc_dtype, isa)
    first = CpuWinogradSchedule(OUTPUTS, OUTPUTS, 1, lanes, 1, 1, stage=True, spill=True)
    rows = WinogradPlan.of(shape, first).y.parts
    if WinogradPlan.of(shape, first).offsets[1] > LAST_CACHE_BYTES:
        return None
    draft = _tile(shape, replace(first, block_tiles=rows), isa)
    plan = WinogradPlan.of(shape, draft)
    task = conv_task(plan, isa)

    def cycles(tiles: int, panels: int) -> float | None:
        block = replace(plan, schedule=replace(draft, block_tiles=tiles))
        return None if tiles > 1 and block.offsets[1] > isa.l2_bytes // 2 else task(tiles, panels)

    block_tiles, block_panels = choose_blocks(rows, plan.panels, shape.batch * shape.groups, threads, cycles)
    final = _tile(shape, replace(draft, block_tiles=block_tiles), isa)
    panels = WinogradPlan.of(shape, final).panels
    filters = GEMMS * shape.group_in * shape.group_out * storage_bytes(shape.w_dtype)
    return replace(
        final, block_panels=min(panels, -(-block_panels * plan.tile.columns // (final.vectors * lanes))),
        prefetch_next=filters > isa.l2_bytes // 4,
    )  # fmt: skip


def _tile(shape: ConvShape, draft: CpuWinogradSchedule, isa: Isa) -> CpuWinogradSchedule:
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
