"""The work of GEMM tiles on a GPU, as numbers for the latency models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import SMALL_FLOATS, storage_bytes
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Part, Role, Tail, Traffic, Unit, kernel_of
from tilestitch.passes.plan.gemm.gemm import Gemm, OperandLayout
from tilestitch.passes.plan.gemm.gemv import seen_by
from tilestitch.passes.plan.gemm.partition import Partition, partitioned
from tilestitch.passes.plan.gemm.tiles import GemvTile, MmaTile, OpenGemvTile, Tile, WgmmaTile
from tilestitch.passes.plan.group import GroupKind
from tilestitch.passes.plan.launches.cuda.gemm import shared_bytes_of
from tilestitch.passes.plan.registers import gemm_registers
from tilestitch.passes.plan.schedules import GemmSchedule, OpenGemmSchedule

from .gemm_tiles import speed_of

RESULT = "result"
"""The name of a candidate's result."""
TENSOR_CORES: Mapping[type, Unit] = {MmaTile: "mma", WgmmaTile: "wgmma"}


@dataclass(frozen=True)
class Tiling:
    """How tiles compute a contraction: `unit` multiplies elements of `dtype`; share: the fraction of its rate that is
    reached, without padding work; calls_share: the same for special functions. steps, ahead, tail: as in `Part`. again:
    how often each operand is read. widening: additional work to dequantise codes.
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


def tiling_of(gemm: Gemm, schedule: GemmSchedule) -> Tiling:
    """Return how the tiles of a schedule compute a GEMM."""
    tile, (_, partition) = schedule.tile, partitioned(gemm, schedule)
    again, tail = _again(gemm, tile, partition), _joining(gemm, tile, partition)
    if isinstance(tile, GemvTile):
        useful = gemm.m / (partition.m_blocks * tile.bm) if isinstance(tile, OpenGemvTile) else 1.0
        widening = _widening(gemm, partition.m_blocks)
        return Tiling("fma", gemm.acc_dtype, useful or 1.0, again=again, tail=tail, widening=widening)
    # Persistent blocks count as the one with the most tiles.
    rounds = ceil(partition.blocks / schedule.blocks) if schedule.blocks else 1
    computed = rounds * schedule.blocks or partition.blocks
    useful = gemm.batch * gemm.m * gemm.n * gemm.k / (computed * tile.bm * tile.bn * partition.steps * tile.bk or 1)
    unit = TENSOR_CORES.get(type(tile), "fma")
    dtype = gemm.acc_dtype if unit == "fma" else _multiplied(unit, gemm.a.dtype)
    share, steps = speed_of(tile) * (useful or 1.0), partition.steps * rounds
    widening = _widening(gemm, partition.m_blocks)
    return Tiling(unit, dtype, share, steps, tile.ahead, again, tail, widening=widening)


def _widening(gemm: Gemm, times: int) -> tuple[Arithmetic, ...]:
    """Return the dequantisation work of blockwise-quantised weights: per code and read a mask, a shift, a subtraction
    and a multiplication by the scale, as long as two multiply-adds take.
    """
    if gemm.b.codes is None:
        return ()
    return (Arithmetic("fma", "float32", 2 * times * gemm.batch * gemm.n * gemm.k, 1.0),)


def _share_read(gemm: Gemm) -> tuple[float, float]:
    """Return the share of the right operand that is read at most, where indices choose some of its matrices, and how
    often.
    """
    read = 1.0 if gemm.b.codes is None else gemm.batch / gemm.b.codes.matrices
    return min(1.0, read), max(1.0, read)


def _multiplied(unit: Unit, dtype: str) -> str:
    """Return the device table's name for what tensor cores multiply: mma.sync converts 8-bit floats to half floats on
    sm_90a, where wgmma multiplies them directly (seen in machine code).
    """
    if dtype in SMALL_FLOATS:
        return "float8" if unit == "wgmma" else "float16"
    return "tfloat32" if dtype == "float32" else dtype


def _again(gemm: Gemm, tile: Tile, partition: Partition) -> tuple[float, float]:
    """Return how often the elements of a and b are read: by every column, or row, of tiles; by every kernel position of
    a convolution. The blocks of a cluster read once.
    """
    if isinstance(tile, GemvTile):
        again = float(partition.n_blocks), partition.m_blocks * _share_read(gemm)[1]
        return again if seen_by(gemm, tile).b.value is gemm.b.value else (again[1], again[0])
    shared = tile.cluster if isinstance(tile, WgmmaTile) else 1
    rows, columns = (gemm.batch * gemm.k * extent for extent in (gemm.m, gemm.n))
    return (
        partition.n_blocks * rows / (gemm.a.elements or 1),
        ceil(partition.m_blocks / shared) * columns / (gemm.b.elements * _share_read(gemm)[0] or 1),
    )


def _joining(gemm: Gemm, tile: Tile, partition: Partition) -> Tail | None:
    """Return the tail of a tile's last block where the reduction is split: it adds up the partial sums of all."""
    if partition.parts == 1:
        return None
    results = min(tile.bm, max(gemm.m, 1)) * tile.bn
    nbytes = partition.parts * results * storage_bytes(gemm.acc_dtype)
    return Tail(0, nbytes, partition.blocks // partition.parts)


def partial_bytes(gemm: Gemm, schedule: GemmSchedule) -> int | None:
    """Return the bytes of partial sums of a kernel over open rows; None for other kernels."""
    if not isinstance(schedule, OpenGemmSchedule):
        return None
    own, partition = partitioned(gemm, schedule)
    return partition.parts * own.elements * storage_bytes(gemm.acc_dtype) if partition.parts > 1 else 0


# -- candidates --------------------------------------------------------------------------------------------------------


def candidate_facts(gemm: Gemm, schedule: GemmSchedule) -> KernelFacts:
    """Return the facts of a GEMM without fused work, which is the same for all schedules."""
    tile, tiling = schedule.tile, tiling_of(gemm, schedule)
    own, partition = partitioned(gemm, schedule)
    dynamic, static = shared_bytes_of(own, tile)
    result_bytes = gemm.elements * storage_bytes(gemm.a.dtype)
    sums_bytes = partition.parts * own.elements * storage_bytes(gemm.acc_dtype)
    sums = (Traffic("sums", sums_bytes, sums_bytes, "temporary"),) if partition.parts > 1 else ()
    blocks = schedule.blocks or partition.blocks
    shares = 1.0, _share_read(gemm)[0]
    operands = zip("ab", (gemm.a, gemm.b), tiling.again, shares, strict=True)
    return kernel_of(Part(
        kind=GroupKind.CONTRACTION.value,
        dtype=gemm.a.dtype,
        reads=(*(_asked(*each, blocks) for each in operands), *sums),
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


def _asked(name: str, operand: OperandLayout, again: float, share: float, blocks: int) -> Traffic:
    nbytes = int(operand.value.tensor_type.nbytes * share)
    role: Role = "weight" if _source(operand).is_constant else "activation"
    return from_l2(Traffic(name, max(nbytes, int(nbytes * again)), nbytes, role), blocks)


def from_l2(traffic: Traffic, blocks: int) -> Traffic:
    """Return what `blocks` blocks request from the L2 cache: after a block's first read, its L1 cache has the data."""
    return replace(traffic, bytes_requested=min(traffic.bytes_requested, traffic.footprint_bytes * blocks))


def _source(operand: OperandLayout) -> Value:
    return operand.value if operand.memory is None else operand.memory.root
