"""Matmuls on the emulated device, against numpy: every kernel, odd sizes, layouts, dtypes, what is fused."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from tests.codegen.cuda.contraction_harness import anchored, check, gemm_shapes, lower, matmul, target
from tilestitch.codegen.cuda.gemm import mma as gemm_mma
from tilestitch.codegen.cuda.gemm import simt as gemm_simt
from tilestitch.codegen.cuda.gemm.contraction import indexed_matmul
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.passes.plan.gemm.gemv import COLUMNS, WARP, WARPS, gemv_tile, with_large_right
from tilestitch.passes.plan.gemm.partition import cut
from tilestitch.passes.plan.gemm.tiles import MmaTile, SimtTile
from tilestitch.passes.schedule.cuda.gemm_tiles import MMA_TILES, SIMT_TILES, WIDE_TILES
from tilestitch.runtime.emulator import EmulatorOptions

TRANSPOSED = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize("trans", TRANSPOSED)
@pytest.mark.parametrize("shape", [(9, 13, 5), (33, 70, 19), (64, 64, 32)])
def test_float32_tiles(shape: tuple[int, int, int], trans: tuple[bool, bool]) -> None:
    (launch,) = check(matmul(*gemm_shapes(*shape, trans), trans=trans, epilogue=True))
    assert launch.kind == "gemm_simt"


@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [("float64", None), ("int32", None), ("int64", None), ("int8", "int32"), ("uint8", "int32")]
)
def test_every_dtype_has_tiles(dtype: str, out_dtype: str | None) -> None:
    check(matmul((17, 34), (34, 20), dtype, out_dtype=out_dtype))


@pytest.mark.parametrize("tile", SIMT_TILES, ids=lambda t: f"{t.bm}x{t.bn}")
def test_each_ordinary_tile_with_a_tail_and_in_parts(tile: SimtTile) -> None:
    graph = matmul((tile.bm + 3, 2 * tile.bk + 1), (2 * tile.bk + 1, tile.bn + 5), epilogue=True)
    group = anchored(graph)
    gemm = indexed_matmul(group)
    partition = cut(gemm, (tile.bm, tile.bn, tile.bk), 2)
    launches = gemm_simt.emit_simt(group, gemm, tile, partition)
    assert partition.parts == 2
    check(graph, launches)


@pytest.mark.parametrize("trans", TRANSPOSED)
@pytest.mark.parametrize("tile", WIDE_TILES, ids=lambda t: f"{t.bm}x{t.bn}")
def test_each_tile_of_wide_sums(tile: SimtTile, trans: tuple[bool, bool]) -> None:
    graph = matmul(*gemm_shapes(tile.bm + 3, tile.bn + 5, 70, trans), "float64", trans=trans)
    group = anchored(graph)
    gemm = indexed_matmul(group)
    check(graph, gemm_simt.emit_simt(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), 1)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("trans", TRANSPOSED)
@pytest.mark.parametrize("shape", [(9, 13, 5), (40, 72, 200), (33, 24, 72)])
def test_tensor_core_tiles(shape: tuple[int, int, int], trans: tuple[bool, bool], dtype: str) -> None:
    (launch,) = check(matmul(*gemm_shapes(*shape, trans), dtype, trans=trans, epilogue=True))
    assert launch.kind == "gemm_mma"


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("tile", MMA_TILES, ids=lambda t: f"{t.bm}x{t.bn}")
def test_each_tensor_core_tile_with_a_tail_and_in_parts(tile: MmaTile, parts: int) -> None:
    graph = matmul((tile.bm + 8, 264), (264, tile.bn + 8), "float16")
    group = anchored(graph)
    gemm = indexed_matmul(group)
    launches = gemm_mma.emit_mma(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), parts))
    check(graph, launches)


def test_three_stages_are_as_good_as_four() -> None:
    graph = matmul((70, 200), (200, 72), "bfloat16")
    group = anchored(graph)
    gemm = indexed_matmul(group)
    tile = dataclasses.replace(MMA_TILES[3], stages=3)
    check(graph, gemm_mma.emit_mma(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), 1)))


@pytest.mark.parametrize("order", ["reversed", "random", "adversarial"])
@pytest.mark.parametrize(("dtype", "m"), [("float32", 40), ("float16", 40), ("float32", 3)])
def test_results_do_not_depend_on_the_order_of_threads_and_blocks(order: str, dtype: str, m: int) -> None:
    options = EmulatorOptions(block_order=order, thread_order="random", seed=5)
    check(matmul((m, 300), (300, 72), dtype), options=options)


@pytest.mark.parametrize(("dtype", "shapes"), [("float32", 5), ("float16", 4), ("bfloat16", 1), ("float64", 1)])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemms_of_few_rows(dtype: str, shapes: int, trans_b: bool) -> None:
    for shape in [(8, 72, 200), (7, 13, 5), (1, 40, 1030), (90, 2, 96), (1, 1, 1)][:shapes]:
        trans = (False, trans_b)
        launches = check(matmul(*gemm_shapes(*shape, trans), dtype, trans=trans, epilogue=True))
        assert launches[0].kind == "gemv"


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("float16", 8), ("float64", 2)])
@pytest.mark.parametrize(("loads", "lanes"), [(1, 1), (2, 2), (3, 4), (7, 8), (16, 16), (17, 32)])
@pytest.mark.parametrize(("rows", "columns", "least"), [(1, 530, 1), (3, 67, 8), (8, 131, 4)])
def test_warps_share_short_rows_of_the_large_operand_among_few_lanes(
    dtype: str, width: int, loads: int, lanes: int, rows: int, columns: int, least: int
) -> None:
    """Where the other lanes of a block have rows: `least` lanes share one of few. Odd rows are read by elements."""
    graph = matmul((rows, loads * width), (columns, loads * width), dtype, trans=(False, True), epilogue=True)
    tile = gemv_tile(with_large_right(indexed_matmul(anchored(graph))))
    assert tile.bn == WARPS * COLUMNS * WARP // max(lanes, least)
    check(graph, options=EmulatorOptions(block_order="random", seed=loads))
    check(matmul((rows, loads * width + 1), (columns, loads * width + 1), dtype, trans=(False, True)))


@pytest.mark.parametrize("trans", [(False, True), (True, False)])
def test_a_column_times_integers(trans: tuple[bool, bool]) -> None:
    check(matmul(*gemm_shapes(2, 36, 48, trans), "int8", trans=trans, out_dtype="int32"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(3, 4), (40, 50)])
def test_a_gemm_over_nothing_is_zero(shape: tuple[int, int], dtype: str) -> None:
    check(matmul((shape[0], 0), (0, shape[1]), dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 9, 8), (8, 16)),
        ((2, 3, 9, 8), (2, 3, 8, 16)),
        ((2, 1, 9, 8), (3, 8, 16)),
        ((12, 8), (3, 8, 16)),
        ((2, 3, 9, 8), (1, 1, 8, 16)),
    ],
)
def test_batches_broadcast(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    check(matmul(left, right, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows", [12, 4])
def test_prologue_residual_and_moved_axes_are_one_kernel(rows: int, dtype: str) -> None:
    graph = Graph()
    random = np.random.default_rng(1)
    x = graph.add_input("x", TensorType(dtype, (2, rows, 24)))
    gate = graph.add_input("g", TensorType(dtype, (2, rows, 24)))
    weight = graph.constant(random.uniform(-1, 1, (24, 32)).astype(dtype))
    bias = graph.constant(random.uniform(-1, 1, (32,)).astype(dtype))
    gemm = graph.emit("matmul", graph.emit("mul", graph.emit("tanh", x), gate), weight)
    active = graph.emit("tanh", graph.emit("add", gemm, bias))
    heads = graph.emit("transpose", graph.emit("reshape", active, shape=(2, rows, 4, 8)), perm=(0, 2, 1, 3))
    graph.outputs = [heads, active]
    assert len(check(graph)) == 1


def test_half_floats_without_tensor_cores_for_them() -> None:
    graph = matmul((20, 33), (33, 24), "bfloat16")
    launches = lower(graph, target("cuda:sm_75"))
    assert [launch.kind for launch in launches] == ["gemm_simt"]
    check(graph, launches)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_heads_of_a_fused_projection_are_read_where_they_lie(dtype: str) -> None:
    graph = Graph()
    fused = graph.add_input("x", TensorType(dtype, (2, 12, 3 * 4 * 8)))

    def heads(number: int) -> Value:
        part = graph.emit("slice", fused, starts=(0, 0, 32 * number), sizes=(2, 12, 32), steps=(1, 1, 1))
        return graph.emit("transpose", graph.emit("reshape", part, shape=(2, 12, 4, 8)), perm=(0, 2, 1, 3))

    graph.outputs = [graph.emit("matmul", heads(0), heads(1), trans_b=True)]
    gemm = indexed_matmul(anchored(graph))
    assert gemm.a.memory is not None
    assert gemm.b.memory is not None
    assert (gemm.a.contiguous, gemm.a.run, gemm.b.memory.offset) == ("k", 8, 32)
    check(graph)


def test_a_transposed_operand_is_read_along_its_memory() -> None:
    graph = Graph()
    a, b = graph.add_input("a", TensorType("float32", (40, 20))), graph.add_input("b", TensorType("float32", (24, 40)))
    flipped = graph.emit("transpose", b, perm=(1, 0))
    reversed_ = graph.emit("slice", flipped, starts=(39, 0), sizes=(40, 24), steps=(-1, 1))
    graph.outputs = [graph.emit("matmul", graph.emit("transpose", a, perm=(1, 0)), reversed_)]
    gemm = indexed_matmul(anchored(graph))
    assert (gemm.a.contiguous, gemm.a.run) == ("row", 20)
    assert (gemm.b.contiguous, gemm.b.run) == ("row", 1)
    check(graph)


def test_what_strides_cannot_express_is_evaluated() -> None:
    graph = Graph()
    x = graph.emit("transpose", graph.add_input("x", TensorType("float32", (4, 6, 5))), perm=(1, 0, 2))
    graph.outputs = [
        graph.emit(
            "matmul", graph.emit("reshape", x, shape=(12, 10)), graph.add_input("w", TensorType("float32", (10, 9)))
        )
    ]
    assert indexed_matmul(anchored(graph)).a.memory is None
    check(graph)


@pytest.mark.parametrize(("dtype", "access"), [("float16", "uint2"), ("float32", "float4"), ("bfloat16", "uint2")])
@pytest.mark.parametrize("heads", [False, True])
def test_results_and_residuals_move_in_vectors(dtype: str, access: str, heads: bool) -> None:
    """Also if rows are cut into heads that change places with the sequence: each head is contiguous."""
    graph = matmul((64, 48), (48, 64), dtype, epilogue=True, precision="tf32" if dtype == "float32" else None)
    if heads:
        split = graph.emit("reshape", graph.outputs[0], shape=(8, 8, 4, 16))
        graph.outputs = [graph.emit("transpose", split, perm=(0, 2, 1, 3))]
    (launch,) = check(graph, tf32=dtype == "float32")
    body = kernel_text(launch.func, target()).rpartition("__syncthreads")[2]
    for parameter in ("p2", "p3"):
        assert re.search(rf"\*\({access}\*\)\(+(\(uint\*\))?{parameter}\b", body), parameter


@pytest.mark.parametrize("columns", [50, 63])
@pytest.mark.parametrize("perm", [(0, 1), (1, 0)])
def test_results_that_do_not_lie_together_are_stored_one_by_one(columns: int, perm: tuple[int, int]) -> None:
    graph = matmul((40, 24), (24, columns), "float16", epilogue=True)
    graph.outputs = [graph.emit("transpose", graph.outputs[0], perm=perm)]
    (launch,) = check(graph)
    body = kernel_text(launch.func, target()).rpartition("__syncthreads")[2]
    assert "uint2" not in body
