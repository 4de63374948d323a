"""GEMMs in the tile registers of AMX: which CPUs have them, results, and what plans may say.

Where the CPU has no such registers, a unit in C does the instructions of the machine code that it refuses.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from tests.amx import cpu_with_tiles
from tests.codegen.kernel_harness import cpu_group, run_launches
from tests.codegen.test_dots import assembly
from tests.codegen.test_dots import gemm as bytes_gemm
from tests.codegen.test_half_dots import gated, rounded, stored_as_bfloat16
from tests.codegen.test_half_dots import gemm as halves_gemm
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import parse_target
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan.cpu.gemm import GemmPlan, GemmShape
from tilestitch.passes.plan.cpu.isa import TILE_DOTS
from tilestitch.passes.plan.cpu.schedules import CpuDotGemmSchedule, CpuTileGemmSchedule
from tilestitch.passes.planner import check_plan
from tilestitch.runtime import load
from tilestitch.runtime.cpu import features
from tilestitch.runtime.errors import DeviceError

TILES = TargetInfo(isa="avx512", dot="vpdpbusd", half_dot="vdpbf16ps", tile_dots=("tdpbusd", "tdpbf16ps"))
HALVES = CpuTileGemmSchedule(32, 2, 16, 2, 1, 1024, stage_left=True, spill=True, dot="tdpbf16ps")
BYTES = replace(HALVES, dot="tdpbusd")
CHANGES: list[dict[str, Any]] = [
    {}, {"rows": 16}, {"rows": 5, "block_tiles": 3}, {"rows": 23, "vectors": 1}, {"block_tiles": 1, "block_panels": 2},
    {"rows_outer": True, "block_panels": 2},
]  # fmt: skip
SHAPES = [(40, 50, 70), (1, 1, 1), (33, 17, 64), (32, 32, 128), (100, 130, 100), (17, 16, 31)]


def multiplied(graph: Graph, schedule: CpuTileGemmSchedule, x: np.ndarray) -> np.ndarray:
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=schedule))
    w = graph.nodes[0].inputs[1]
    assert w.data is not None
    (y,) = run_launches([launch], {"x": x, w.name: w.data}, graph.outputs, cpu_with_tiles()).values()
    return y


def check_bytes(graph: Graph, schedule: CpuTileGemmSchedule) -> None:
    x = np.random.default_rng(1).integers(0, 256, graph.inputs[0].shape).astype(np.uint8)
    w = graph.nodes[0].inputs[1].data
    assert w is not None
    left = x.T if graph.nodes[0].attrs.get("trans_a") else x
    np.testing.assert_array_equal(multiplied(graph, schedule, x), left.astype(np.int32) @ w.astype(np.int32))


def check_halves(graph: Graph, schedule: CpuTileGemmSchedule, x: np.ndarray) -> None:
    w = graph.nodes[0].inputs[1].data
    assert w is not None
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float32) @ w.astype(np.float32)
    np.testing.assert_allclose(multiplied(graph, schedule, x), expected, rtol=1e-5, atol=1e-5 * x.shape[1])


@pytest.mark.parametrize(
    ("name", "dots"),
    [("cpu:sapphirerapids", TILES.tile_dots), ("cpu:sapphirerapids,-amx-bf16", ("tdpbusd",)), ("cpu:znver4", ())]
    + [("cpu:sapphirerapids,-amx-tile", ()), ("cpu:aarch64-linux-gnu/neoverse-v2", ())],
)
def test_which_cpus_have_them(name: str, dots: tuple[str, ...]) -> None:
    assert parse_target(name).tile_dots == dots


@pytest.mark.parametrize(
    ("graph", "dot"), [(bytes_gemm(64, 64, 128), "tdpbusd"), (halves_gemm(64, 64, 128), "tdpbf16ps")]
)
def test_what_is_large_is_multiplied_in_tiles(graph: Graph, dot: str) -> None:
    """In the main loop are loads and multiplications of tiles only: four of each."""
    (group,) = make_plan(graph, PassContext(TILES)).groups
    assert isinstance(group.schedule, CpuTileGemmSchedule) and group.schedule.dot == dot
    (launch,) = lower_group(graph, group)
    text = assembly(launch, parse_target("cpu:sapphirerapids"))
    names = re.findall(r"^\s(tile\w+|tdp\w+|ldtilecfg)\b", text, re.MULTILINE)
    assert names[0] == "ldtilecfg" and "tilerelease" in names
    steps = re.findall(rf"(?:tileloadd ){{4}}(?:{dot} ){{4}}", " ".join(names) + " ")
    assert steps and names.count(dot) == 4 * len(steps)


@pytest.mark.parametrize(("cpu", "rounds"), [("sapphirerapids", True), ("sapphirerapids,-avx512bf16", False)])
def test_results_are_rounded_by_one_instruction_where_there_is_one(cpu: str, rounds: bool) -> None:
    graph = stored_as_bfloat16(halves_gemm(64, 64, 128))
    (group,) = make_plan(graph, PassContext(TILES)).groups
    (launch,) = lower_group(graph, group)
    text = assembly(launch, parse_target(f"cpu:{cpu}"))
    assert "tdpbf16ps" in text and ("vcvtneps2bf16" in text) == rounds and "tilestitch_" not in text


def test_what_is_small_is_not() -> None:
    """A tile costs as much as a whole one; to shape the registers and to store sums costs besides."""
    (group,) = make_plan(halves_gemm(1, 16, 8), PassContext(TILES)).groups
    assert type(group.schedule) is CpuDotGemmSchedule


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_tiles_of_bytes_are_those_of_the_plan(unit: Any, changes: dict[str, Any]) -> None:
    check_bytes(bytes_gemm(50, 70, 100), replace(BYTES, **changes))


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_tiles_of_halves_are_those_of_the_plan(unit: Any, changes: dict[str, Any]) -> None:
    check_halves(halves_gemm(50, 70, 100), replace(HALVES, **changes), rounded(50, 100, seed=1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_odd_sizes(unit: Any, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    check_bytes(bytes_gemm(m, n, k), BYTES)
    check_halves(halves_gemm(m, n, k), HALVES, rounded(m, k, seed=1))


def test_the_largest_bytes_do_not_saturate(unit: Any) -> None:
    graph = Graph("least")
    x = graph.add_input("x", TensorType("uint8", (16, 256)))
    w = graph.constant(np.full((256, 16), -128, np.int8))
    graph.outputs = [graph.emit("matmul", x, w, out_dtype="int32")]
    assert (multiplied(graph, BYTES, np.full((16, 256), 255, np.uint8)) == 255 * -128 * 256).all()


@pytest.mark.parametrize("graph", [bytes_gemm(16, 20, 64), bytes_gemm(64, 33, 128)], ids=["one", "several"])
def test_whole_tiles_are_read_where_they_lie(unit: Any, graph: Graph) -> None:
    check_bytes(graph, replace(BYTES, stage_left=False, rows=16 if graph.inputs[0].shape[0] == 16 else 32))


def test_a_transposed_left_operand(unit: Any) -> None:
    check_bytes(bytes_gemm(20, 33, 70, trans_a=True), BYTES)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_row(unit: Any, value: float) -> None:
    x = rounded(20, 41, seed=1)
    x[3, 5] = value
    check_halves(halves_gemm(20, 40, 41), HALVES, x)


@pytest.mark.parametrize(
    ("graph", "schedule", "reason"),
    [
        (bytes_gemm(), replace(BYTES, rows=33), "one or two tiles of 16 rows"),
        (bytes_gemm(), replace(BYTES, vectors=3), "one or two tiles of 16 rows"),
        (bytes_gemm(), replace(BYTES, lanes=8), "has 16 sums, not 8"),
        (bytes_gemm(k=640), replace(BYTES, k_block=16), "summed in one pass"),
        (bytes_gemm(), replace(BYTES, spill=False), "results spilled"),
        (bytes_gemm(14, 50, 64), replace(BYTES, stage_left=False), "in whole tiles"),
        (bytes_gemm(16, 50, 40), replace(BYTES, stage_left=False), "in whole tiles"),
        (bytes_gemm(left="int8"), BYTES, "multiplies uint8 by constant int8"),
        (bytes_gemm(), replace(BYTES, dot="vpdpbusd"), "no instruction 'vpdpbusd' multiplies so"),
        (bytes_gemm(), replace(BYTES, prefetch_ahead=True), "ask for no other"),
        (halves_gemm(16, 50, 64), replace(HALVES, stage_left=False), "rows of bfloat16 are copied"),
    ],
)
def test_what_cannot_be_emitted_is_refused(graph: Graph, schedule: CpuTileGemmSchedule, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        lower_group(graph, replace(cpu_group(graph), schedule=schedule))


def test_tiles_take_whole_rows_of_the_workspace() -> None:
    """The last tile of 50 rows is of 25, and reads 32."""
    plan = GemmPlan(GemmShape(50, 70, 100, a_dtype="uint8", b_dtype="int8", acc_dtype="int32"), BYTES)
    assert (plan.rows.small, plan.tile_rows, plan.rows_beyond) == (25, 32, 7)
    assert plan.packing().shape == (1, 3, 32, 128)


def test_plans_say_what_they_need() -> None:
    graph = halves_gemm(64, 64, 128)
    plan = make_plan(graph, PassContext(TILES))
    assert plan.target.tile_dots == ("tdpbf16ps",) and not plan.target.half_dot
    assert TargetInfo.from_json(plan.target.to_json()) == plan.target
    check_plan(plan, graph, TILES)
    without = replace(TILES, tile_dots=("tdpbusd",))
    with pytest.raises(PlanError, match="need the instruction tdpbf16ps, which cpu"):
        check_plan(plan, graph, without)
    with pytest.raises(PlanError, match="needs the instruction tdpbf16ps, which cpu"):
        check_plan(replace(plan, target=without), graph, without)
    with pytest.raises(PlanError, match="multiplies tiles by 'tdpfp16ps'; known are tdpbusd, tdpbf16ps"):
        replace(TILES, tile_dots=("tdpfp16ps",)).core  # noqa: B018
    assert set(TILE_DOTS) == set(TILES.tile_dots)


def eighths(*shape: int, seed: int = 0) -> np.ndarray:
    """Small multiples of 1/8: sums of their products are exact, whatever their order, and are rounded alike."""
    return np.round(np.random.default_rng(seed).standard_normal(shape) * 8).astype(np.float32) / np.float32(8)


def two_layers() -> onnx.ModelProto:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]>\n'
        "two (float[rows, 96] x) => (float[rows, 80] y) { h = MatMul(x, v) r = Relu(h) y = MatMul(r, w) }"
    )
    for name, shape, seed in (("v", (96, 128), 0), ("w", (128, 80), 1)):
        data = eighths(*shape, seed=seed)
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    return model


def of_layers(x: np.ndarray) -> np.ndarray:
    """With rounding where kernels round: before each GEMM."""
    weights = [numpy_helper.to_array(w) for w in two_layers().graph.initializer]
    hidden = np.maximum(x.astype(ml_dtypes.bfloat16).astype(np.float32) @ weights[0], 0)
    return np.asarray(hidden.astype(ml_dtypes.bfloat16).astype(np.float32) @ weights[1])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_of_any_number_of_rows(permitted: None, unit: Any, threads: int) -> None:
    compiled = compile_model(two_layers(), str(cpu_with_tiles()), precision="bf16", dims={"rows": (1, 300)})
    assert {group.schedule.template for group in compiled.plan.groups if group.anchor} == {"cpu_tile_gemm"}
    with load(compiled.to_bytes(), num_threads=threads) as module:
        for rows in (1, 15, 16, 33, 63, 64, 300):
            x = eighths(rows, 96, seed=rows)
            before = unit.count() if unit is not None else 0
            np.testing.assert_allclose(module.run({"x": x})["y"], of_layers(x), rtol=1e-5, atol=1e-5)
            assert unit is None or unit.count() > before


@pytest.mark.parametrize(("kind", "dot", "tolerance"), [("bf16", "tdpbf16ps", 2e-2), ("int8", "tdpbusd", 1e-5)])
def test_gates_meet_in_the_workspace(permitted: None, unit: Any, kind: str, dot: str, tolerance: float) -> None:
    """Both GEMMs of a gated unit are one kernel; 53 rows are a tile of 27 and one of 26."""
    check_gates(gated(kind, rows=53, depth=150, width=200), kind, dot, tolerance, (53, 150))


def test_gates_of_a_recurrence_meet_in_the_workspace(permitted: None, unit: Any) -> None:
    check_gates(recurrence(20, 64), "bf16", "tdpbf16ps", 2e-2, (3, 20, 64))


def check_gates(model: onnx.ModelProto, kind: str, dot: str, tolerance: float, shape: tuple[int, ...]) -> None:
    precision = "bf16" if kind == "bf16" else "fp32"
    compiled = compile_model(model, str(cpu_with_tiles()), num_threads=2, precision=precision)
    schedules = [group.schedule for group in compiled.plan.groups if isinstance(group.schedule, CpuDotGemmSchedule)]
    assert schedules and {(each.template, each.dot) for each in schedules} == {("cpu_tile_gemm", dot)}
    x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    with load(compiled.to_bytes(), num_threads=2) as loaded:
        actual = loaded.run({"x": x})["y"]
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def recurrence(batch: int, units: int) -> onnx.ModelProto:
    """Three steps of a GRU."""
    random = np.random.default_rng(7)
    weights = [
        numpy_helper.from_array(random.standard_normal((1, 3 * units, units)).astype(np.float32) / 8, name)
        for name in "wr"
    ]
    node = helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=units)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, batch, units))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 1, batch, units))
    graph = helper.make_graph([node], "recurrence", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_a_cpu_without_them_is_refused_by_name() -> None:
    artifact = compile_model(
        two_layers(), "cpu:sapphirerapids", precision="bf16", shapes={"x": (64, 96)}, num_threads=1
    ).to_bytes()
    if "amx_tile" in features.cpu_flags():
        pytest.skip("this CPU has them")
    with pytest.raises(DeviceError, match=r"with .*amx-tile, amx-bf16, which this one lacks"):
        load(artifact)


def test_artifacts_that_need_none_ask_for_none() -> None:
    compiled = compile_model(two_layers(), "cpu:sapphirerapids", shapes={"x": (64, 96)}, num_threads=1)
    assert not [name for name in compiled.contents.target.features if name.startswith("amx")]


def test_linux_may_refuse(permitted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "refused_tiles", lambda: os.strerror(1))
    artifact = compile_model(two_layers(), str(cpu_with_tiles()), precision="bf16", shapes={"x": (64, 96)}).to_bytes()
    with pytest.raises(DeviceError, match=r"tile registers of AMX .*Operation not permitted.*,-amx-tile"):
        load(artifact)


def test_asking_linux_tells_why_it_refuses() -> None:
    """A kernel that does not know the registers says so; nothing is raised."""
    reason = features.refused_tiles()
    assert reason == "" if "amx_tile" in features.cpu_flags() else reason
