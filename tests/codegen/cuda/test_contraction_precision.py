"""GEMMs that round to TF32, or multiply 8-bit integers, on the emulated tensor cores, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.cuda.contraction_harness import (
    anchored,
    check,
    gemm_shapes,
    lower,
    matmul,
    random_inputs,
    resources,
    round_to_tf32,
    run,
    target,
)  # fmt: skip
from tilestitch.codegen.cuda.gemm.contraction import indexed_matmul
from tilestitch.codegen.cuda.gemm.mma import emit_mma
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.codegen.launch import PackedArg, ValueArg
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes.plan.gemm.partition import cut
from tilestitch.passes.plan.gemm.tiles import MmaTile
from tilestitch.passes.schedule.cuda.gemm_tiles import mma_tiles

TRANSPOSED = [(False, False), (True, False), (False, True), (True, True)]
BYTES = [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]


def integers(left: str, right: str, m: int, n: int, k: int, trans: tuple[bool, bool] = (False, False)) -> Graph:
    graph = Graph()
    a, b = gemm_shapes(m, n, k, trans)
    operands = graph.add_input("a", TensorType(left, a)), graph.add_input("b", TensorType(right, b))
    graph.outputs = [graph.emit("matmul", *operands, trans_a=trans[0], trans_b=trans[1], out_dtype="int32")]
    return graph


@pytest.mark.parametrize("trans", TRANSPOSED)
@pytest.mark.parametrize("shape", [(9, 13, 5), (40, 72, 100), (33, 24, 36)])
def test_tf32_tiles(shape: tuple[int, int, int], trans: tuple[bool, bool]) -> None:
    graph = matmul(*gemm_shapes(*shape, trans), trans=trans, epilogue=True, precision="tf32")
    (launch,) = check(graph, tf32=True)
    assert launch.kind == "gemm_mma"


def test_tf32_rounds_operands_to_the_nearest_and_adds_in_float32() -> None:
    """As if operands were rounded before a GEMM in float32: a truncation would be off by twice as much."""
    graph = matmul((16, 64), (64, 16), precision="tf32")
    inputs = random_inputs(graph)
    a, b = (round_to_tf32(inputs[name]).astype(np.float64) for name in "ab")
    (got,) = run(lower(graph), inputs, graph.outputs).values()
    np.testing.assert_allclose(got, a @ b, rtol=1e-6, atol=1e-5)
    assert np.abs(got - inputs["a"] @ inputs["b"]).max() > 1e-4


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("tile", mma_tiles(4), ids=lambda t: f"{t.bm}x{t.bn}")
def test_each_tf32_tile_with_a_tail_and_in_parts(tile: MmaTile, parts: int) -> None:
    graph = matmul((tile.bm + 8, 136), (136, tile.bn + 8), precision="tf32")
    group = anchored(graph)
    gemm = indexed_matmul(group)
    launches = emit_mma(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), parts))
    check(graph, launches, tf32=True)


def test_few_rows_of_float32_stay_float32_even_if_tf32_is_allowed() -> None:
    """Reading the operand takes all the time there, and no instruction of the tensor cores is needed."""
    assert check(matmul((3, 64), (64, 40), precision="tf32"))[0].kind == "gemv"


def test_tf32_needs_its_own_permission() -> None:
    assert lower(matmul((64, 64), (64, 64)))[0].kind == "gemm_simt"
    assert lower(matmul((64, 64), (64, 64), precision="tf32"), target("cuda:sm_75"))[0].kind == "gemm_simt"


@pytest.mark.parametrize("trans", TRANSPOSED)
@pytest.mark.parametrize(("left", "right"), BYTES)
def test_bytes_are_multiplied_exactly(left: str, right: str, trans: tuple[bool, bool]) -> None:
    for shape in [(9, 13, 5), (40, 72, 208)]:
        (launch,) = check(integers(left, right, *shape, trans))
        assert launch.kind == "gemm_mma"


@pytest.mark.parametrize(("left", "right"), BYTES)
def test_extreme_bytes(left: str, right: str) -> None:
    graph = integers(left, right, 24, 32, 64)
    low_a, high_a, low_b, high_b = (getattr(np.iinfo(d), end) for d in (left, right) for end in ("min", "max"))
    a = np.where(np.arange(24)[:, None] % 2, low_a, high_a) * np.ones((24, 64), int)
    b = np.where(np.arange(32) % 3, low_b, high_b) * np.ones((64, 32), int)
    values = {"a": a.astype(left), "b": b.astype(right)}
    (got,) = run(lower(graph), values, graph.outputs).values()
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("tile", mma_tiles(1), ids=lambda t: f"{t.bm}x{t.bn}")
def test_each_tile_of_bytes_with_a_tail_and_in_parts(tile: MmaTile, parts: int) -> None:
    graph = integers("uint8", "int8", tile.bm + 8, tile.bn + 8, 272, (False, True))
    group = anchored(graph)
    gemm = indexed_matmul(group)
    launches = emit_mma(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), parts))
    check(graph, launches)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("trans_b", [False, True])
def test_large_tiles_do_not_spill(architecture: str, trans_b: bool) -> None:
    shapes = gemm_shapes(4096, 4096, 4096, (False, trans_b))
    for graph in (
        matmul(*shapes, trans=(False, trans_b), precision="tf32"),
        matmul(*shapes, "int8", trans=(False, True), out_dtype="int32"),
    ):
        (launch,) = lower(graph)
        registers, spilled = resources(launch, architecture)
        assert (spilled, launch.threads) == (0, 256), registers
        assert "cp_async_16" in kernel_text(launch.func, target()).split("__global__")[1]


@pytest.mark.parametrize("batch", [(), (3,)])
def test_constant_bytes_are_packed_along_the_reduction(batch: tuple[int, ...]) -> None:
    graph = Graph()
    a = graph.add_input("a", TensorType("uint8", (*batch, 20, 48)))
    weights = np.random.default_rng(0).integers(-128, 128, (*batch, 48, 24)).astype(np.int8)
    graph.outputs = [graph.emit("matmul", a, graph.constant(weights), out_dtype="int32")]
    (launch,) = check(graph)
    assert any(isinstance(arg, PackedArg) for arg in launch.args)
    body = kernel_text(launch.func, target()).split("__global__")[1]
    assert "ts_cp_async_16" in body
    assert "ts_mma_m16n8k32_u8_s8" in body


@pytest.mark.parametrize("op", ["conv", "conv_transpose"])
@pytest.mark.parametrize(("groups", "channels"), [(1, 16), (2, 16), (3, 2)])
def test_constant_filters_of_bytes_are_packed(op: str, groups: int, channels: int) -> None:
    graph = Graph()
    attrs = {"strides": (1, 2), "before": (1, 0), "after": (1, 1), "dilations": (1, 1), "groups": groups}
    x = graph.add_input("x", TensorType("uint8", (2, 5, 6, channels * groups)))
    pair = (channels, 24 * groups) if op == "conv" else (channels * groups, 24)
    weights = np.random.default_rng(0).integers(-128, 128, (3, 3, *pair)).astype(np.int8)
    more = {"output_padding": (0, 0)} if op == "conv_transpose" else {}
    filters = graph.constant(weights)
    graph.outputs = [graph.emit(op, x, filters, layout="NXC", out_dtype="int32", **attrs, **more)]
    (launch,) = check(graph)
    assert [type(arg) for arg in launch.args] == [ValueArg, PackedArg, ValueArg]
    assert launch.kind == ("gemm_mma" if channels > 8 else "conv_direct")
