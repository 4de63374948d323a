"""What tiles of GEMMs do on a GPU, in numbers for the latency models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import SMALL_FLOATS, storage_bytes
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Part, Role, Tail, Traffic, Unit, kernel_of
from tilestitch.passes.plan.gemm.gemm import Gemm, OperandLayout
from tilestitch.passes.plan.gemm.gemv import seen_by
from tilestitch.passes.plan.gemm.partition import Partition, cut
from tilestitch.passes.plan.gemm.patches import cut_to_patches
from tilestitch.passes.plan.gemm.tiles import GemvTile, MmaTile, OpenGemvTile, Tile, WgmmaTile
from tilestitch.passes.plan.group import GroupKind
from tilestitch.passes.plan.launches.cuda.gemm import shared_bytes_of
from tilestitch.passes.plan.registers import gemm_registers
from tilestitch.passes.plan.schedules import GemmSchedule

from .gemm_tiles import speed_of

RESULT = "result"
"""What a candidate stores, by name."""
TENSOR_CORES: Mapping[type, Unit] = {MmaTile: "mma", WgmmaTile: "wgmma"}


@dataclass(frozen=True)
class Tiling:
    """How tiles do a contraction: `unit` multiplies elements of `dtype`; share: of its rate, what tiles compute in vain
    left out; calls_share: the same of special functions. steps, ahead, tail: as of a `Part`. again: how often each
    operand is asked for. widening: what makes floats of codes besides.
    """

    unit: Unit
    dtype: str
    share: float = 1.0
    steps: int = 0
    ahead: int = 1
    again: tuple[float, float] = (1.0, 1.0)
    tail: Tail | None = None
    calls_share: float = 1.0
    widening: tuple[Arithmetic, ...] = ()


def partition_of(gemm: Gemm, schedule: GemmSchedule) -> Partition:
    """Return how a scheduled GEMM is cut."""
    tile = schedule.tile
    return cut(_of_kernel(gemm, tile), (tile.bm, tile.bn, tile.bk), schedule.split_k, schedule.tile_rows)


def _of_kernel(gemm: Gemm, tile: Tile) -> Gemm:
    """Return the GEMM as its kernel sees it: with the large operand right, or with rows of patches."""
    if isinstance(tile, GemvTile):
        return seen_by(gemm, tile)
    return cut_to_patches(gemm, tile.bm) if isinstance(tile, WgmmaTile) else gemm


def tiling_of(gemm: Gemm, schedule: GemmSchedule) -> Tiling:
    """Return how the tiles of a schedule do a GEMM."""
    tile, partition = schedule.tile, partition_of(gemm, schedule)
    again, tail = _again(gemm, tile, partition), _joining(gemm, tile, partition)
    if isinstance(tile, GemvTile):
        useful = gemm.m / (partition.m_blocks * tile.bm) if isinstance(tile, OpenGemvTile) else 1.0
        widening = _widening(gemm, partition.m_blocks)
        return Tiling("fma", gemm.acc_dtype, useful or 1.0, again=again, tail=tail, widening=widening)
    # Blocks that walk over tiles have as many as the one with most.
    rounds = ceil(partition.blocks / schedule.blocks) if schedule.blocks else 1
    computed = rounds * schedule.blocks or partition.blocks
    useful = gemm.batch * gemm.m * gemm.n * gemm.k / (computed * tile.bm * tile.bn * partition.steps * tile.bk or 1)
    unit = TENSOR_CORES.get(type(tile), "fma")
    dtype = gemm.acc_dtype if unit == "fma" else _multiplied(unit, gemm.a.dtype)
    share, steps = speed_of(tile) * (useful or 1.0), partition.steps * rounds
    widening = _widening(gemm, partition.m_blocks)
    return Tiling(unit, dtype, share, steps, tile.ahead, again, tail, widening=widening)


def _widening(gemm: Gemm, times: int) -> tuple[Arithmetic, ...]:
    """Return what makes floats of weights in blocks: for each code, every time that it is read, a mask, a shift, a
    difference and a multiplication by its scale, as long as two multiply-adds take.
    """
    if gemm.b.codes is None:
        return ()
    return (Arithmetic("fma", "float32", 2 * times * gemm.b.elements, 1.0),)


def _multiplied(unit: Unit, dtype: str) -> str:
    """Return what the table of devices calls what tensor cores multiply: mma.sync makes half floats of those of 8 bits
    on sm_90a, where the other unit multiplies them as they are (seen in machine code).
    """
    if dtype in SMALL_FLOATS:
        return "float8" if unit == "wgmma" else "float16"
    return "tfloat32" if dtype == "float32" else dtype


def _again(gemm: Gemm, tile: Tile, partition: Partition) -> tuple[float, float]:
    """Return how often the elements of a and b are asked for: by every column, or row, of tiles; by every kernel
    position of a convolution. Blocks of a cluster ask once.
    """
    if isinstance(tile, GemvTile):
        again = float(partition.n_blocks), float(partition.m_blocks)
        return again if seen_by(gemm, tile).b.value is gemm.b.value else (again[1], again[0])
    shared = tile.cluster if isinstance(tile, WgmmaTile) else 1
    rows, columns = (gemm.batch * gemm.k * extent for extent in (gemm.m, gemm.n))
    return (
        partition.n_blocks * rows / (gemm.a.elements or 1),
        ceil(partition.m_blocks / shared) * columns / (gemm.b.elements or 1),
    )


def _joining(gemm: Gemm, tile: Tile, partition: Partition) -> Tail | None:
    """Return what the last block of a tile does where the reduction is in parts: it adds what all have left."""
    if partition.parts == 1:
        return None
    results = min(tile.bm, max(gemm.m, 1)) * tile.bn
    nbytes = partition.parts * results * storage_bytes(gemm.acc_dtype)
    return Tail(0, nbytes, partition.blocks // partition.parts)


# -- candidates --------------------------------------------------------------------------------------------------------


def candidate_facts(gemm: Gemm, schedule: GemmSchedule) -> KernelFacts:
    """Return the facts of a GEMM without what is fused with it, which is the same however it is scheduled."""
    tile, tiling, partition = schedule.tile, tiling_of(gemm, schedule), partition_of(gemm, schedule)
    own = _of_kernel(gemm, tile)
    dynamic, static = shared_bytes_of(own, tile)
    result_bytes = gemm.elements * storage_bytes(gemm.a.dtype)
    sums_bytes = partition.parts * own.elements * storage_bytes(gemm.acc_dtype)
    sums = (Traffic("sums", sums_bytes, sums_bytes, "temporary"),) if partition.parts > 1 else ()
    blocks = schedule.blocks or partition.blocks
    return kernel_of(Part(
        kind=GroupKind.CONTRACTION.value,
        dtype=gemm.a.dtype,
        reads=(_asked("a", gemm.a, blocks, tiling.again[0]), _asked("b", gemm.b, blocks, tiling.again[1]), *sums),
        writes=(Traffic(RESULT, result_bytes, result_bytes), *sums),
        arithmetic=(Arithmetic(tiling.unit, tiling.dtype, gemm.elements * gemm.k, tiling.share), *tiling.widening),
        elements=gemm.elements,
        tasks=blocks,
        threads=tile.threads,
        registers=gemm_registers(gemm, tile),
        shared_bytes=dynamic,
        static_shared_bytes=static,
        steps=tiling.steps,
        ahead=tiling.ahead,
        tail=tiling.tail,
    ))  # fmt: skip


def _asked(name: str, operand: OperandLayout, blocks: int, again: float) -> Traffic:
    nbytes = operand.value.tensor_type.nbytes
    role: Role = "weight" if _source(operand).is_constant else "activation"
    return from_l2(Traffic(name, max(nbytes, int(nbytes * again)), nbytes, role), blocks)


def from_l2(traffic: Traffic, blocks: int) -> Traffic:
    """Return what `blocks` blocks ask the L2 cache for: what a block has read once, its first cache has."""
    return replace(traffic, bytes_requested=min(traffic.bytes_requested, traffic.footprint_bytes * blocks))


def _source(operand: OperandLayout) -> Value:
    return operand.value if operand.memory is None else operand.memory.root
