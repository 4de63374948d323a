"""Weights in blocks on the emulated device, against numpy: kernels, formats, odd sizes, orders of blocks, spills."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.cuda.contraction_harness import anchored, check, lower, resources, run
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.gemm.contraction import indexed_matmul, packed_weights
from tilestitch.codegen.cuda.gemm.mma import emit_mma
from tilestitch.codegen.cuda.gemm.simt import emit_simt
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.codegen.launch import PackedArg
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes.plan.gemm.codes import Codes
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemv import gemv_tile
from tilestitch.passes.plan.gemm.partition import cut
from tilestitch.passes.plan.gemm.tiles import SimtTile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.cuda.gemm_facts import tiling_of
from tilestitch.passes.schedule.cuda.gemm_tiles import SIMT_TILES, mma_tiles
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.host.blocks import dequantised

ORDERS = ("in_order", "reversed", "adversarial")


def weights(form: BlockFormat, width: int, exact: bool = False) -> np.ndarray:
    """exact: the same in half floats and TF32."""
    random = np.random.default_rng(1)
    most = 1 << form.bits
    codes = random.integers(0, most, (width, form.depth)).astype(np.uint8)
    zeros = random.integers(0, most, (width, form.blocks)).astype(np.uint8) if form.zeros else None
    scales = random.random((width, form.blocks)) * 0.02
    scales = np.exp2(np.round(np.log2(scales))) if exact else scales
    return form.encode(codes, scales.astype(to_numpy_dtype(form.scales)), zeros)


def product(
    rows: int,
    width: int,
    form: BlockFormat,
    dtype: str = "float32",
    epilogue: bool = False,
    exact: bool = False,
    **attrs: str,
) -> Graph:
    """A matmul with weights in blocks; with an epilogue, tanh(matmul + residual)."""
    graph = Graph("blocks")
    x = graph.add_input("x", TensorType(dtype, (rows, form.depth)))
    y = graph.emit("block_matmul", x, graph.constant(weights(form, width, exact)), **form.attrs, **attrs)
    if epilogue:
        y = graph.emit("tanh", graph.emit("add", y, graph.add_input("r", y.tensor_type)))
    graph.outputs = [y]
    return graph


def checked(graph: Graph, kind: str, order: str = "adversarial", tf32: bool = False) -> CudaLaunch:
    (launch,) = check(graph, options=EmulatorOptions(block_order=order, seed=3), tf32=tf32)
    assert launch.kind == kind
    return launch


FORMS = [
    BlockFormat("int4", 32, "float32", False, 200), BlockFormat("int4", 16, "float16", True, 72),
    BlockFormat("int4", 8, "bfloat16", True, 41), BlockFormat("int4", 128, "float16", True, 257),
    BlockFormat("int8", 32, "float32", True, 200), BlockFormat("int8", 8, "float16", False, 43),
    BlockFormat("int8", 44, "float32", True, 43), BlockFormat("nf4", 64, "float32", False, 130),
    BlockFormat("fp4", 64, "float16", False, 64), BlockFormat("nf4", 16, "float32", True, 40),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_formats_and_tails(form: BlockFormat) -> None:
    """The last block is partial, and so is the last lump of a column."""
    checked(product(3, 37, form, epilogue=True), "gemv")
    checked(product(11, 37, form, epilogue=True), "gemm_simt")
    checked(product(11, 37, form, "float16", epilogue=True, exact=True), "gemm_mma")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("rows", "kind"), [(1, "gemv"), (33, "gemm_mma")])
def test_orders_of_blocks(rows: int, kind: str, order: str) -> None:
    checked(product(rows, 101, BlockFormat("int4", 32, "float16", True, 2080), "float16"), kind, order)


@pytest.mark.parametrize("rows", [1, 7, 8])
@pytest.mark.parametrize("width", [1, 31, 64])
def test_few_rows_of_any_width(rows: int, width: int) -> None:
    checked(product(rows, width, BlockFormat("int4", 32, "float32", True, 96)), "gemv")


def test_few_columns_of_many_rows() -> None:
    """The rows are the large operand then; the weights are looked up one by one."""
    for rows, width in ((40, 1), (100, 5)):
        checked(product(rows, width, BlockFormat("int4", 32, "float32", True, 96)), "gemv")


@pytest.mark.parametrize("form", [FORMS[1], FORMS[5]], ids=str)
@pytest.mark.parametrize(
    ("dtype", "attrs"), [("bfloat16", {}), ("float32", {"precision": "tf32"}), ("float16", {"out_dtype": "float32"})]
)
def test_operands_of_tensor_cores(dtype: str, attrs: dict[str, str], form: BlockFormat) -> None:
    checked(product(70, 90, form, dtype, exact=True, **attrs), "gemm_mma", tf32="precision" in attrs)


@pytest.mark.parametrize("form", [FORMS[1], FORMS[6], FORMS[7]], ids=str)
def test_nothing_spills(form: BlockFormat) -> None:
    deep = BlockFormat(form.codes, form.block if form.blocks > 1 else 4096, form.scales, form.zeros, 4096)
    for architecture in ("sm_80", "sm_90a"):
        target = parse_cuda_target(f"cuda:{architecture}")
        for rows, dtype in ((8, "float16"), (300, "float16"), (300, "float32")):
            (launch,) = lower(product(rows, 4096, deep, dtype), target)
            _, spilled = resources(launch, architecture, target)
            assert spilled == 0, (launch.kind, architecture)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_packed_weights_are_as_large_as_their_codes(form: BlockFormat) -> None:
    (launch,) = lower(product(1, 64, form))
    (argument,) = (arg for arg in launch.args if isinstance(arg, PackedArg))
    packed = argument.arrange(weights(form, 64))
    last_lump, table = 64 * 16, 4 * 16
    parameters = form.scale_bytes + form.zeros
    codes = Codes(form, 64, "float32")
    assert packed.nbytes == codes.nbytes
    assert packed.nbytes <= 64 * (form.depth * form.bits // 8 + codes.blocks * parameters) + last_lump + table + 32


def test_all_rows_read_the_same_packed_weights() -> None:
    """One array for all kernels of a weight, whatever they multiply."""
    form = FORMS[1]
    launches = [lower(product(rows, 64, form, dtype))[0] for rows, dtype in ((1, "float32"), (40, "float16"))]
    keys = {arg.key for launch in launches for arg in launch.args if isinstance(arg, PackedArg)}
    assert len(keys) == 1


@pytest.mark.parametrize("form", [FORMS[1], FORMS[5]], ids=str)
@pytest.mark.parametrize(("dtype", "precision"), [("float16", None), ("float32", "tf32")])
def test_each_tile_of_tensor_cores(form: BlockFormat, dtype: str, precision: str | None) -> None:
    """Threads share the codes of every tile evenly, in parts of the reduction, too."""
    for tile in mma_tiles(2 if dtype == "float16" else 4):
        attrs = {} if precision is None else {"precision": precision}
        graph = product(tile.bm + 3, tile.bn + 5, form, dtype, exact=True, **attrs)
        group = anchored(graph)
        group = replace(group, packed=packed_weights(group))
        gemm = indexed_matmul(group)
        partition = cut(gemm, (tile.bm, tile.bn, tile.bk), 2)
        check(graph, emit_mma(group, gemm, tile, partition), tf32=precision is not None)


@pytest.mark.parametrize("tile", SIMT_TILES, ids=lambda t: f"{t.bm}x{t.bn}")
def test_each_ordinary_tile(tile: SimtTile) -> None:
    for form in (FORMS[1], FORMS[4]):
        graph = product(tile.bm + 3, tile.bn + 5, form)
        group = anchored(graph)
        group = replace(group, packed=packed_weights(group))
        gemm = indexed_matmul(group)
        check(graph, emit_simt(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), 2)))


def test_what_the_weights_are() -> None:
    """Of an identity as the left operand: each weight alone, exactly."""
    form = FORMS[1]
    graph = product(form.depth, 24, form)
    (launch,) = lower(graph)
    constants = {v.name: np.asarray(v.data) for v in graph.constants}
    (y,) = run([launch], {"x": np.eye(form.depth, dtype=np.float32), **constants}, graph.outputs).values()
    np.testing.assert_array_equal(y, dequantised(weights(form, 24), form.attrs).T)


def test_the_cost_model_is_told_how_often_codes_become_floats() -> None:
    """Once by few rows; by many, once for each row of tiles."""
    form, tile = FORMS[1], next(tile for tile in SIMT_TILES if tile.bm == 64)
    few, many = (gemm_of(anchored(product(rows, 64, form))) for rows in (1, 130))
    assert few is not None and many is not None
    told = [tiling_of(few, GemmSchedule(gemv_tile(few))), tiling_of(many, GemmSchedule(tile))]
    counts = [sum(each.operations for each in tiling.widening) for tiling in told]
    assert counts == [2 * 64 * form.depth, 3 * 2 * 64 * form.depth]
