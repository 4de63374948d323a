"""The kernel of a GEMM for the tile of its schedule."""

from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.gemm.gemv import emit_gemv
from tilestitch.codegen.cuda.gemm.gemv_codes import emit_gemv_of_codes
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm
from tilestitch.codegen.cuda.gemm.mma import emit_mma
from tilestitch.codegen.cuda.gemm.simt import emit_simt
from tilestitch.codegen.cuda.gemm.tma import cut_to_patches
from tilestitch.codegen.cuda.gemm.wgmma import emit_wgmma
from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.passes.plan.gemm.gemv import seen_by
from tilestitch.passes.plan.gemm.partition import partition_of
from tilestitch.passes.plan.gemm.tiles import GemvTile, MmaTile, SimtTile, WgmmaTile
from tilestitch.passes.plan.schedules import GemmSchedule


def lower_gemm(group: Anchored, gemm: IndexedGemm, schedule: GemmSchedule) -> tuple[CudaLaunch, ...]:
    """Return the launches of a GEMM as its schedule says."""
    tile = schedule.tile
    match tile:
        case GemvTile():
            gemm = seen_by(gemm, tile)
        case WgmmaTile():
            gemm = cut_to_patches(gemm, tile.bm)
    partition = partition_of(gemm, schedule)
    match tile:
        case GemvTile() if gemm.b.codes is not None:
            return emit_gemv_of_codes(group, gemm, tile, partition)
        case GemvTile():
            return emit_gemv(group, gemm, tile, partition)
        case SimtTile():
            return emit_simt(group, gemm, tile, partition)
        case MmaTile():
            return emit_mma(group, gemm, tile, partition)
        case WgmmaTile():
            return emit_wgmma(group, gemm, tile, partition, schedule.blocks)
