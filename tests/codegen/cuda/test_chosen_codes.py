"""Matrices in blocks of which indices choose, on the emulated device, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.cuda.contraction_harness import anchored, check, interpret, lower, resources, run, target
from tests.codegen.cuda.test_codes import FORMS, ORDERS, weights
from tests.frontend.checks import assert_close
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.gemm import codes
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.codegen.launch import PackedArg
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemv import gemv_tile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.cuda.gemm_facts import tiling_of
from tilestitch.passes.schedule.cuda.gemm_tiles import SIMT_TILES
from tilestitch.runtime.emulator import EmulatorOptions

MATRICES = 5


def chosen(
    tiles: int, rows: int, width: int, form: BlockFormat, dtype: str = "float32", exact: bool = False,
    matrices: int = MATRICES,
) -> Graph:  # fmt: skip
    """tanh(x[tiles, rows, K] times matrices chosen by index, plus a bias chosen likewise)."""
    graph = Graph("chosen")
    x = graph.add_input("x", TensorType(dtype, (tiles, rows, form.depth)))
    indices = graph.add_input("indices", TensorType("int64", (tiles,)))
    data = weights(form, matrices * width, exact).reshape(matrices, width, form.blocks, form.block_bytes)
    y = graph.emit("block_matmul", x, graph.constant(data), indices, **form.attrs)
    bias = graph.emit("gather", graph.add_input("bias", TensorType(dtype, (matrices, width))), indices, axis=0)
    wide = graph.emit("broadcast_to", graph.emit("reshape", bias, shape=(tiles, 1, width)), shape=y.shape)
    graph.outputs = [graph.emit("tanh", graph.emit("add", y, wide))]
    return graph


def kernel(graph: Graph) -> CudaLaunch:
    """The launch after that which checks the indices."""
    checking, launch = lower(graph)
    assert checking.kind == "check"
    return launch


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    ("rows", "dtype", "kind"),
    [(1, "float32", "gemv"), (8, "float32", "gemv"), (1, "float16", "gemv"), (1, "bfloat16", "gemv"),
     (33, "float32", "gemm_simt"), (33, "float16", "gemm_mma"), (33, "bfloat16", "gemm_mma")],
)  # fmt: skip
def test_formats_and_kernels(form: BlockFormat, rows: int, dtype: str, kind: str) -> None:
    graph = chosen(7, rows, 37, form, dtype, exact=True)
    (launch,) = check(graph, [kernel(graph)])
    assert launch.kind == kind


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("rows", "dtype"), [(1, "float16"), (64, "float16"), (32, "float32")])
def test_orders_of_blocks(rows: int, dtype: str, order: str) -> None:
    form = BlockFormat("int4", 32, "float16", True, 1056)
    graph = chosen(3, rows, 101, form, dtype)
    check(graph, [kernel(graph)], EmulatorOptions(block_order=order, seed=3))


@pytest.mark.parametrize(("rows", "dtype"), [(1, "float32"), (33, "float32"), (33, "float16")])
def test_matrices_of_more_than_two_gigabytes(rows: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices take 64 bits then, as they do here from one byte on."""
    monkeypatch.setattr(codes, "WIDE_FROM", 1)
    graph = chosen(4, rows, 37, FORMS[1], dtype, exact=True)
    launch = kernel(graph)
    assert "int64_t" in kernel_text(launch.func, target())
    check(graph, [launch])


@pytest.mark.parametrize("rows", [1, 40])
def test_indices_from_the_end_and_out_of_range(rows: int) -> None:
    """Those out of range are reported by a launch of their own; no kernel reads outside the weights."""
    graph = chosen(4, rows, 37, FORMS[1])
    launch = kernel(graph)
    x, bias = (np.random.default_rng(0).standard_normal(v.shape).astype(np.float32) for v in graph.inputs[::2])
    feeds = {"x": x, "bias": bias, "indices": np.array([-1, -5, 0, 4])}
    constants = {v.name: np.asarray(v.data) for v in graph.constants}
    (found,) = run([launch], {**feeds, **constants}, graph.outputs).values()
    assert_close(found, interpret(graph, feeds)[graph.outputs[0]])
    run([launch], {**feeds, **constants, "indices": np.array([5, -6, 1 << 40, -(1 << 40)])}, graph.outputs)


@pytest.mark.parametrize("form", [FORMS[1], FORMS[4]], ids=str)
def test_nothing_spills(form: BlockFormat) -> None:
    deep = BlockFormat(form.codes, form.block, form.scales, form.zeros, 2880)
    for architecture in ("sm_80", "sm_90a"):
        cuda = parse_cuda_target(f"cuda:{architecture}")
        for rows, dtype in ((1, "float16"), (64, "float16"), (64, "float32")):
            *_, launch = lower(chosen(8, rows, 512, deep, dtype), cuda)
            _, spilled = resources(launch, architecture, cuda)
            assert spilled == 0, (launch.kind, architecture)


def test_all_kernels_read_the_same_packed_matrices() -> None:
    form = FORMS[1]
    graphs = [chosen(3, rows, 64, form, dtype) for rows, dtype in ((1, "float32"), (40, "float16"))]
    packed = [arg for graph in graphs for arg in lower(graph)[-1].args if isinstance(arg, PackedArg)]
    (data,) = {v.data.tobytes() for v in graphs[0].constants if v.data is not None and v.data.dtype == np.uint8}
    assert len({arg.key for arg in packed}) == 1
    matrices = np.frombuffer(data, np.uint8).reshape(MATRICES, 64, form.blocks, form.block_bytes)
    assert packed[0].arrange(matrices).nbytes < 1.3 * len(data)


@pytest.mark.parametrize(("tiles", "read"), [(2, 2), (40, 32)])
def test_the_cost_model_is_told_of_the_chosen_matrices(tiles: int, read: int) -> None:
    form, width = BlockFormat("int4", 32, "float32", False, 256), 128
    few, many = (gemm_of(anchored(chosen(tiles, rows, width, form, matrices=32))) for rows in (1, 64))
    assert few is not None and many is not None
    for gemm, tile, rows in ((few, gemv_tile(few), 1), (many, next(t for t in SIMT_TILES if t.bm == 32), 2)):
        tiling = tiling_of(gemm, GemmSchedule(tile))
        assert [each.operations for each in tiling.widening] == [2 * rows * tiles * width * form.depth]
        assert tiling.again[1] == rows * tiles / read
