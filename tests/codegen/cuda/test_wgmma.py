"""Hopper's GEMMs on the emulated device, which finds faults of barriers, copies and order, against float64."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.contraction_harness import (
    anchored,
    assembler_log,
    check,
    gemm_shapes,
    lower,
    matmul,
    random_inputs,
    run,
    target,
    wgmma_blocks,
)
from tests.cost_models import Preferring
from tilestitch.codegen.cuda.abi import SYMBOL, CudaLaunch, TensorMapArg
from tilestitch.codegen.cuda.gemm.contraction import indexed_matmul
from tilestitch.codegen.cuda.gemm.wgmma import emit_wgmma
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.passes.plan.gemm.kernels import why_not_wgmma
from tilestitch.passes.plan.gemm.partition import cut
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.schedule.cuda.gemm_tiles import WGMMA_TILES as TILES
from tilestitch.runtime.emulator import EmulatorOptions, Kernels, TensorArgument
from tilestitch.runtime.emulator.errors import KernelFaultError

HOPPER = "cuda:sm_90a"
TRANSPOSED = [(False, False), (True, False), (False, True), (True, True)]
SMALL = TILES[-1]
SHARED, ALTERNATE, CLUSTER = (
    next(tile for tile in TILES if tile.alternate is alternate and tile.cluster == cluster)
    for alternate, cluster in ((False, 1), (True, 1), (True, 2))
)


def name_of(tile: WgmmaTile) -> str:
    turns = ", in turns" if tile.alternate else ""
    return f"{tile.bm}x{tile.bn} by {tile.warpgroups}{turns}{', in pairs' if tile.cluster > 1 else ''}"


def emitted(graph: Graph, tile: WgmmaTile, blocks: int | None = None, parts: int = 1) -> tuple[CudaLaunch, ...]:
    """The launches of a graph by a tile of our choice, which the default would take for large GEMMs only."""
    group = anchored(graph, target(HOPPER))
    gemm = indexed_matmul(group)
    assert why_not_wgmma(gemm, group.target.name, group.target.specific) is None
    blocks = blocks or wgmma_blocks(gemm, tile, parts, group.target)
    return emit_wgmma(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), parts), blocks)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("trans", TRANSPOSED)
@pytest.mark.parametrize("shape", [(64, 64, 64), (72, 136, 200), (16, 24, 8)])
def test_every_layout(shape: tuple[int, int, int], trans: tuple[bool, bool], dtype: str) -> None:
    (launch,) = check(matmul(*gemm_shapes(*shape, trans), dtype, trans=trans, epilogue=True), lower_for_hopper)
    assert launch.kind == "gemm_wgmma"


def lower_for_hopper(graph: Graph) -> tuple[CudaLaunch, ...]:
    return lower(graph, target(HOPPER), Preferring("wgmma"))


@pytest.mark.parametrize(("a", "b"), [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")])
@pytest.mark.parametrize("shape", [(72, 136, 208), (16, 24, 144), (40, 72, 2064)])
def test_bytes(shape: tuple[int, int, int], a: str, b: str) -> None:
    (m, n, k), graph = shape, Graph()
    x, w = graph.add_input("x", TensorType(a, (m, k))), graph.add_input("w", TensorType(b, (n, k)))
    y = graph.emit("cast", graph.emit("matmul", x, w, trans_b=True, out_dtype="int32"), to="float32")
    graph.outputs = [graph.emit("mul", y, graph.constant(np.float32(0.5)))]
    (launch,) = check(graph, lower_for_hopper)
    assert launch.kind == "gemm_wgmma"


def test_constant_weights_of_bytes_are_packed_along_k() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType("int8", (40, 272)))
    w = graph.constant(np.random.default_rng(0).integers(-128, 128, (272, 72)).astype(np.int8))
    graph.outputs = [graph.emit("matmul", x, w, out_dtype="int32")]
    (launch,) = check(graph, lower_for_hopper)
    assert launch.kind == "gemm_wgmma"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_float32(dtype: str) -> None:
    """A long reduction errs by no more than rounding the result does, and a little."""
    graph = matmul((64, 2048), (2048, 64), dtype)
    inputs = random_inputs(graph)
    (value,) = graph.outputs
    result = run(emitted(graph, SMALL), inputs, graph.outputs)[value.name].astype(np.float64)
    exact = inputs["a"].astype(np.float64) @ inputs["b"].astype(np.float64)
    rounding = np.abs(exact) * {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert (np.abs(result - exact) <= 1.01 * rounding + 1e-4).all()


@pytest.mark.parametrize("tile", TILES, ids=name_of)
def test_each_tile_with_edges_and_fewer_blocks_than_tiles(tile: WgmmaTile) -> None:
    check(matmul((2 * tile.bm + 8, 264), (264, tile.bn + 24), "float16", epilogue=True), lambda g: emitted(g, tile, 2))


@pytest.mark.parametrize("blocks", [1, 3, 4])
@pytest.mark.parametrize("tile", [SMALL, ALTERNATE, CLUSTER], ids=name_of)
def test_any_number_of_blocks_computes_all_tiles(tile: WgmmaTile, blocks: int) -> None:
    check(matmul((3 * tile.bm, 136), (136, 2 * tile.bn), "bfloat16"), lambda g: emitted(g, tile, blocks * tile.cluster))


@pytest.mark.parametrize("order", ["in_order", "reversed", "random", "adversarial"])
@pytest.mark.parametrize("tile", [SHARED, ALTERNATE, CLUSTER, SMALL], ids=name_of)
def test_results_do_not_depend_on_the_order_of_threads_and_blocks(tile: WgmmaTile, order: str) -> None:
    options = EmulatorOptions(block_order=order, thread_order="random", seed=7)
    check(
        matmul((2 * tile.bm + 8, 520), (tile.bn, 520), "float16", trans=(False, True)),
        lambda g: emitted(g, tile, 2),
        options,
    )


@pytest.mark.parametrize("seed", [2, 6])
def test_one_step_a_tile_in_turns(seed: int) -> None:
    """A thread may come to its turn when others of its warp are about to pass it on."""
    options = EmulatorOptions(block_order="adversarial", thread_order="random", seed=seed)
    tile = next(tile for tile in TILES if tile.alternate and tile.bm == 64)
    check(matmul((4 * tile.bm, 64), (64, 72), "float16"), lambda g: emitted(g, tile, 1), options)


@pytest.mark.parametrize("tile", [TILES[0], CLUSTER, ALTERNATE, SMALL], ids=name_of)
@pytest.mark.parametrize("n", [72, 67])
def test_reductions_in_parts(tile: WgmmaTile, n: int) -> None:
    graph = matmul((72, 1032), (n, 1032), "float16", trans=(False, True), epilogue=True)
    for order in ("in_order", "random", "adversarial"):
        check(graph, lambda g: emitted(g, tile, 4, parts=4), EmulatorOptions(block_order=order, seed=3))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_columns_that_are_no_multiple_of_a_vector(n: int) -> None:
    check(matmul((80, 72), (64 + n, 72), "bfloat16", trans=(False, True), epilogue=True), lower_for_hopper)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 40, 72), (2, 3, 72, 24)),
        ((2, 1, 40, 72), (3, 72, 24)),
        ((40, 72), (3, 72, 24)),
        ((2, 3, 40, 72), (72, 24)),
        ((2, 3, 40, 72), (1, 1, 72, 24)),
    ],
)
def test_batches_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    (launch,) = check(matmul(left, right, "float16", epilogue=True), lower_for_hopper)
    assert launch.kind == "gemm_wgmma"


def heads(graph: Graph, fused: Value, number: int) -> Value:
    """Heads [batch, head, token, 64] of one third of a fused projection [batch, token, 3 * 2 * 64]."""
    batch, tokens, _ = fused.shape
    part = graph.emit("slice", fused, starts=(0, 0, 128 * number), sizes=(batch, tokens, 128), steps=(1, 1, 1))
    return graph.emit("transpose", graph.emit("reshape", part, shape=(batch, tokens, 2, 64)), perm=(0, 2, 1, 3))


def test_heads_of_a_fused_projection_are_copied_from_where_they_lie() -> None:
    graph = Graph()
    fused = graph.add_input("x", TensorType("bfloat16", (3, 72, 384)))
    graph.outputs = [graph.emit("matmul", heads(graph, fused, 0), heads(graph, fused, 1), trans_b=True)]
    (launch,) = check(graph, lower_for_hopper)
    maps = [arg.tensor_map for arg in launch.args if isinstance(arg, TensorMapArg)]
    assert [(m.dims, m.strides_bytes, m.box[0]) for m in maps] == 2 * [((64, 2, 72, 3), (128, 768, 55296), 64)]
    assert isinstance(launch.args[-1], TensorMapArg) and launch.args[-1].offset_bytes == 256


def epilogue_of_views(graph: Graph, gemm: Value) -> list[Value]:
    """Two outputs: one moved to heads, one a float32."""
    split = graph.emit("reshape", gemm, shape=(4, 18, 2, 32))
    return [
        graph.emit("transpose", split, perm=(0, 2, 1, 3)),
        graph.emit("cast", graph.emit("less", gemm, graph.emit("neg", gemm)), to="float32"),
    ]


def epilogue_of_one_column(graph: Graph, gemm: Value) -> list[Value]:
    """A bias a row, GELU's error function, and a residual that was transposed."""
    bias = graph.add_input("bias", TensorType(gemm.dtype, (gemm.shape[0], 1)))
    other = graph.add_input("other", TensorType(gemm.dtype, tuple(reversed(gemm.shape))))
    active = graph.emit("erf", graph.emit("add", gemm, bias))
    return [graph.emit("mul", active, graph.emit("transpose", other, perm=(1, 0)))]


@pytest.mark.parametrize("epilogue", [epilogue_of_views, epilogue_of_one_column])
def test_epilogues(epilogue: Any) -> None:
    graph = Graph()
    a, b = (
        graph.add_input("a", TensorType("float16", (72, 200))),
        graph.add_input("b", TensorType("float16", (200, 64))),
    )
    graph.outputs = epilogue(graph, graph.emit("matmul", a, b))
    (launch,) = check(graph, lower_for_hopper)
    assert launch.kind == "gemm_wgmma"


def test_an_operand_may_be_the_residual_too() -> None:
    graph = Graph()
    a = graph.add_input("a", TensorType("float16", (72, 72)))
    graph.outputs = [graph.emit("add", graph.emit("matmul", a, a), a)]
    check(graph, lower_for_hopper)


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(graph: Graph, name: str = HOPPER) -> str | None:
    group = anchored(graph, target(name))
    return why_not_wgmma(indexed_matmul(group), group.target.name, group.target.specific)


def test_refusals_say_why() -> None:
    good = matmul((64, 64), (64, 64), "float16")
    assert refused(good) is None
    assert refused(good, "cuda:sm_80,sm_90a") == "the target is cuda:sm_80,sm_90a, not sm_90a alone"
    assert refused(matmul((64, 64), (64, 64))) == (
        "a is float32, none of float16, bfloat16, int8, uint8, float8_e4m3fn, float8_e5m2"
    )
    assert refused(matmul((64, 64), (64, 64), "int8", out_dtype="int32")) == (
        "b runs along its rows; wgmma reads int8 along k only"
    )
    assert refused(matmul((64, 60), (60, 64), "float16")) == "lines of a lie 120 bytes apart, no multiple of 16"
    assert refused(matmul((64, 0), (0, 64), "float16")) == "there is nothing to multiply"
    graph = Graph()
    a = graph.add_input("a", TensorType("float16", (64, 64)))
    graph.outputs = [graph.emit("matmul", graph.emit("tanh", a), a)]
    assert refused(graph) == "tanh is computed where it is read"


@pytest.mark.parametrize("shape", [(64, 60, 36), (64, 64, 63)])
def test_what_is_refused_has_another_kernel(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    (launch,) = check(matmul((m, k), (n, k), "float16", trans=(False, True)), lower_for_hopper)
    assert launch.kind == "gemm_mma"


# -- the assembler, and planted faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TILES, ids=name_of)
def test_the_assembler_has_no_complaint(tile: WgmmaTile) -> None:
    """Nothing spilled, registers moved (no C7508), GEMMs of a group under way together (no C7510)."""
    (launch,) = emitted(matmul((1024, 1024), (1024, 1024), "float16", epilogue=True), tile)
    log = assembler_log(launch, "sm_90a", target(HOPPER))
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    assert not re.search(r"C75\d\d|setmaxnreg|[Ss]erializ", log), log


@pytest.mark.parametrize("tile", [TILES[0], SMALL], ids=name_of)
def test_the_assembler_has_no_complaint_about_bytes(tile: WgmmaTile) -> None:
    graph = Graph()
    x, w = graph.add_input("x", TensorType("uint8", (512, 512))), graph.add_input("w", TensorType("int8", (512, 512)))
    graph.outputs = [graph.emit("matmul", x, w, trans_b=True, out_dtype="int32")]
    (launch,) = emitted(graph, replace(tile, bk=128))
    log = assembler_log(launch, "sm_90a", target(HOPPER))
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    assert not re.search(r"C75\d\d|setmaxnreg|[Ss]erializ", log), log


PLANTED = {
    "read before the copy came": (SMALL, r"ts_sm90_wait\(.*, \(v_\d+ & 1\)\);", ""),
    "freed before it was read": (SMALL, r"ts_sm90_wgmma_wait_1\(\);", ""),
    "results not waited for": (SMALL, r"ts_sm90_wgmma_wait_0\(\);", ""),
    "wrong bytes": (SMALL, r"16384\);(?=\n\s+int v)", "16368);"),
    "never freed": (SMALL, r"ts_sm90_arrive\(", "if (0) ts_sm90_arrive("),
    "not in turn": (ALTERNATE, r"ts_sm90_wait\(.*\+ 1\) \+ v_\d+\) & 1\)\);", ""),
    "freed in the own block only": (
        CLUSTER, r"ts_sm90_arrive_at\((.*), v_\d+\);", r"ts_sm90_arrive_at(\1, (int)(blockIdx.x & 1));",
    ),
}  # fmt: skip
"""What is wrong, in the kernel of which tile, and how its text is changed."""


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name: str) -> None:
    """So the tests above can fail: the emulated device notices what a GPU might get away with."""
    tile, pattern, broken = PLANTED[name]
    graph = matmul((2 * tile.bm - 8, 520), (520, 2 * tile.bn), "float16")
    (launch,) = emitted(graph, tile, tile.cluster)
    text = kernel_text(launch.func, target(HOPPER))
    head, mark, body = text.partition('extern "C" __global__')
    changed = re.sub(pattern, broken, body)
    assert changed != body, body
    kernels = Kernels({"k": (head + mark + changed).replace(SYMBOL, "k")}, EmulatorOptions(block_order="adversarial"))
    inputs = random_inputs(graph)
    out = np.empty((2 * tile.bm - 8, 2 * tile.bn), np.float16)
    arrays = [
        TensorArgument.of(arg.tensor_map, inputs[arg.over.value]) if isinstance(arg, TensorMapArg) else out
        for arg in launch.args
    ]
    with pytest.raises(KernelFaultError):
        kernels.launch("k", launch.grid, launch.block, arrays, launch.shared_bytes, cluster=launch.cluster)


def test_a_tile_that_does_not_fit_shared_memory_is_none() -> None:
    assert "bytes of shared memory" in str(replace(SHARED, stages=6).why_not())
    assert all(tile.why_not() is None for tile in TILES)
