"""The tiles of GEMM kernels, and the fraction of the arithmetic rate that a full SM reaches with each.

The fractions are planning figures from counting instructions; none was measured.
"""

from dataclasses import replace

from tilestitch.cost_model.constants import GPU_RESERVED_SHARED_BYTES
from tilestitch.cost_model.devices import Device
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.kernels import AMPERE, why_not_wgmma_tile
from tilestitch.passes.plan.gemm.tiles import MmaTile, SimtTile, Tile, WgmmaTile
from tilestitch.passes.plan.gemm.tma import line

_SIMT = (
    (SimtTile(128, 128, 8, 8, 8), 0.95),
    (SimtTile(128, 64, 8, 8, 4), 0.85),
    (SimtTile(64, 128, 8, 4, 8), 0.85),
    (SimtTile(64, 64, 16, 4, 4), 0.65),
    (SimtTile(64, 64, 32, 8, 8, slices=4), 0.9),
    (SimtTile(64, 32, 32, 8, 4, slices=4), 0.8),
    (SimtTile(32, 64, 32, 4, 8, slices=4), 0.8),
    (SimtTile(32, 32, 64, 4, 8, slices=8), 0.75),
    (SimtTile(16, 64, 64, 4, 4, slices=4), 0.6),
    (SimtTile(64, 16, 64, 4, 4, slices=4), 0.6),
)
_WIDE = (
    (SimtTile(128, 64, 8, 8, 4), 0.85),
    (SimtTile(64, 128, 8, 4, 8), 0.85),
    (SimtTile(64, 64, 16, 4, 4), 0.65),
    (SimtTile(32, 64, 16, 4, 4, slices=2), 0.65),
    (SimtTile(64, 32, 16, 4, 4, slices=2), 0.65),
    (SimtTile(32, 32, 32, 4, 4, slices=4), 0.65),
)
_MMA = (
    (MmaTile(128, 128, 32, 2, 4), 1.0),
    (MmaTile(128, 64, 32, 2, 2), 0.8),
    (MmaTile(64, 128, 32, 2, 2), 0.8),
    (MmaTile(64, 64, 32, 2, 2), 0.6),
    (MmaTile(32, 128, 32, 1, 4), 0.55),
    (MmaTile(32, 64, 32, 2, 2), 0.35),
    (MmaTile(64, 32, 32, 2, 2), 0.35),
)
_WGMMA = (
    (WgmmaTile(128, 256, 2, False, 4, cluster=2), 0.93),
    (WgmmaTile(128, 128, 1, True, 6, cluster=2), 0.88),
    (WgmmaTile(128, 256, 2, False, 4), 0.9),
    (WgmmaTile(256, 128, 2, False, 4), 0.9),
    (WgmmaTile(128, 192, 2, False, 5), 0.87),
    (WgmmaTile(128, 128, 1, True, 6), 0.85),
    (WgmmaTile(64, 256, 1, True, 5), 0.8),
    (WgmmaTile(128, 128, 2, False, 6), 0.75),
    (WgmmaTile(128, 64, 1, False, 4), 0.6),
    (WgmmaTile(64, 128, 1, False, 4), 0.6),
    (WgmmaTile(64, 64, 1, False, 4), 0.45),
)
SIMT_TILES = tuple(tile for tile, _ in _SIMT)
WIDE_TILES = tuple(tile for tile, _ in _WIDE)
"""Tiles for sums of 8 bytes, which take registers in pairs and twice the shared memory."""
MMA_TILES = tuple(tile for tile, _ in _MMA)
"""Tiles for half floats. Tiles of other elements have the same number of bytes along k."""
WGMMA_TILES = tuple(tile for tile, _ in _WGMMA)
_SPEEDS: dict[Tile, float] = {**dict(_WIDE), **dict(_SIMT), **dict(_MMA), **dict(_WGMMA)}


def mma_tiles(itemsize: int, capability: int = AMPERE) -> tuple[MmaTile, ...]:
    """Return the tiles for elements of so many bytes on GPUs of a compute capability (times ten). GPUs without
    asynchronous copies wait for each stage, so that more than two only take shared memory from other blocks.
    """
    stages = MMA_TILES[0].stages if capability >= AMPERE else 2
    return tuple(replace(tile, bk=2 * tile.bk // itemsize, itemsize=itemsize, stages=stages) for tile in MMA_TILES)


def wgmma_tiles(gemm: Gemm) -> tuple[WgmmaTile, ...]:
    """Return the tiles for a GEMM's elements."""
    tiles = (replace(tile, bk=line(gemm.a.dtype)) for tile in WGMMA_TILES)
    return tuple(tile for tile in tiles if why_not_wgmma_tile(gemm, tile) is None)


def resident_blocks(tile: SimtTile | MmaTile | WgmmaTile, device: Device) -> int:
    """Return the blocks that a multiprocessor holds, registers aside."""
    reserved = GPU_RESERVED_SHARED_BYTES if device.capability >= AMPERE else 0
    fits = device.shared_bytes_per_sm // (tile.shared_bytes + reserved)
    return max(1, min(device.blocks_per_sm, device.threads_per_sm // tile.threads, fits))


def speed_of(tile: Tile) -> float:
    """Return the fraction of the arithmetic rate, whatever the elements. A tile that is never chosen, from an edited
    plan, counts as the slowest of its kind.
    """
    alike: Tile = tile
    match tile:
        case MmaTile():
            alike = replace(tile, bk=tile.bk * tile.itemsize // 2, itemsize=2, stages=MMA_TILES[0].stages)
        case WgmmaTile():
            alike = replace(tile, bk=64)
    slowest = min((speed for known, speed in _SPEEDS.items() if type(known) is type(tile)), default=1.0)
    return _SPEEDS.get(alike, slowest)
