"""GEMMs of two run-time operands of bytes, whose right one each task packs in groups of four."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.amx import cpu_with_tiles
from tests.codegen import test_half_products
from tests.codegen.kernel_harness import cpu_group, run_launches
from tests.codegen.test_half_products import SHAPES
from tests.codegen.test_matrix_tiles import BYTES
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import CpuTarget, host_target
from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.plan.cpu.schedules import CpuDotGemmSchedule

BY_VECTORS = CpuDotGemmSchedule(6, 2, 16, 2, 2, 1024, stage_left=True)
here = pytest.mark.skipif(host_target().dot != "vpdpbusd", reason="this CPU has no vpdpbusd")


def product(batch: int, m: int, n: int, k: int, trans_b: bool = False) -> Graph:
    return test_half_products.product(batch, m, n, k, trans_b, "uint8", "int8", "int32")


def check(graph: Graph, schedule: CpuDotGemmSchedule, cpu: CpuTarget) -> None:
    draw = np.random.default_rng(1)
    a = draw.integers(0, 256, graph.inputs[0].shape).astype(np.uint8)
    b = draw.integers(-128, 128, graph.inputs[1].shape).astype(np.int8)
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=schedule))
    (y,) = run_launches([launch], {"a": a, "b": b}, graph.outputs, cpu).values()
    right = b.swapaxes(-1, -2) if graph.nodes[0].attrs.get("trans_b") else b
    np.testing.assert_array_equal(y, a.astype(np.int32) @ right.astype(np.int32))


@here
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 13, 48, 66), (1, 7, 20, 260)], ids=str)
def test_by_vectors(shape: tuple[int, int, int, int], trans_b: bool) -> None:
    check(product(*shape, trans_b), BY_VECTORS, host_target())


@here
@pytest.mark.parametrize("changes", [{}, {"k_block": 3}, {"spill": True}, {"stage_left": False}], ids=str)
def test_vectors_are_those_of_the_plan(changes: dict[str, Any]) -> None:
    check(product(2, 14, 50, 40), replace(BY_VECTORS, **changes), host_target())


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (1, 33, 20, 130)], ids=str)
def test_by_tiles(unit: Any, shape: tuple[int, int, int, int], trans_b: bool) -> None:
    check(product(*shape, trans_b), replace(BYTES, block_panels=2), cpu_with_tiles())


@pytest.mark.parametrize(
    ("target", "dot"),
    [
        (TargetInfo(isa="avx512", dot="vpdpbusd"), "vpdpbusd"),
        (TargetInfo(isa="avx512", dot="vpdpbusd", tile_dots=("tdpbusd",)), "tdpbusd"),
        (TargetInfo(isa="avx2", dot="vpmaddwd"), None),
    ],
)
def test_they_are_chosen_where_the_cpu_has_the_instruction(target: TargetInfo, dot: str | None) -> None:
    (group,) = make_plan(product(2, 64, 64, 128), PassContext(target)).groups
    assert getattr(group.schedule, "dot", None) == dot
