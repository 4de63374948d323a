"""Which kernels contractions get, and what those need of a GPU, as the assembler reports it."""

from __future__ import annotations

import dataclasses

import pytest

from tests.codegen.cuda.contraction_harness import anchored, lower, matmul, resources, target
from tilestitch.codegen.cuda.gemm import simt as gemm_simt
from tilestitch.codegen.cuda.gemm.contraction import indexed_matmul
from tilestitch.codegen.cuda.gemm.partition import locate
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.codegen.launch import CountersArg
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes.plan.gemm.partition import Partition, cut
from tilestitch.passes.plan.gemm.tiles import SimtTile
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.cuda.gemm import choose_gemm
from tilestitch.passes.schedule.cuda.gemm_tiles import MMA_TILES, SIMT_TILES, WIDE_TILES
from tilestitch.passes.schedule.cuda.gpu import Gpu


def kinds(*shape: int, dtype: str = "float32", architecture: str = "sm_80") -> list[str]:
    m, n, k = shape
    return [launch.kind for launch in lower(matmul((m, k), (k, n), dtype), target(f"cuda:{architecture}"))]


def test_half_floats_use_tensor_cores_where_there_are_some() -> None:
    assert kinds(2048, 2048, 512, dtype="bfloat16") == ["gemm_mma"]
    assert kinds(2048, 2048, 512, dtype="bfloat16", architecture="sm_75") == ["gemm_simt"]
    assert kinds(2048, 2048, 512, dtype="float16", architecture="sm_75") == ["gemm_mma"]


def test_fp32_stays_fp32() -> None:
    (launch,) = lower(matmul((2048, 512), (512, 2048)))
    assert launch.kind == "gemm_simt"
    assert "ts_mma" not in kernel_text(launch.func, target())


def test_few_rows_are_streamed() -> None:
    assert kinds(1, 65536, 1024) == ["gemv"]
    assert kinds(65536, 8, 64, dtype="float16") == ["gemv"]


def test_few_tiles_with_a_long_reduction_are_computed_in_parts() -> None:
    (launch,) = lower(matmul((64, 16384), (16384, 64)))
    assert launch.grid[0] > 16
    assert isinstance(launch.args[-1], CountersArg)
    assert kinds(8192, 8192, 16384) == ["gemm_simt"]


@pytest.mark.parametrize("m_blocks", [1, 5, 8, 19])
@pytest.mark.parametrize(("batch", "parts"), [(1, 1), (3, 2)])
def test_blocks_cover_every_tile_once(m_blocks: int, batch: int, parts: int) -> None:
    partition = Partition(batch, m_blocks, 7, parts, 4)
    tiles = {tuple(int(i) for i in locate(partition, block)) for block in range(partition.blocks)}
    assert tiles == {
        (p, b, m, n) for p in range(parts) for b in range(batch) for m in range(m_blocks) for n in range(7)
    }


def test_parts_share_the_reduction() -> None:
    gemm = indexed_matmul(anchored(matmul((64, 1000), (1000, 64))))
    for parts in (1, 2, 3, 7, 64):
        partition = cut(gemm, (64, 64, 16), parts)
        assert partition.parts <= parts
        assert partition.parts * partition.steps * 16 >= 1000 > (partition.parts - 1) * partition.steps * 16


def test_large_gemms_take_the_largest_tiles() -> None:
    gemm = indexed_matmul(anchored(matmul((8192, 1024), (1024, 8192))))
    found = choose_gemm(gemm, Gpu.of(TargetInfo("cuda", device="H200")), AnalyticalModel())
    assert (found.tile.bm, found.tile.bn, found.split_k) == (128, 128, 1)


@pytest.mark.parametrize("shape", [(128, 768, 768), (128, 3072, 768), (64, 768, 3072), (196, 1024, 256)])
def test_small_gemms_still_give_most_sms_enough_warps(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    gemm = indexed_matmul(anchored(matmul((m, k), (k, n))))
    found = choose_gemm(gemm, Gpu.of(TargetInfo("cuda", device="H200")), AnalyticalModel())
    tile = found.tile
    assert isinstance(tile, SimtTile)
    assert cut(gemm, (tile.bm, tile.bn, tile.bk), found.split_k).blocks >= 0.7 * 132
    assert tile.threads >= 8 * 32


def test_tensors_beyond_32_bits_are_indexed_with_64() -> None:
    graph = matmul((1 << 17, 64), (64, 1 << 15), "float16")
    assert anchored(graph).index_dtype == "int64"
    (launch,) = lower(graph)
    assert "int64_t" in kernel_text(launch.func, target()).split("__global__")[1]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("trans", [(False, False), (True, True)])
def test_tensor_core_tiles_do_not_spill(architecture: str, trans: tuple[bool, bool]) -> None:
    (launch,) = lower(matmul((4096, 4096), (4096, 4096), "float16", trans=trans))
    registers, spilled = resources(launch, architecture)
    assert (spilled, launch.threads) == (0, 256)
    assert registers <= 128, "two blocks fit in an SM"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("tile", SIMT_TILES[::3], ids=lambda t: f"{t.bm}x{t.bn}")
def test_ordinary_tiles_do_not_spill(architecture: str, tile: SimtTile) -> None:
    group = anchored(matmul((1000, 1000), (1000, 1000)))
    gemm = indexed_matmul(group)
    (launch,) = gemm_simt.emit_simt(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), 1))
    assert resources(launch, architecture)[1] == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_streams_do_not_spill(dtype: str) -> None:
    for trans in ((False, False), (False, True)):
        for launch in lower(matmul((8, 4096), (4096, 4096), dtype, trans=trans)):
            assert resources(launch, "sm_90a")[1] == 0


def test_stages_fit_in_the_shared_memory_of_every_gpu_with_these_instructions() -> None:
    smallest = 99 * 1024  # a block of sm_86 and sm_89
    assert all(tile.shared_bytes <= smallest for tile in MMA_TILES)
    assert dataclasses.replace(MMA_TILES[0], stages=3).shared_bytes == 48 * 1024
    assert all(4 * tile.shared_elements <= 48 * 1024 for tile in SIMT_TILES)
    assert all(8 * tile.shared_elements <= 48 * 1024 for tile in WIDE_TILES)
