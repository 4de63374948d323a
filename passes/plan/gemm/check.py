"""Whether a GPU kernel can compute a contraction as scheduled."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from tilestitch.compiler.ir.sizes import is_open
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.positions import INT32_ELEMENTS
from tilestitch.passes.plan.access.windows import why_not_direct
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.codes import why_not_codes
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.gemv import (
    ROWS_AT_A_TIME,
    gemv_tile,
    has_few_rows,
    open_gemv_tile,
    with_large_right,
)
from tilestitch.passes.plan.gemm.kernels import why_not_mma, why_not_wgmma, why_not_wgmma_tile
from tilestitch.passes.plan.gemm.partition import cut, partitioned
from tilestitch.passes.plan.gemm.rows_after import WARP_ROWS, RowsAfter
from tilestitch.passes.plan.gemm.tiles import (
    FRAGMENT_COLUMNS,
    FRAGMENT_ROWS,
    QUAD,
    GemvTile,
    MmaTile,
    OpenGemvTile,
    SimtTile,
    WgmmaTile,
)
from tilestitch.passes.plan.gemm.tma import cut_to_patches, line
from tilestitch.passes.plan.gemm.units import FEW_ROWS
from tilestitch.passes.plan.schedule_check import MOST_STATIC_SHARED_BYTES, WARP, block_size, row_reasons
from tilestitch.passes.plan.schedules import BandSchedule, DirectSchedule, GemmSchedule, OpenGemmSchedule, RowSchedule

STAGE_LINE_BYTES = 64
"""Bytes of k in a stage of mma.sync, whatever the elements."""
MOST_SUMS = 128
"""Most accumulator registers of a thread."""
MOST_BLOCKS = 2**31 - 1
"""Most blocks of a launch; kernels count them in 32 bits."""


@dataclass(frozen=True)
class Machine:
    """What kernels may use: the oldest compute capability (times ten), the exact architecture if it has a suffix, and
    the shared memory per block.
    """

    name: str
    capability: int
    specific: str | None
    shared_bytes_per_block: int


def why_not_scheduled(group: AnchoredGroup, schedule: GemmSchedule | DirectSchedule, machine: Machine) -> str | None:
    """Return why no kernel computes a contraction as scheduled on a machine; None if one does."""
    return next(_reasons(group, schedule, machine), None)


def why_no_band(after: RowsAfter, gemm: GemmSchedule, rows: RowSchedule, band: BandSchedule) -> str | None:
    """Return why the rows after a GEMM cannot be computed in its launch as scheduled; None if they can."""
    if isinstance(gemm.tile, GemvTile):
        return "blocks of gemv have no bands of rows"
    threads = WARP if isinstance(gemm.tile, WgmmaTile) else gemm.tile.threads
    if rows.threads != threads or rows.blocks_per_row != 1:
        return f"{threads} threads share the rows of a band, not {rows.threads} of {rows.blocks_per_row} blocks"
    if not band.share_rows or not band.resident_blocks:
        return f"a share has {band.share_rows} rows, the device holds {band.resident_blocks} blocks: at least one"
    most = WARP_ROWS * gemm.tile.rows if isinstance(gemm.tile, WgmmaTile) else gemm.tile.bm
    if band.share_rows > most:
        return f"a share has {band.share_rows} rows, a band {most}"
    if max(band.polls, band.resident_blocks) > MOST_BLOCKS:
        return f"{band.polls} polls, {band.resident_blocks} resident blocks: at most {MOST_BLOCKS}"
    return next(row_reasons(rows, after.walk), None)


def _reasons(group: AnchoredGroup, schedule: GemmSchedule | DirectSchedule, machine: Machine) -> Iterator[str]:
    if isinstance(schedule, DirectSchedule):
        yield from _direct(group, schedule)
        return
    problem = _why_not_operands(group)
    if problem is not None:
        yield problem
        return
    gemm = gemm_of(group)
    if gemm is None:
        yield f"groups of channels of {group.anchor.name} are too narrow for tiles; they are computed directly"
        return
    if not schedule.split_k or not schedule.tile_rows:
        yield f"{schedule.split_k} parts of the reduction, tiles by {schedule.tile_rows} rows: there is at least one"
    if isinstance(schedule, OpenGemmSchedule):
        if not is_open(gemm.m) or any(map(is_open, (gemm.n, gemm.k, gemm.batch))):
            yield "with memory for partial sums its rows are open, and neither its columns, steps nor batch"
            return
        if not all(0 <= each < INT32_ELEMENTS for each in (schedule.kept_elements, schedule.counters)):
            yield f"{schedule.kept_elements} kept_elements or {schedule.counters} counters are too many or few"
    if schedule.split_k > 1 and is_open(gemm.elements) and not isinstance(schedule, OpenGemmSchedule):
        yield f"{schedule.split_k} parts of the reduction leave sums of open size; it has one part where sizes are open"
        return
    if schedule.blocks and not isinstance(schedule.tile, WgmmaTile):
        yield f"only blocks of wgmma walk over tiles; {schedule.blocks} are given for {schedule.tile.template}"
    yield from _tile(schedule, gemm, machine)
    yield from _cuts(schedule, gemm)


def _direct(group: AnchoredGroup, schedule: DirectSchedule) -> Iterator[str]:
    """Yield why no threads compute a result of a convolution each."""
    yield from block_size(schedule.threads)
    problem = (
        "a matmul is not computed directly; it wants tiles" if group.is_matmul else why_not_direct(group, schedule)
    )
    if problem is not None:
        yield problem


def _why_not_operands(group: AnchoredGroup) -> str | None:
    """Return why tiles cannot read the operands: weights in quantised blocks are decoded, and must be constants."""
    if group.blocks is None:
        return None
    problem = why_not_codes(group.blocks, group.anchor.inputs[0].dtype)
    if problem is None and (group.anchor.attrs.get("rounds") or group.anchor.inputs[1].data is None):
        return "kernels of GPUs round no activations, and read weights in blocks that are constants"
    return problem


def _tile(schedule: GemmSchedule, gemm: Gemm, machine: Machine) -> Iterator[str]:
    match schedule.tile:
        case OpenGemvTile():
            yield from _open_gemv(schedule.tile, gemm)
        case GemvTile():
            yield from _gemv(schedule.tile, gemm)
        case SimtTile():
            yield from _simt(schedule.tile, gemm)
        case MmaTile():
            yield from _mma(schedule.tile, gemm, machine.capability, machine.shared_bytes_per_block)
        case WgmmaTile():
            yield from _wgmma(schedule.tile, schedule, gemm, machine.name, machine.specific)


def _open_gemv(tile: OpenGemvTile, gemm: Gemm) -> Iterator[str]:
    """Yield the tiles that there are if it is none of them."""
    if tile.along_k and not gemm.units.dense:
        yield f"open_gemv along k has no columns between units of {gemm.units.gates} gates"
    if tile.bm not in ROWS_AT_A_TIME or open_gemv_tile(gemm, tile.bm) != tile:
        found = ", ".join(str(open_gemv_tile(gemm, rows)) for rows in ROWS_AT_A_TIME)
        yield f"the only tiles of any number of rows here are {found}, not {tile}"


def _gemv(tile: GemvTile, gemm: Gemm) -> Iterator[str]:
    """Yield why there is no such tile: the right operand decides the only one."""
    if is_open(gemm.m):
        yield f"gemv has at most {FEW_ROWS} rows, not {gemm.m}; there is open_gemv for that"
    elif not has_few_rows(gemm):
        yield f"gemv has at most {FEW_ROWS} rows, not {gemm.m}"
    elif gemv_tile(with_large_right(gemm)) != tile:
        yield f"the only tile of gemv here is {gemv_tile(with_large_right(gemm))}, not {tile}"


def _cuts(schedule: GemmSchedule, gemm: Gemm) -> Iterator[str]:
    """Yield why there are no such parts or rows of tiles."""
    gemm, tiles = partitioned(gemm, schedule)
    if tiles.parts != schedule.split_k:
        steps = ceil(gemm.k / schedule.tile.bk)
        yield f"split_k is {schedule.split_k}: {steps} steps of the reduction are cut into {tiles.parts} parts by that"
    if tiles.tile_rows != schedule.tile_rows:
        yield f"tile_rows is {schedule.tile_rows}: there are {tiles.m_blocks} rows of tiles"


def _simt(tile: SimtTile, gemm: Gemm) -> Iterator[str]:
    """Yield why a SIMT tile is impossible: threads have whole groups of rows and columns, and load equal shares of both
    operands.
    """
    cells = (tile.tm, tile.tn)
    fits = tile.bm * tile.bn and all(cell in (QUAD, 2 * QUAD) for cell in cells)
    if not fits or tile.bm % tile.tm or tile.bn % tile.tn:
        yield f"threads with {tile.tm} x {tile.tn} results do not fill a tile of {tile.bm} x {tile.bn}"
        return
    if not tile.slices or not tile.bk or tile.bk % tile.slices or tile.bm % 16 or tile.bn % 16:
        yield f"{tile.slices} slices do not share {tile.bk} steps of a tile whose edges are multiples of 16"
        return
    threads = tile.threads
    yield from block_size(threads)
    if threads % WARP or tile.bm * tile.bk % threads or tile.bn * tile.bk % threads:
        yield f"{threads} threads do not share {tile.bk} steps of {tile.bm} rows and {tile.bn} columns evenly"
    nbytes = max(4, storage_bytes(gemm.acc_dtype)) * tile.shared_elements
    if nbytes > MOST_STATIC_SHARED_BYTES:
        yield f"the tile takes {nbytes} bytes of shared memory, more than {MOST_STATIC_SHARED_BYTES}"


def _mma(tile: MmaTile, gemm: Gemm, capability: int, shared_limit: int) -> Iterator[str]:
    reason = why_not_mma(gemm, capability)
    if reason is not None:
        yield f"mma.sync does not compute it: {reason}"
        return
    if tile.itemsize != storage_bytes(gemm.a.dtype):
        yield f"a tile for elements of {tile.itemsize} bytes, which have {storage_bytes(gemm.a.dtype)}"
    if (
        not tile.wm * tile.wn * tile.bm * tile.bn
        or tile.bm % (FRAGMENT_ROWS * tile.wm)
        or tile.bn % (2 * FRAGMENT_COLUMNS * tile.wn)
    ):
        yield f"{tile.wm} x {tile.wn} warps do not share a tile of {tile.bm} x {tile.bn}"
        return
    yield from block_size(tile.threads)
    if tile.bk * tile.itemsize != STAGE_LINE_BYTES:
        yield f"a stage has {STAGE_LINE_BYTES} bytes of k, not {tile.bk * tile.itemsize}"
    elif tile.bm * 4 % tile.threads or tile.bn * 4 % tile.threads:
        yield f"{tile.threads} threads do not fetch {tile.bm} rows and {tile.bn} columns evenly"
    if tile.rows * tile.columns * 4 > MOST_SUMS:
        yield f"a thread would hold {tile.rows * tile.columns * 4} sums, more than {MOST_SUMS}"
    if tile.stages < 2 or tile.shared_bytes > shared_limit:
        yield f"{tile.stages} stages (at least 2) take {tile.shared_bytes} bytes of shared memory, of {shared_limit}"


def _wgmma(tile: WgmmaTile, schedule: GemmSchedule, gemm: Gemm, name: str, specific: str | None) -> Iterator[str]:
    reason = why_not_wgmma(gemm, name, specific) or why_not_wgmma_tile(gemm, tile)
    if reason is not None:
        yield f"wgmma does not compute it: {reason}"
        return
    if tile.bk != line(gemm.a.dtype):
        yield f"a stage has {line(gemm.a.dtype)} steps of {gemm.a.dtype}, not {tile.bk}"
    if not schedule.blocks or schedule.blocks % tile.cluster:
        yield f"{schedule.blocks} blocks are not whole clusters of {tile.cluster}"
    tiles = cut(cut_to_patches(gemm, tile.bm), (tile.bm, tile.bn, tile.bk), max(1, schedule.split_k))
    most = tiles.batch * ceil(tiles.m_blocks / tile.cluster) * tile.cluster * tiles.n_blocks * tiles.parts
    if schedule.blocks > most:
        yield f"{schedule.blocks} blocks walk over {most} tiles; there are no more blocks than tiles"
