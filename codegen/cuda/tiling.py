"""Which tile a product is cut into, and its reduction into how many parts: the least estimated time on the device.

An SM works on several blocks together, as many as it holds. A step of them all takes as long as the slowest of three:
the arithmetic, at a rate that grows with the warps that hide each other's latencies; the operands' way from the L2
cache; the latency of memory, shared by the steps that are fetched ahead. The constants are planning figures from
published microbenchmarks of Ampere and Hopper; none was fitted to these kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

from tilestitch.codegen.compute.dtypes import storage_bits
from tilestitch.cost_model.devices import Device

from .bands import RowsBehind
from .partition import Partition, cut
from .product import Product

LEAST_PART = 128
"""Steps of the reduction that are worth a part of their own."""
PARTS = (1, 2, 4, 8, 16, 32)
HALF_RATE_WARPS = 3
"""With so many warps, an SM reaches half the rate of a tile."""
MEMORY_LATENCY_CYCLES = 500
BARRIER_CYCLES = 40
START_CYCLES = 1500
"""Of a block: indices, the first operands, results behind the last step."""
L2_BYTES_PER_CYCLE = 48
"""Of one SM."""
JOIN_CYCLES = 2000
"""Until the last block of a tile knows that it is the last, and has added a first round of partial sums."""
SUM_BYTES_PER_CYCLE = 16
"""Of one SM, for partial sums that are written and read again."""
KEPT_SHARED_BYTES = 1024


class Tile(Protocol):
    """A tile of bm x bn results, computed by `threads` threads in steps of bk.

    shared_bytes: of a block. speed: the share of the device's arithmetic rate that a full SM reaches. ahead: how many
    steps are fetched before they are used.
    """

    @property
    def bm(self) -> int: ...
    @property
    def bn(self) -> int: ...
    @property
    def bk(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def speed(self) -> float: ...
    @property
    def ahead(self) -> int: ...


AnyTile = TypeVar("AnyTile", bound=Tile)


def choose(
    product: Product, tiles: Sequence[AnyTile], device: Device, dtype: str, behind: RowsBehind | None = None
) -> tuple[AnyTile, Partition]:
    """The tile and the partition with the least estimated time; `dtype` is what the device multiplies (`tfloat32`).

    behind: what blocks do for bands of rows behind the product.
    """
    options = [
        (tile, cut(product, (tile.bm, tile.bn, tile.bk), parts))
        for tile in tiles
        for parts in _parts(product, tile, device)
    ]
    return min(options, key=lambda option: cycles_with(behind, product, option[0], option[1], device, dtype))


def cycles_with(
    behind: RowsBehind | None, product: Product, tile: Tile, partition: Partition, device: Device, dtype: str
) -> float:
    """Cycles of an SM until the last one is done, with what its block does behind the product."""
    own = estimated_cycles(product, tile, partition, device, dtype)
    if behind is None:
        return own
    return own + behind.cycles(behind.band(min(tile.bm, product.m), partition.n_blocks, tile.threads))


def _parts(product: Product, tile: Tile, device: Device) -> list[int]:
    if cut(product, (tile.bm, tile.bn, tile.bk), 1).blocks >= 2 * device.sm_count:
        return [1]
    return [parts for parts in PARTS if parts == 1 or product.k >= parts * LEAST_PART]


def estimated_cycles(product: Product, tile: Tile, partition: Partition, device: Device, dtype: str) -> float:
    """Cycles of an SM until the last one is done."""
    on_one = math.ceil(partition.blocks / device.sm_count)
    together = min(on_one, resident_blocks(tile, device))
    warps = together * tile.threads / 32
    rate = multiply_adds_per_cycle(device, dtype) * tile.speed * warps / (warps + HALF_RATE_WARPS)
    step_bytes = (tile.bm * storage_bits(product.a.dtype) + tile.bn * storage_bits(product.b.dtype)) * tile.bk / 8
    step = max(
        together * tile.bm * tile.bn * tile.bk / rate,
        together * step_bytes / L2_BYTES_PER_CYCLE,
        MEMORY_LATENCY_CYCLES / tile.ahead + BARRIER_CYCLES,
    )
    cycles = math.ceil(on_one / together) * (START_CYCLES + partition.steps * step)
    if partition.parts == 1:
        return cycles
    sums_bytes = 2 * partition.parts * product.elements * storage_bits(product.acc_dtype) / 8
    return cycles + JOIN_CYCLES + sums_bytes / (device.sm_count * SUM_BYTES_PER_CYCLE)


def multiply_adds_per_cycle(device: Device, dtype: str) -> float:
    """Of one SM. Integers on the ordinary units: half the rate of float32."""
    if dtype not in device.peak_flops:
        return multiply_adds_per_cycle(device, "float32") / 2
    return device.peak_flops[dtype] / 2 / device.sm_count / device.clock_hz


def resident_blocks(tile: Tile, device: Device) -> int:
    """Blocks that a multiprocessor holds, registers aside."""
    fits = device.shared_bytes_per_sm // (tile.shared_bytes + KEPT_SHARED_BYTES)
    return max(1, min(device.blocks_per_sm, device.threads_per_sm // tile.threads, fits))


def held(tile: Tile, device: Device) -> int:
    """Blocks that the device holds at a time, registers aside."""
    return device.sm_count * resident_blocks(tile, device)
