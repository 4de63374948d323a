"""Matmuls by weights in blocks whose model allows rounding activations to 8 bits: as ONNX Runtime rounds them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.codegen.kernel_harness import run_launches
from tests.compiler.quantised_models import unoptimised
from tests.compiler.test_block_weights import TOLERANCE, floats, n_bits, random
from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import host_target, parse_target
from tilestitch.codegen.cpu.toolchain.build import _codegen, lower
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.ir import Graph, TensorType, reference
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan.cpu.schedules import CpuBlockDotGemmSchedule, CpuBlockGemmSchedule
from tilestitch.passes.planner import check_plan
from tilestitch.runtime import load

multiplies_bytes = pytest.mark.skipif(host_target().dot != "vpdpbusd", reason="this CPU has no vpdpbusd")


def allowed(data: bytes, level: int = 4) -> bytes:
    """The same with an accuracy_level."""
    proto = onnx.load_from_string(data)
    for node in proto.graph.node:
        node.attribute.append(onnx.helper.make_attribute("accuracy_level", level))
    return bytes(proto.SerializeToString())


def rounded_kernels(compiled: CompiledModel) -> int:
    parts = [part for group in compiled.plan.groups for part in group.parts or (group,)]
    return sum(isinstance(part.schedule, CpuBlockDotGemmSchedule) for part in parts)


def results(data: bytes, x: np.ndarray, **options: Any) -> tuple[np.ndarray, CompiledModel]:
    compiled = compile_model(data, num_threads=1, **options)
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        return loaded.run({"x": x})["y"], compiled


def check(data: bytes, x: np.ndarray) -> None:
    actual, compiled = results(data, x)
    expected = unoptimised(data, {"x": x}).astype(np.float64)
    assert np.abs(actual - expected).max(initial=0) <= TOLERANCE[x.dtype.name] * np.abs(expected).max(initial=1e-30)
    assert rounded_kernels(compiled) == (1 if actual.size else 0)


@multiplies_bytes
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 64), (4, 128), (4, 256), (8, 32), (8, 256)])
def test_blocks_of_all_sizes(bits: int, block: int, zeros: bool) -> None:
    x = floats(3, 200)
    check(allowed(n_bits(x, 70, bits, block, zeros)), x)


@multiplies_bytes
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 17, 40])
@pytest.mark.parametrize("width", [1, 64, 101])
def test_rows_and_columns(rows: int, width: int) -> None:
    x = floats(rows, 40)
    check(allowed(n_bits(x, width, zeros=True, bias=True)), x)


@multiplies_bytes
@pytest.mark.parametrize("rows", [1, 12])
def test_half_floats(rows: int) -> None:
    x = floats(rows, 96, dtype=np.float16)
    check(allowed(n_bits(x, 50, zeros=True)), x)


@multiplies_bytes
@pytest.mark.parametrize("scale", [1.0, 0.037, 1 / 3.7])
@pytest.mark.parametrize("rows", [1, 12])
def test_elements_halfway_between_two_bytes(rows: int, scale: float) -> None:
    """As of embeddings in 4 bits: half of the largest one is at 63.5."""
    x = (np.random.default_rng(0).integers(-8, 9, (rows, 96)) * scale).astype(np.float32)
    check(allowed(n_bits(x, 50)), x)


@multiplies_bytes
def test_more_dimensions() -> None:
    x = floats(2, 3, 64)
    check(allowed(n_bits(x, 33)), x)


@multiplies_bytes
@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-39, 1e-37, 1e30])
def test_magnitudes(scale: float) -> None:
    """What is so small that its scale has no inverse becomes 0, as it is next to any result."""
    x = (floats(2, 64) * np.float32(scale)).astype(np.float32)
    data = allowed(n_bits(x, 20, zeros=True))
    actual, _ = results(data, x)
    plain, _ = results(n_bits(x, 20, zeros=True), x)
    assert np.abs(actual - plain).max() <= 2e-2 * np.abs(plain).max(initial=0) + 1e-36


@multiplies_bytes
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("zeros", [False, True])
def test_what_is_no_number_makes_no_number(value: float, rows: int, zeros: bool) -> None:
    """Of its own row only."""
    x = floats(rows, 70)
    x[0, 3] = value
    actual, _ = results(allowed(n_bits(x, 20, zeros=zeros)), x)
    assert not np.isfinite(actual[0]).any()
    assert np.isfinite(actual[1:]).all()


@multiplies_bytes
def test_rows_of_any_number() -> None:
    proto = onnx.load_from_string(allowed(n_bits(floats(2, 72), 37, zeros=True)))
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    data = proto.SerializeToString()
    compiled = compile_model(data, num_threads=1)
    assert rounded_kernels(compiled) == 1
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        for rows in (0, 1, 3, 8, 17, 40):
            x = floats(rows, 72)
            np.testing.assert_allclose(loaded.run({"x": x})["y"], unoptimised(data, {"x": x}), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("target", "level"), [("cpu:x86-64-v3", 4), ("cpu:x86-64-v4", 4), ("cpu", 0), ("cpu", 1)])
def test_nothing_is_rounded_where_it_gains_nothing_or_is_not_allowed(target: str, level: int) -> None:
    x = floats(2, 64)
    plain = n_bits(x, 20)
    compiled = compile_model(allowed(plain, level), target, num_threads=1)
    assert rounded_kernels(compiled) == 0
    if target == "cpu":
        np.testing.assert_array_equal(results(allowed(plain, level), x)[0], results(plain, x)[0])


@multiplies_bytes
@pytest.mark.parametrize(("block", "rounds"), [(1 << 16, True), (1 << 17, False)])
def test_blocks_whose_sums_32_bits_may_not_hold_are_not_rounded(block: int, rounds: bool) -> None:
    """All codes and all elements are as large as they may be."""
    x = np.ones((2, block), np.float32)
    proto = onnx.load_from_string(allowed(n_bits(x, 2, 8, block)))
    (weights,) = (one for one in proto.graph.initializer if one.name == "w")
    weights.raw_data = b"\xff" * len(weights.raw_data)
    actual, compiled = results(proto.SerializeToString(), x)
    scales = random(2).random((2, 1)) * 0.1
    np.testing.assert_allclose(actual, np.broadcast_to(127.0 * block * scales[:, 0], (2, 2)), rtol=1e-5)
    assert rounded_kernels(compiled) == rounds


@multiplies_bytes
def test_accuracy_checks_know_of_the_rounding() -> None:
    x = floats(2, 64)
    (found,) = compile_model(allowed(n_bits(x, 20)), num_threads=1).explain()["arithmetic"]
    assert (found["precision"], found["bits"], found["step"]) == ("float32", 8, None)


# -- schedules ---------------------------------------------------------------------------------------------------------

TARGET = TargetInfo(isa="avx512", dot="vpdpbusd")
ROUNDED = CpuBlockDotGemmSchedule(3, 2, 16, 1, 1, 40, stage_left=True)
FORMS = {
    "int4": BlockFormat("int4", 16, "float16", True, 40),
    "int4 without zeros": BlockFormat("int4", 8, "float32", False, 40),
    "int8": BlockFormat("int8", 4, "bfloat16", False, 40),
    "int8 with zeros": BlockFormat("int8", 20, "float32", True, 40),
}


def graph_of(form: BlockFormat, rows: int = 3, width: int = 50, **attrs: Any) -> Graph:
    graph = Graph("blocks")
    x = graph.add_input("x", TensorType("float32", (rows, form.depth)))
    codes, points = (
        random(s).integers(0, 1 << form.bits, (width, n)).astype(np.uint8)
        for s, n in ((1, form.depth), (2, form.blocks))
    )
    scales = random(3).random((width, form.blocks)).astype(np.float32)
    raw = scales.astype(np.float16) if form.scales == "float16" else scales
    if form.scales == "bfloat16":
        raw = (scales.view(np.uint32) >> 16).astype(np.uint16)
    w = graph.constant(form.encode(codes, raw, points if form.zeros else None))
    graph.outputs = [graph.emit("block_matmul", x, w, **form.attrs, **({"rounds": True} | attrs))]
    return graph


def launch_of(graph: Graph, schedule: CpuBlockGemmSchedule) -> KernelLaunch:
    (group,) = make_plan(graph, PassContext(TARGET)).groups
    (launch,) = lower_group(graph, replace(group, schedule=schedule))
    return launch


@multiplies_bytes
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"rows": 2, "block_tiles": 2}, {"lanes": 8, "vectors": 3}, {"lanes": 4, "vectors": 1},
        {"spill": True, "vectors": 1}, {"prefetch_ahead": True}, {"rows": 1, "vectors": 4, "block_panels": 2},
    ],
)  # fmt: skip
def test_kernels_are_those_of_the_plan(form: str, changes: dict[str, Any]) -> None:
    graph = graph_of(FORMS[form])
    launch = launch_of(graph, replace(ROUNDED, **changes))
    x, w = floats(3, 40), graph.nodes[0].inputs[1]
    assert w.data is not None
    (y,) = run_launches([launch], {"x": x, w.name: w.data}, graph.outputs).values()
    (expected,) = reference("block_matmul")([x, w.data], graph.nodes[0].attrs)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (CpuBlockGemmSchedule(3, 2, 16, 1, 1, 40, stage_left=True), "where the operator says so"),
        (replace(ROUNDED, stage_left=False), "as they are copied"),
        (replace(ROUNDED, widen_right=True), "panels are not widened"),
        (replace(ROUNDED, lanes=32), "has 4, 8, 16 sums"),
        (replace(ROUNDED, dot="vpmaddwd"), "no instruction 'vpmaddwd'"),
        (replace(ROUNDED, k_block=20), "one pass"),
    ],
)
def test_what_no_kernel_does_is_refused(schedule: CpuBlockGemmSchedule, problem: str) -> None:
    with pytest.raises(KernelError, match=problem):
        launch_of(graph_of(FORMS["int4"]), schedule)


def test_rows_that_are_not_rounded_have_other_kernels() -> None:
    graph = graph_of(FORMS["int4"], rounds=False)
    assert not isinstance(make_plan(graph, PassContext(TARGET)).groups[0].schedule, CpuBlockDotGemmSchedule)
    with pytest.raises(KernelError, match="where the operator says so"):
        launch_of(graph, ROUNDED)


def test_plans_name_the_instruction() -> None:
    graph = graph_of(FORMS["int4"])
    plan = make_plan(graph, PassContext(TARGET))
    check_plan(plan, graph)
    with pytest.raises(PlanError, match="vpdpbusd"):
        check_plan(replace(plan, target=replace(plan.target, dot="")), graph)


@pytest.mark.parametrize(("name", "register"), [("cpu:znver4", "zmm"), ("cpu:alderlake", "ymm")])
def test_the_instruction_of_a_cpu(name: str, register: str) -> None:
    """Activations are the operand with a sign, repeated for all columns as they are read."""
    cpu = parse_target(name)
    graph = graph_of(FORMS["int4"])
    (group,) = make_plan(graph, PassContext(TargetInfo(isa=cpu.isa.name, dot=cpu.dot))).groups
    (launch,) = lower_group(graph, group)
    text = str(_codegen(lower(launch.func, "kernel", cpu), cpu).inspect_source("asm"))
    assert re.search(rf"vpdpbusd\s.*{register}", text)
