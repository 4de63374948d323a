"""Launches of contractions: GEMMs by the tile of their schedule, convolutions without tiles, rows after a GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.packed import packed_layouts
from tilestitch.passes.plan.access.windows import direct_threads
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemm import Gemm, OperandLayout
from tilestitch.passes.plan.gemm.gemv import WARPS, SmallRows, rows_of
from tilestitch.passes.plan.gemm.partition import Partition, partitioned
from tilestitch.passes.plan.gemm.rows_after import WARP_ROWS, Band, RowsAfter
from tilestitch.passes.plan.gemm.tiles import WARP, GemvTile, MmaTile, SimtTile, Tile, WgmmaTile
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES, Argument, Emitted, shared_array
from tilestitch.passes.plan.launches.cuda.rows import rows_shared_bytes
from tilestitch.passes.plan.own_kernels import Temporary
from tilestitch.passes.plan.schedules import BandSchedule, DirectSchedule, GemmSchedule, RowSchedule


def contraction(
    group: AnchoredGroup, schedule: GemmSchedule | DirectSchedule, after: Rows | None = None
) -> Emitted:  # fmt: skip
    """Return the launch of a contraction, including rows after it."""
    if isinstance(schedule, DirectSchedule):
        blocks = ceil_div(direct_threads(group, schedule), schedule.threads)
        return Emitted.of("conv_direct", blocks, schedule.threads, (*group.inputs, *group.outputs), part=True)
    gemm = gemm_of(group)
    assert gemm is not None, "a convolution without tiles has a direct schedule"
    tile = schedule.tile
    gemm, partition = partitioned(gemm, schedule)
    if isinstance(tile, WgmmaTile):
        return _wgmma(group, gemm, tile, partition, schedule.blocks, after)
    return _tiled(group, gemm, tile, partition, after)


class Rows:
    """Row-wise work after a GEMM, as scheduled."""

    def __init__(self, after: RowsAfter, schedule: BandSchedule, rows: RowSchedule) -> None:
        self.after, self.schedule, self.loops = after, schedule, after.walk.scheduled(rows)

    @property
    def shared_bytes(self) -> int:
        return rows_shared_bytes(self.after.nodes, self.after.roles, self.loops)

    def words(self, rows: int, writers: int, threads: int, warps: bool = False) -> int:
        return Band(rows, writers, threads, self.schedule.share_rows, warps).words

    def further(self, known: Sequence[Argument]) -> tuple[Value, ...]:
        """Return the further values that it accesses."""
        return tuple(v for v in dict.fromkeys(self.after.values) if v not in known)


def _tiled(
    group: AnchoredGroup, gemm: Gemm, tile: GemvTile | SimtTile | MmaTile, partition: Partition, after: Rows | None
) -> Emitted:
    kind = "gemv" if isinstance(tile, GemvTile) else f"gemm_{tile.template}"
    dynamic, static = shared_bytes_of(gemm, tile)
    sums = _sums(gemm, partition, storage_bytes(gemm.acc_dtype))
    counted = partition.counters or (partition.blocks // partition.parts if sums else 0)
    if after is not None:
        bands = partition.batch * partition.m_blocks
        counted += bands * after.words(min(tile.bm, gemm.m), partition.n_blocks, tile.threads)
        static += after.shared_bytes
    arguments = _arguments(group, group.inputs, sums, (), after)
    launch = Emitted.of(kind, partition.blocks, tile.threads, arguments, part=True)
    return replace(
        launch, counter_bytes=COUNTER_BYTES * counted, shared_bytes=dynamic, static_shared_bytes=static
    )  # fmt: skip


def shared_bytes_of(gemm: Gemm, tile: Tile) -> tuple[int, int]:
    """Return the dynamic and static shared memory of a block that computes a GEMM in such tiles, without rows after
    it.
    """
    itemsize = storage_bytes(gemm.acc_dtype)
    match tile:
        case GemvTile():
            return 0, _gemv_shared_bytes(gemm, tile, itemsize)
        case SimtTile():
            return 0, shared_array(tile.shared_elements, itemsize)
        case MmaTile() | WgmmaTile():
            return tile.shared_bytes, 0


def _gemv_shared_bytes(gemm: Gemm, tile: GemvTile, itemsize: int) -> int:
    """Return the shared memory for a chunk of the small operand; the sums of all warps take its place where they
    fit.
    """
    rows = rows_of(gemm, tile)
    chunk, sums = rows * SmallRows.of(gemm, tile).row, 0 if tile.along_k else WARPS * rows * tile.bn
    return shared_array(chunk, itemsize) + (shared_array(sums, itemsize) if sums > chunk else 0)


def _wgmma(
    group: AnchoredGroup, gemm: Gemm, tile: WgmmaTile, partition: Partition, blocks: int, after: Rows | None
) -> Emitted:
    bm, static = tile.bm * tile.cluster, 0
    bands, n_tiles = ceil_div(gemm.m, bm) * bm // WARP_ROWS, ceil_div(gemm.n, tile.bn)
    sums = _sums(gemm, partition, 4)
    counted = gemm.batch * n_tiles * bands if sums else 0
    if after is not None:
        counted += gemm.batch * bands * after.words(WARP_ROWS * tile.rows, n_tiles, WARP, warps=True)
        static = after.shared_bytes
    operands = [_root(operand) for operand in (gemm.a, gemm.b)]
    arguments = _arguments(group, group.read_after(), sums, operands, after)
    launch = Emitted.of("gemm_wgmma", blocks, tile.threads, arguments, part=True)
    return replace(
        launch, counter_bytes=COUNTER_BYTES * counted, cluster=(tile.cluster, 1, 1), shared_bytes=tile.shared_bytes,
        static_shared_bytes=static,
    )  # fmt: skip


def _root(operand: OperandLayout) -> Value:
    """Return the value whose memory a tensor map describes."""
    assert operand.memory is not None
    return operand.memory.root


def _sums(gemm: Gemm, partition: Partition, itemsize: int) -> Temporary | None:
    """Return the temporary for partial sums; None if the reduction is not split."""
    if partition.kept_elements:
        return Temporary("sums", partition.kept_elements * itemsize)
    return None if partition.parts == 1 else Temporary("sums", partition.parts * gemm.elements * itemsize)


def _arguments(
    group: AnchoredGroup, inputs: Sequence[Value], sums: Temporary | None, mapped: Sequence[Value], after: Rows | None
) -> list[Argument]:
    own: list[Argument] = [*inputs, *group.outputs]
    packed = packed_layouts(group)
    further = after.further([v for v in own if v not in packed]) if after is not None else ()
    return [*own, *([sums] if sums is not None else []), *mapped, *further]
