"""GEMMs of two run-time operands of bfloat16, whose right one each task packs in pairs: by vectors, and by tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import parser

from tests.amx import cpu_with_tiles
from tests.codegen.kernel_harness import cpu_group, run_launches
from tests.codegen.test_half_dots import DOT, ZEN, here, rounded
from tests.codegen.test_matrix_tiles import HALVES
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import CpuTarget, host_target
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.cpu.gemm import GemmPlan, GemmShape
from tilestitch.passes.plan.cpu.isa import DOTS, HALF_DOTS, TILE_DOTS
from tilestitch.passes.plan.cpu.schedules import CpuDotGemmSchedule
from tilestitch.runtime import load

PRODUCTS = replace(DOT, block_panels=2)
BY_TILES = replace(HALVES, block_panels=2)
SHAPES = [(1, 2, 1, 1), (3, 14, 50, 40), (2, 5, 33, 41), (1, 29, 65, 3), (2, 15, 130, 64), (1, 40, 17, 31)]


def product(
    batch: int, m: int, n: int, k: int, trans_b: bool = False, left: str = "bfloat16", right: str = "bfloat16",
    sums: str = "float32",
) -> Graph:  # fmt: skip
    graph = Graph("product")
    a = graph.add_input("a", TensorType(left, (batch, m, k)))
    b = graph.add_input("b", TensorType(right, (batch, n, k) if trans_b else (batch, k, n)))
    attrs = {"trans_b": True} if trans_b else {}
    graph.outputs = [graph.emit("matmul", a, b, out_dtype=sums, **attrs)]
    return graph


def check(graph: Graph, schedule: CpuDotGemmSchedule, cpu: CpuTarget, broken: float | None = None) -> None:
    a, b = (rounded(*value.shape, seed=i) for i, value in enumerate(graph.inputs))  # type: ignore[misc]
    if broken is not None:
        a[0, 0, -1], b[0, 0, 0] = broken, broken
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=schedule))
    (y,) = run_launches([launch], {"a": a, "b": b}, graph.outputs, cpu).values()
    right = b.swapaxes(-1, -2) if graph.nodes[0].attrs.get("trans_b") else b
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float32) @ right.astype(np.float32)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5 * a.shape[-1])


@here
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_by_pairs(shape: tuple[int, int, int, int], trans_b: bool) -> None:
    check(product(*shape, trans_b), replace(PRODUCTS, stage_left=True), host_target())


@here
@pytest.mark.parametrize("changes", [{}, {"k_block": 3}, {"spill": True}, {"block_panels": 1}], ids=str)
def test_tiles_are_those_of_the_plan(changes: dict[str, Any]) -> None:
    check(product(2, 14, 50, 40), replace(PRODUCTS, **changes), host_target())


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_by_tiles(unit: Any, shape: tuple[int, int, int, int], trans_b: bool) -> None:
    check(product(*shape, trans_b), BY_TILES, cpu_with_tiles())


@here
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_row_and_column(value: float) -> None:
    check(product(2, 5, 20, 41), replace(PRODUCTS, stage_left=True), host_target(), value)


def test_what_is_no_number_stays_there_in_tiles(unit: Any) -> None:
    check(product(2, 5, 20, 41), BY_TILES, cpu_with_tiles(), np.nan)


@pytest.mark.parametrize(
    ("target", "dot"),
    [
        (TargetInfo(isa="avx512", half_dot="vdpbf16ps"), "vdpbf16ps"),
        (TargetInfo(isa="avx512", half_dot="vdpbf16ps", tile_dots=("tdpbf16ps",)), "tdpbf16ps"),
        (TargetInfo(isa="avx512"), None),
    ],
)
def test_they_are_chosen_where_the_cpu_has_the_instruction(target: TargetInfo, dot: str | None) -> None:
    (group,) = make_plan(product(2, 64, 64, 128), PassContext(target)).groups
    assert getattr(group.schedule, "dot", None) == dot


def test_groups_of_32_bits_are_packed_at_run_time() -> None:
    halves = GemmShape(8, 32, 16, a_dtype="bfloat16", b_dtype="bfloat16", packed=False)
    assert halves.multiplied_by(HALF_DOTS["vdpbf16ps"]) and halves.multiplied_by(TILE_DOTS["tdpbf16ps"])
    integers = GemmShape(8, 32, 16, a_dtype="uint8", b_dtype="int8", acc_dtype="int32", packed=False)
    assert integers.multiplied_by(DOTS["vpdpbusd"]) and integers.multiplied_by(TILE_DOTS["tdpbusd"])
    assert not integers.multiplied_by(DOTS["vpmaddwd"])


def test_the_workspace_has_room_for_a_panel_of_pairs() -> None:
    plan = GemmPlan(GemmShape(8, 70, 41, 2, "bfloat16", "bfloat16", packed=False), replace(PRODUCTS, stage_left=True))
    assert plan.panel_bytes >= 21 * 32 * 2 * 2 and not list(plan.reasons())


@here
def test_open_sizes() -> None:
    """As where they are widened to float32."""
    text = "(float[2, 13, t] x, float[2, t, u] w) => (float[2, 13, u] y) { y = MatMul(x, w) }"
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g ' + text)
    compiled = compile_model(model, ZEN, dims={"t": (1, 90), "u": (2, 80)}, precision="bf16")
    found = [g.schedule for g in compiled.plan.groups if g.kind is GroupKind.CONTRACTION]
    assert any(isinstance(schedule, CpuDotGemmSchedule) for schedule in found)
    draw = np.random.default_rng(2)
    with load(compiled.to_bytes()) as loaded:
        for t, u in [(1, 2), (90, 80), (41, 33), (64, 64)]:
            x, w = (draw.standard_normal(shape).astype(np.float32) for shape in ((2, 13, t), (2, t, u)))
            near = [v.astype(rounded(1).dtype).astype(np.float32) for v in (x, w)]
            y = loaded.run({"x": x, "w": w})["y"]
            np.testing.assert_allclose(y, near[0] @ near[1], rtol=1e-5, atol=1e-5 * t)
