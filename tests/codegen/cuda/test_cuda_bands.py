"""Row-wise work after a GEMM, in its launch: the last block of a band of rows computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.codegen.cuda import contraction_harness
from tests.codegen.cuda.contraction_harness import check, random_inputs, resources, target
from tests.codegen.cuda.test_wgmma import name_of
from tests.codegen.kernel_harness import interpret
from tests.compiled import assert_close
from tests.tolerances import SUMS
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.gemm import mma as gemm_mma
from tilestitch.codegen.cuda.gemm import simt as gemm_simt
from tilestitch.codegen.cuda.gemm.contraction import indexed_matmul
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm
from tilestitch.codegen.cuda.gemm.wgmma import emit_wgmma
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.rows.bands import BandRows
from tilestitch.codegen.cuda.stitched import private
from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.codegen.groups import roles_in, view_group
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.cost_model.models import RandomModel
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes import PassContext, TargetInfo, check_plan, make_plan
from tilestitch.passes.fusion.rules.combining import Bands
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.access import positions
from tilestitch.passes.plan.gemm.partition import cut
from tilestitch.passes.plan.gemm.rows_after import RowsAfter
from tilestitch.passes.plan.gemm.tiles import MmaTile, SimtTile, WgmmaTile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.cuda.gemm import band_schedule
from tilestitch.passes.schedule.cuda.gemm_tiles import MMA_TILES, SIMT_TILES
from tilestitch.passes.schedule.cuda.gemm_tiles import WGMMA_TILES as TILES
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.emulator.errors import KernelFaultError

ORDERS = [
    EmulatorOptions(),
    EmulatorOptions(block_order="reversed", thread_order="reversed"),
    EmulatorOptions(block_order="adversarial", thread_order="random", seed=7),
]
Rows = Callable[[Graph, Value], Value]


def total(graph: Graph, x: Value, op: str = "reduce_sum") -> Value:
    return graph.emit(op, x, axes=(len(x.shape) - 1,), keepdims=True)


def layer_norm(graph: Graph, x: Value) -> Value:
    scale = graph.add_input("scale", TensorType(x.dtype, x.shape[-1:]))
    share, epsilon = graph.constant(1 / x.shape[-1], x.dtype), graph.constant(0.1, x.dtype)
    centred = graph.emit("sub", x, graph.emit("mul", total(graph, x), share))
    variance = graph.emit("mul", total(graph, graph.emit("mul", centred, centred)), share)
    return graph.emit(
        "mul", graph.emit("div", centred, graph.emit("sqrt", graph.emit("add", variance, epsilon))), scale
    )


def softmax(graph: Graph, x: Value) -> Value:
    weights = graph.emit("exp", graph.emit("sub", x, total(graph, x, "reduce_max")))
    return graph.emit("div", weights, total(graph, weights))


def log_softmax(graph: Graph, x: Value) -> Value:
    centred = graph.emit("sub", x, total(graph, x, "reduce_max"))
    return graph.emit("sub", centred, graph.emit("log", total(graph, graph.emit("exp", centred))))


def rms_norm(graph: Graph, x: Value) -> Value:
    squares = graph.emit("add", total(graph, graph.emit("mul", x, x)), graph.constant(0.5, x.dtype))
    return graph.emit("div", x, graph.emit("sqrt", squares))


def dense(
    m: int, n: int, k: int, dtype: str = "float32", *, after: Rows = layer_norm, batch: tuple[int, ...] = (),
    residual: bool = True, stored: bool = False,
) -> Graph:  # fmt: skip
    """after(x @ w + bias + residual); `stored`: what the rows are computed from is an output, too."""
    graph = Graph("dense")
    x = graph.add_input("x", TensorType(dtype, (*batch, m, k)))
    w = graph.add_input("w", TensorType(dtype, (*batch, k, n)))
    y = graph.emit("add", graph.emit("matmul", x, w), graph.add_input("bias", TensorType(dtype, (n,))))
    if residual:
        y = graph.emit("add", y, graph.add_input("r", y.tensor_type))
    graph.outputs = [after(graph, y), *([y] if stored else [])]
    return graph


def banded(graph: Graph, name: str = "cuda:sm_80", model: LatencyModel | None = None) -> Group:
    """The one group that the whole graph becomes."""
    context = PassContext(target(name).planned_for, {"planner": "stitch"}, rules=(Bands(forced=True),))
    context.cost_model = model or context.cost_model
    plan = make_plan(graph, context)
    check_plan(plan, graph)
    (group,) = plan.groups
    assert group.tie == "band", plan.refusals
    return group


def lower(graph: Graph, name: str = "cuda:sm_80", model: LatencyModel | None = None) -> tuple[CudaLaunch, ...]:
    return lower_group(graph, banded(graph, name, model), target(name))


def by_tile(
    graph: Graph, name: str, tile: SimtTile | MmaTile | WgmmaTile, parts: int,
    emit: Callable[[Anchored, IndexedGemm], tuple[CudaLaunch, ...]],
) -> list[CudaLaunch]:  # fmt: skip
    """The launches of the graph by a tile of our choice."""
    group = banded(graph, name)
    first, second = (view_group(graph, part) for part in group.parts)
    anchored = Anchored(first.nodes, roles_in(first), first.inputs, first.outputs, target(name))
    after = RowsAfter.of(second, anchored.result.shape[-1])
    gemm = indexed_matmul(anchored)
    schedule = band_schedule(gemm, GemmSchedule(tile, parts), after, target(name).device)
    rows = after.work(32 if isinstance(tile, WgmmaTile) else tile.threads).schedule
    anchored = replace(anchored, after=BandRows.scheduled(second, after.columns, schedule, rows))
    inner = {v.name: v.tensor_type.nbytes for v in first.outputs if v.name not in group.outputs}
    return [private(launch, inner) for launch in emit(anchored, indexed_matmul(anchored))]


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: o.block_order)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((67, 131, 24), "float32"), ((37, 64, 96), "float16"), ((96, 144, 64), "bfloat16"), ((1, 97, 40), "float32")],
)
def test_rows_after_a_gemm_are_one_launch(shape: tuple[int, int, int], dtype: str, options: EmulatorOptions) -> None:
    (launch,) = check(dense(*shape, dtype), lower, options, runs=3)
    assert not launch.cooperative


@pytest.mark.parametrize(("dtype", "name"), [("float32", "cuda:sm_80"), ("float16", "cuda:sm_90a")])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_right_whatever_a_model_chooses(seed: int, dtype: str, name: str) -> None:
    by_chance = partial(lower, name=name, model=RandomModel(seed))
    check(dense(67, 136, 512, dtype), by_chance, ORDERS[seed], runs=2)


@pytest.mark.parametrize("after", [softmax, log_softmax, rms_norm])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_statistics_of_rows(after: Rows, dtype: str) -> None:
    check(dense(45, 72, 32, dtype, after=after), lower, ORDERS[2], runs=2)


@pytest.mark.parametrize(("m", "n"), [(16, 16), (3, 2), (33, 4)])
def test_bands_of_fewer_rows_than_threads_take_in_a_turn(m: int, n: int) -> None:
    check(dense(m, n, 64, after=softmax), lower, ORDERS[2], runs=2)


def test_batches_have_bands_of_their_own() -> None:
    check(dense(21, 40, 16, batch=(3,)), lower, ORDERS[2], runs=2)


@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_90a"])
def test_a_turn_of_a_block_may_be_more_than_a_band(name: str) -> None:
    """Short rows: the threads of a block compute more of them at once than a tile has."""
    check(dense(12, 12, 64, after=softmax, batch=(1, 4)), lambda g: lower(g, name), ORDERS[2], runs=2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_the_rows_are_computed_from_may_be_stored(dtype: str) -> None:
    graph = dense(35, 80, 24, dtype, stored=True)
    assert len(banded(graph).outputs) == 2
    check(graph, lower, ORDERS[1], runs=2)


def test_a_row_of_the_gemm_may_hold_several_rows() -> None:
    """The heads of a projection, each normalised by itself."""
    graph = Graph("heads")
    x, w = graph.add_input("x", TensorType("float32", (26, 24))), graph.add_input("w", TensorType("float32", (24, 120)))
    heads = graph.emit("reshape", graph.emit("matmul", x, w), shape=(26, 3, 40))
    graph.outputs = [rms_norm(graph, heads)]
    check(graph, lower, ORDERS[2], runs=2)


@pytest.mark.parametrize(("dtype", "name"), [("float32", "cuda:sm_80"), ("float16", "cuda:sm_90a")])
def test_channels_after_a_convolution(dtype: str, name: str) -> None:
    """Embeddings of patches of an image, normalised."""
    graph = Graph("patches")
    x = graph.add_input("x", TensorType(dtype, (2, 20, 12, 8)))
    w = graph.add_input("w", TensorType(dtype, (4, 4, 8, 72)))
    zeros = (0, 0)
    y = graph.emit(
        "conv", x, w, strides=(4, 4), before=zeros, after=zeros, dilations=(1, 1), groups=1, layout="NXC"
    )  # fmt: skip
    graph.outputs = [layer_norm(graph, y)]
    check(graph, lambda g: lower(g, name), ORDERS[2], runs=2)


@pytest.mark.parametrize(("n", "parts"), [(61, 1), (64, 3), (520, 1), (131, 3)])
def test_ordinary_tiles(n: int, parts: int) -> None:
    """Rows within one tile, of several tiles, and of which a thread cannot keep its share."""
    tile = SIMT_TILES[9] if n == 520 else SIMT_TILES[7]

    def emit(group: Anchored, gemm: IndexedGemm) -> tuple[CudaLaunch, ...]:
        return gemm_simt.emit_simt(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), parts))

    graph = dense(75, n, 3 * tile.bk)
    check(graph, by_tile(graph, "cuda:sm_80", tile, parts, emit), ORDERS[2], runs=2)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("tile", MMA_TILES, ids=lambda t: f"{t.bm}x{t.bn}")
def test_tiles_of_the_tensor_cores(tile: MmaTile, parts: int) -> None:
    def emit(group: Anchored, gemm: IndexedGemm) -> tuple[CudaLaunch, ...]:
        return gemm_mma.emit_mma(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), parts))

    graph = dense(tile.bm + 9, 2 * tile.bn + 8, 72, "float16")
    check(graph, by_tile(graph, "cuda:sm_80", tile, parts, emit), ORDERS[2], runs=2)


@pytest.mark.parametrize(
    ("tile", "parts"),
    [(TILES[0], 1), (TILES[1], 2), (TILES[3], 2), (TILES[5], 1), (TILES[-1], 1), (TILES[-1], 2)],
    ids=lambda x: name_of(x) if isinstance(x, WgmmaTile) else f"{x} parts",
)
def test_warps_of_hopper(tile: WgmmaTile, parts: int) -> None:
    def emit(group: Anchored, gemm: IndexedGemm) -> tuple[CudaLaunch, ...]:
        blocks = 3 * tile.cluster
        return emit_wgmma(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), parts), blocks)

    graph = dense(tile.bm + 9, 2 * tile.bn + 8, 136, "float16")
    check(graph, by_tile(graph, "cuda:sm_90a", tile, parts, emit), ORDERS[2], runs=2)


@pytest.mark.parametrize(("dtype", "name"), [("float32", "cuda:sm_80"), ("float16", "cuda:sm_90a")])
def test_an_artifact_runs_again_and_again(dtype: str, name: str) -> None:
    """The counters of one run are as the next one wants them."""
    graph = dense(72, 256, 40, dtype, after=softmax, stored=True)
    plan = make_plan(
        graph, PassContext(TargetInfo("cuda", 2, "H100"), {"planner": "stitch"}, rules=[Bands(forced=True)])
    )
    assert [group.tie for group in plan.groups] == ["band"]
    backend = CudaBackend(target(name), BuildOptions(text_only=True))
    assembled = assemble([Planned(graph, plan, ("y", "p"))], backend, keep_source=True, progress=lambda *_: None)
    inputs = [random_inputs(graph, seed) for seed in range(3)]
    data = artifact_bytes(replace(assembled.contents, compiler_version="test"))
    with load(data, device=EmulatorOptions(block_order="random", seed=1)) as module:
        for feeds in inputs:
            expected = interpret(graph, feeds)
            for value, got in zip(graph.outputs, module.run(feeds).values(), strict=True):
                assert_close(got, expected[value], SUMS[dtype])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("atom.acq_rel.gpu.global.add", "atom.relaxed.gpu.global.add"),
        ("ld.acquire.gpu.global", "ld.relaxed.gpu.global"),
        ("return before != run;", "return 1;"),
    ],
    ids=["no release", "no acquire", "every share taken twice"],
)
def test_faults_of_the_hand_over_are_found(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    def broken(func: Any, cuda: CudaTarget) -> str:
        text = kernel_text(func, cuda)
        assert right in text
        return text.replace(right, wrong)

    monkeypatch.setattr(contraction_harness, "kernel_text", broken)
    with pytest.raises(KernelFaultError, match="race"):
        check(dense(64, 192, 32), lower, ORDERS[2])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tensors_that_need_wide_indices(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(positions, "INT32_ELEMENTS", 1)
    check(dense(37, 136, 24, dtype), lower, ORDERS[1], runs=2)


@pytest.mark.parametrize(
    ("rows", "dtype", "name", "kind"),
    [
        (128, "float32", "cuda:sm_80", "gemm_simt"),
        (128, "bfloat16", "cuda:sm_80", "gemm_mma"),
        (512, "float16", "cuda:sm_90a", "gemm_wgmma"),
    ],
)
def test_gpus_have_registers_enough(rows: int, dtype: str, name: str, kind: str) -> None:
    """A row of a transformer lies in the registers of a warp; a few may be saved around the slow path of a root."""
    (launch,) = lower(dense(rows, 768, 768, dtype), name)
    assert launch.kind == kind
    registers, spilled = resources(launch, name.removeprefix("cuda:"), target(name))
    assert registers <= 168 and spilled <= 16
