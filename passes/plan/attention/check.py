"""Whether a GPU kernel can compute attention as scheduled."""

from collections.abc import Iterator
from itertools import chain

from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import HALVES, storage_bytes
from tilestitch.passes.plan.access.positions import INT32_ELEMENTS
from tilestitch.passes.plan.attention.operands import AttentionShape, attention_of
from tilestitch.passes.plan.attention.pieces import pieces_of, stage_bytes
from tilestitch.passes.plan.attention.tiles import (
    ACROSS,
    QUAD,
    STEP,
    WARP,
    AttentionMmaTile,
    AttentionSimtTile,
    padded,
)
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.check import Machine
from tilestitch.passes.plan.gemm.kernels import AMPERE, TURING
from tilestitch.passes.plan.schedule_check import block_size
from tilestitch.passes.plan.schedules import AttentionSchedule, OpenAttentionSchedule

MOST_DOUBLED_COLUMNS = 128
"""Most result columns for which a thread on the ordinary units holds the sums of eight rows."""
DOUBLED_KEYS = 64
"""Keys of a tile with eight rows per thread."""
ROWS = (2, 4, 8)
"""Rows that a thread on the ordinary units may have."""


def fits_mma(what: AttentionShape, capability: int) -> bool:
    """Return whether tensor cores can compute this attention."""
    dtype = what.query.dtype
    same = {what.key.dtype, what.value.dtype, what.weights} == {dtype}
    allowed = dtype in HALVES or (dtype == "float32" and what.tf32)
    least = TURING if dtype == "float16" else AMPERE
    return same and allowed and what.acc_dtype == "float32" and capability >= least


def why_not_attention(group: AnchoredGroup, schedule: AttentionSchedule, machine: Machine) -> str | None:
    """Return why no kernel computes attention as scheduled; None if one does."""
    what = attention_of(group)
    if not schedule.split_keys:
        return "the keys are cut into 0 parts; there is at least one"
    tile = schedule.tile
    reasons = _mma(tile, what, machine) if isinstance(tile, AttentionMmaTile) else _simt(tile, what)
    return next(chain(reasons, shared(tile, what, machine.shared_bytes_per_block), _parts(schedule, what)), None)


def _parts(schedule: AttentionSchedule, what: AttentionShape) -> Iterator[str]:
    """Yield why the keys cannot be split into the scheduled number of parts."""
    if isinstance(schedule, OpenAttentionSchedule):
        yield from _open_parts(schedule, what)
        return
    steps, parts = ceil_div(what.keys, schedule.tile.bn), what.parts(schedule)
    if parts != schedule.split_keys:
        yield f"split_keys is {schedule.split_keys}: {steps} tiles of keys are cut into {parts} parts by that"


def _open_parts(schedule: OpenAttentionSchedule, what: AttentionShape) -> Iterator[str]:
    if schedule.split_keys != 1:
        yield f"split_keys is {schedule.split_keys}; keys of open number are split at run time, so it is 1"
    if schedule.least_steps < 1:
        yield f"least_steps is {schedule.least_steps}; a part has at least one tile of keys"
    if schedule.kept_rows % schedule.tile.bm or not 0 <= schedule.kept_rows * (what.columns + 2) < INT32_ELEMENTS:
        yield f"the sums of {schedule.kept_rows} rows are no whole tiles of {schedule.tile.bm}, or too many or few"


def shared(tile: AttentionMmaTile | AttentionSimtTile, what: AttentionShape, limit: int) -> Iterator[str]:
    """Yield why a tile does not fit shared memory."""
    if isinstance(tile, AttentionMmaTile):
        nbytes = stage_bytes(tile, pieces_of(what.query, what.key, what.value, tile))
    else:
        nbytes = tile.shared_bytes
    if nbytes > limit:
        yield f"the tile takes {nbytes} bytes of shared memory, more than {limit}"


def _mma(tile: AttentionMmaTile, what: AttentionShape, machine: Machine) -> Iterator[str]:
    if not fits_mma(what, machine.capability):
        yield f"the tensor cores of {machine.name} do not compute attention of {what.query.dtype}"
    if (tile.width, tile.columns) != (padded(what.width), padded(what.columns)):
        wanted = f"{padded(what.width)} and {padded(what.columns)}"
        yield f"a tile for operands of width {tile.width} and {tile.columns}, not {wanted}"
    if tile.fragments not in (1, 2) or not tile.bn or tile.bn % STEP:
        yield f"{tile.fragments} fragments by {tile.bn} keys: one or two, and keys are a multiple of {STEP}"
    yield from block_size(tile.threads)


def _simt(tile: AttentionSimtTile, what: AttentionShape) -> Iterator[str]:
    itemsize = storage_bytes(what.acc_dtype)
    if (tile.width, tile.columns, tile.itemsize) != (what.width, what.columns, itemsize):
        yield f"a tile for another width than {what.width} and {what.columns}, or other sums than of {itemsize} bytes"
    whole = tile.rows in ROWS and tile.bm and tile.threads % WARP == 0 and tile.bm % tile.rows == 0
    if not whole or not tile.bn or tile.bn % ACROSS:
        yield f"threads with {tile.rows} rows do not fill a tile of {tile.bm} queries by {tile.bn} keys"
        return
    if tile.rows > QUAD and not doubles(tile):
        yield "threads do not hold the sums of eight rows"
    yield from block_size(tile.threads)


def doubles(tile: AttentionSimtTile) -> bool:
    """Return whether the sums of eight rows fit the registers of a thread."""
    return tile.itemsize == 4 and tile.columns <= MOST_DOUBLED_COLUMNS and tile.bn == DOUBLED_KEYS
