"""One row of floats by 4-bit weights in blocks is multiplied in integers, as near to exact as in floats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.codegen.kernel_harness import run_launches
from tests.compiler.test_block_weights import by_index, floats, n_bits, random
from tests.compiler.test_rounded_rows import FORMS, TARGET, graph_of, launch_of, multiplies_bytes, results
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.ir import reference
from tilestitch.passes import PassContext, make_plan
from tilestitch.passes.plan.cpu.gemm import PLANES
from tilestitch.passes.plan.cpu.schedules import CpuBlockDotGemmSchedule, CpuBlockGemmSchedule


def planes(compiled: CompiledModel) -> int:
    """Of the only matmul; 0 where it multiplies floats."""
    parts = [part for group in compiled.plan.groups for part in group.parts or (group,)]
    (schedule,) = (part.schedule for part in parts if isinstance(part.schedule, CpuBlockGemmSchedule))
    return schedule.planes if isinstance(schedule, CpuBlockDotGemmSchedule) else 0


def weights(data: bytes, depth: int) -> np.ndarray:
    """[depth, width] in float64, of 4-bit codes."""
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(data).graph.initializer}
    width, blocks, size = stored["w"].shape
    codes = np.stack([stored["w"] & 15, stored["w"] >> 4], -1).reshape(width, blocks, 2 * size).astype(np.float64)
    points = np.full((width, blocks), 8.0)
    if "z" in stored:
        points = np.stack([stored["z"] & 15, stored["z"] >> 4], -1).reshape(width, -1)[:, :blocks].astype(np.float64)
    wide = (codes - points[..., None]) * stored["s"].astype(np.float64)[..., None]
    return wide.reshape(width, -1)[:, :depth].T


def with_large(factor: float) -> np.ndarray:
    x = floats(1, 320)
    x[0, ::64] *= np.float32(factor)
    return x


ROWS = {
    "usual": floats(1, 320),
    "one large element": with_large(50),
    "one much larger": with_large(2e4),
    "one that hides the others": with_large(1e9),
    "mostly zero": floats(1, 320) * (random(3).random((1, 320)) < 0.05),
    "of all magnitudes": (floats(1, 320) * 10.0 ** random(4).uniform(-12, 12, (1, 320))).astype(np.float32),
    "zero": np.zeros((1, 320), np.float32),
    "tiny": floats(1, 320) * np.float32(1e-36),
    "subnormal": np.full((1, 320), 1e-41, np.float32),
    "huge": floats(1, 320) * np.float32(1e35),
}


@multiplies_bytes
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("row", ROWS)
def test_results_are_as_near_as_those_of_floats(row: str, zeros: bool) -> None:
    x = ROWS[row].astype(np.float32)
    data = n_bits(x, 300, zeros=zeros)
    y, compiled = results(data, x)
    assert planes(compiled) == PLANES
    w, wide = weights(data, x.shape[1]), x.astype(np.float64)
    np.testing.assert_array_less(np.abs(y - wide @ w), 6e-7 * (np.abs(wide) @ np.abs(w)) + 1e-43)


@multiplies_bytes
@pytest.mark.parametrize(
    "factors", [(1.0,), (1e3,), (1e6,), (1e12,), (1e4, 1e2), (1e6, 1e4), (1e9, 1e7, 1e5), (1e12, 1e12)]
)
def test_what_large_elements_times_zero_hide_is_not_lost(factors: tuple[float, ...]) -> None:
    x = floats(1, 64)
    proto = onnx.load_from_string(n_bits(x, 257))
    w = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    for number, factor in enumerate(factors):
        x[0, 3 + 2 * number] = factor
        w[:, 0, 1 + number] = (w[:, 0, 1 + number] & 15) | 0x80  # the code of 0
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    data = proto.SerializeToString()
    y, _ = results(data, x)
    exact, wide = weights(data, 64), x.astype(np.float64)
    np.testing.assert_array_less(np.abs(y - wide @ exact), 6e-7 * (np.abs(wide) @ np.abs(exact)))


@multiplies_bytes
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_multiplied_as_floats(odd: float) -> None:
    x = floats(1, 64)
    x[0, 40] = odd
    data = n_bits(x, 257)
    y, compiled = results(data, x)
    assert planes(compiled) == PLANES
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(y, x.astype(np.float64) @ weights(data, 64), rtol=1e-5)


@multiplies_bytes
@pytest.mark.parametrize("block", [16, 64, 256])
@pytest.mark.parametrize("width", [256, 300])
def test_blocks_of_all_sizes(block: int, width: int) -> None:
    x = floats(1, 2 * block - 5)
    data = n_bits(x, width, block=block, zeros=True)
    y, compiled = results(data, x)
    assert planes(compiled) == PLANES
    np.testing.assert_allclose(y, x.astype(np.float64) @ weights(data, x.shape[1]), rtol=1e-5, atol=1e-5)


@multiplies_bytes
def test_rows_of_a_block_lie_anywhere() -> None:
    x = floats(1, 64)
    data, groups = n_bits(x, 256), random(5).permutation(np.arange(64) // 32)
    plain = weights(data, 64).reshape(64, 256)
    y, compiled = results(by_index(data, groups), x)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(data).graph.initializer}
    codes = plain / np.repeat(stored["s"].T.astype(np.float64), 32, 0)
    assert planes(compiled) == PLANES
    np.testing.assert_allclose(y, x.astype(np.float64) @ (codes * stored["s"].T[groups]), rtol=1e-5, atol=1e-5)


SCHEDULE = CpuBlockDotGemmSchedule(1, 4, 16, 1, 1, 40, stage_left=True, planes=PLANES)


@multiplies_bytes
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"lanes": 8, "vectors": 3}, {"lanes": 4, "vectors": 1}, {"spill": True}, {"prefetch_ahead": True},
     {"block_panels": 2, "vectors": 1}],
)  # fmt: skip
@pytest.mark.parametrize("largest", [1.0, 1e9])
def test_kernels_are_those_of_the_plan(form: str, changes: dict[str, Any], largest: float) -> None:
    graph = graph_of(FORMS[form], rows=1, rounds=False)
    launch = launch_of(graph, replace(SCHEDULE, **changes))
    x, w = floats(1, 40), graph.nodes[0].inputs[1]
    x[0, 3] *= np.float32(largest)
    assert w.data is not None
    (y,) = run_launches([launch], {"x": x, w.name: w.data}, graph.outputs).values()
    (expected,) = reference("block_matmul")([x, w.data], graph.nodes[0].attrs)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("rows", "schedule", "problem"),
    [
        (3, replace(SCHEDULE, rows=3), "planes are of one row"),
        (1, replace(SCHEDULE, planes=3), "split into 4 planes, not 3"),
        (1, replace(SCHEDULE, planes=1), "where the operator says so"),
    ],
)
def test_what_no_kernel_does_is_refused(rows: int, schedule: CpuBlockDotGemmSchedule, problem: str) -> None:
    with pytest.raises(KernelError, match=problem):
        launch_of(graph_of(FORMS["int4"], rows=rows, rounds=False), schedule)


def test_several_rows_few_columns_and_rounded_ones_have_other_kernels() -> None:
    for rows, width, rounds, expected in (
        (1, 256, False, PLANES),
        (2, 256, False, 0),
        (1, 255, False, 0),
        (1, 256, True, 1),
    ):
        graph = graph_of(FORMS["int4"], rows=rows, width=width, rounds=rounds)
        schedule = make_plan(graph, PassContext(TARGET)).groups[0].schedule
        assert getattr(schedule, "planes", 0) == expected
