"""Contractions of bfloat16 by the instruction that multiplies pairs: which CPUs have it, results, what plans say."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.codegen.kernel_harness import cpu_group, run_launches
from tests.codegen.test_dots import assembly
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import host_target, parse_target
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.ops import reference
from tilestitch.passes import PassContext, TargetInfo, make_plan, run_pipeline
from tilestitch.passes.errors import PlanError
from tilestitch.passes.pipeline import NotesListener
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.cpu.schedules import CpuDotConvSchedule, CpuDotGemmSchedule
from tilestitch.passes.planner import check_plan
from tilestitch.runtime import load

PAIRS = TargetInfo(isa="avx512", half_dot="vdpbf16ps")
DOT = CpuDotGemmSchedule(6, 2, 16, 2, 1, 20, dot="vdpbf16ps")
here = pytest.mark.skipif(not host_target().has("avx512bf16"), reason="this CPU has no AVX512-BF16")
ZEN = "cpu:znver4"
"""A processor that is said to have the instruction; others that have it run its code, too."""


def rounded(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def gemm(m: int = 14, n: int = 50, k: int = 40, trans_a: bool = False) -> Graph:
    graph = Graph("gemm")
    x = graph.add_input("x", TensorType("bfloat16", (k, m) if trans_a else (m, k)))
    attrs = {"trans_a": True} if trans_a else {}
    graph.outputs = [graph.emit("matmul", x, graph.constant(rounded(k, n), "bfloat16"), out_dtype="float32", **attrs)]
    return graph


def check(graph: Graph, schedule: CpuDotGemmSchedule, x: np.ndarray) -> None:
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=schedule))
    w = graph.nodes[0].inputs[1]
    assert w.data is not None
    (y,) = run_launches([launch], {"x": x, w.name: w.data}, graph.outputs).values()
    left = x.T if graph.nodes[0].attrs.get("trans_a") else x
    with np.errstate(invalid="ignore"):
        expected = left.astype(np.float32) @ w.data.astype(np.float32)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5 * 40)


@pytest.mark.parametrize(
    ("name", "dot"),
    [("cpu:znver4", "vdpbf16ps"), ("cpu:cooperlake", "vdpbf16ps"), ("cpu:sapphirerapids", "")]
    + [("cpu:emeraldrapids", ""), ("cpu:x86-64-v4", ""), ("cpu:znver3", ""), ("cpu:aarch64-linux-gnu/neoverse-n1", "")]
    + [("cpu:aarch64-linux-gnu/neoverse-v2", "bfdot")],
)
def test_which_cpus_have_one_that_is_faster_than_float32(name: str, dot: str) -> None:
    cpu = parse_target(name)
    assert cpu.half_dot == dot
    graph = gemm()
    (group,) = make_plan(graph, PassContext(TargetInfo(isa=cpu.isa.name, dot=cpu.dot, half_dot=cpu.half_dot))).groups
    assert isinstance(group.schedule, CpuDotGemmSchedule) == bool(dot)
    (launch,) = lower_group(graph, group)
    text = assembly(launch, cpu)
    for instruction, vectors in (("vdpbf16ps", "zmm"), ("bfdot", r"v\d+\.4s")):
        assert bool(re.search(rf"{instruction}\s.*{vectors}", text)) == (instruction == dot)
    assert "tilestitch_" not in text


@here
@pytest.mark.parametrize(
    "changes",
    [{}, {"rows": 3}, {"vectors": 1, "block_tiles": 1}, {"k_block": 3}, {"stage_left": True}, {"spill": True}]
    + [{"stage_left": True, "rows_outer": True}],
)
def test_tiles_are_those_of_the_plan(changes: dict[str, Any]) -> None:
    check(gemm(), replace(DOT, **changes), rounded(14, 40, seed=1))


@here
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 7), (2, 33, 41), (29, 65, 3), (15, 130, 64)])
def test_odd_sizes(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    check(gemm(m, n, k), replace(DOT, stage_left=True), rounded(m, k, seed=1))


@here
def test_a_transposed_left_operand() -> None:
    check(gemm(5, 33, 7, trans_a=True), replace(DOT, stage_left=True), rounded(7, 5, seed=1))


@here
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("k", [40, 41])
def test_what_is_no_number_stays_in_its_row(value: float, k: int) -> None:
    x = rounded(4, k, seed=1)
    x[1, 3] = value
    check(gemm(4, 20, k), replace(DOT, stage_left=True), x)


def stored_as_bfloat16(graph: Graph, *others: str) -> Graph:
    """The same with a result that is rounded, and the results of so many element-wise operators before that."""
    value = graph.outputs[0]
    for op in others:
        value = graph.emit(op, value)
    graph.outputs = [graph.emit("cast", value, to="bfloat16")]
    return graph


@pytest.mark.parametrize("n", [64, 72])
def test_results_are_rounded_by_one_instruction_each(n: int) -> None:
    """Whole vectors are; the rest is rounded by integers."""
    graph = stored_as_bfloat16(gemm(6, n, 40), "neg")
    (group,) = make_plan(graph, PassContext(PAIRS)).groups
    (launch,) = lower_group(graph, group)
    text = assembly(launch, parse_target("cpu:znver4"))
    names = ("vdpbf16ps", "vcvtneps2bf16")
    sums, rounded_once = (len(re.findall(rf"^\s{name}\s", text, re.MULTILINE)) for name in names)
    assert 0 < rounded_once <= sums
    assert ("vpmovdw" in text) == bool(n % 16)


def test_other_cpus_and_kernels_round_by_integers() -> None:
    graph = Graph("rows")
    x = graph.add_input("x", TensorType("float32", (8, 64)))
    graph.outputs = [graph.emit("cast", graph.emit("neg", x), to="bfloat16")]
    for one, name in ((graph, "cpu:znver4"), (stored_as_bfloat16(gemm()), "cpu:x86-64-v4")):
        (group,) = make_plan(one, PassContext(TargetInfo(isa="avx512"))).groups
        (launch,) = lower_group(one, group)
        assert "vcvtneps2bf16" not in assembly(launch, parse_target(name))


@here
@pytest.mark.parametrize("n", [16, 50])
def test_results_are_rounded_to_nearest_even(n: int) -> None:
    """By columns of one number each: ties, the largest numbers, infinities and NaN."""
    numbers = np.array([1, 1.5, -1, 3, 0, -0.0, 3e38, -3e38, 2.0**-60, np.inf, np.nan, 5, 7, 9, 11, 13], np.float32)
    x = np.zeros((14, 40), ml_dtypes.bfloat16)
    x[:, 0], x[:, 1] = 1, [2.0**-place for place in range(14)]
    w = np.zeros((40, n), ml_dtypes.bfloat16)
    w[0], w[1] = np.resize(numbers, n), np.resize([0, 1, 0.5, 3], n)
    graph = Graph("gemm")
    a = graph.add_input("x", TensorType("bfloat16", (14, 40)))
    graph.outputs = [graph.emit("matmul", a, graph.constant(w, "bfloat16"), out_dtype="float32")]
    (launch,) = lower_group(stored_as_bfloat16(graph), replace(cpu_group(graph), schedule=DOT))
    (y,) = run_launches([launch], {"x": x, graph.nodes[0].inputs[1].name: w}, graph.outputs).values()
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (x.astype(np.float32) @ w.astype(np.float32)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))


CONV = CpuDotConvSchedule(1, 5, 2, 16, 2, 1, dot="vdpbf16ps")


def conv(channels: int = 8, groups: int = 1, layout: str = "NXC", stride: int = 1, dilation: int = 1) -> Graph:
    """A padded 3x3 convolution of two images of 7 x 9 to 20 channels."""
    graph, last = Graph("conv"), layout == "NXC"
    x = graph.add_input("x", TensorType("bfloat16", (2, 7, 9, channels) if last else (2, channels, 7, 9)))
    inside = channels // groups
    w = rounded(*((3, 3, inside, 20) if last else (20, inside, 3, 3)), seed=channels)
    attrs = {
        "strides": (stride,) * 2, "before": (1, 1), "after": (1, 1), "dilations": (dilation,) * 2, "groups": groups,
        "layout": layout,
    }  # fmt: skip
    graph.outputs = [graph.emit("conv", x, graph.constant(w, "bfloat16"), out_dtype="float32", **attrs)]
    return graph


def check_conv(graph: Graph, schedule: Any, x: np.ndarray) -> None:
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=schedule))
    node = graph.nodes[0]
    w = node.inputs[1]
    assert w.data is not None
    (y,) = run_launches([launch], {"x": x, w.name: w.data}, graph.outputs).values()
    (expected,) = reference("conv")([x.astype(np.float32), w.data.astype(np.float32)], node.attrs)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5 * 40)


@here
@pytest.mark.parametrize(
    "changes",
    [{}, {"rows": 3, "columns": 3, "rows_outer": True}, {"stage": True}, {"stage": True, "spill": True}]
    + [{"vectors": 1, "prefetch_next": True}],
)
def test_convolutions_are_those_of_the_plan(changes: dict[str, Any]) -> None:
    check_conv(conv(), replace(CONV, **changes), rounded(2, 7, 9, 8, seed=1))


@here
@pytest.mark.parametrize(
    "graph",
    [conv(1), conv(3), conv(7), conv(6, groups=2), conv(20, groups=20 // 4), conv(16, stride=2, dilation=2)]
    + [conv(3, layout="NCX"), conv(16, layout="NCX", stride=2)],
    ids=lambda graph: str(graph.inputs[0].shape),
)
def test_convolutions_of_odd_sizes(graph: Graph) -> None:
    """As they are chosen; where channels are no whole pairs, what lies beside them is no number in the workspace."""
    (group,) = make_plan(graph, PassContext(PAIRS)).groups
    assert isinstance(group.schedule, CpuDotConvSchedule) and group.schedule.dot == "vdpbf16ps"
    check_conv(graph, group.schedule, rounded(*graph.inputs[0].shape, seed=1))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"lanes": 8}, "has 16 sums"), ({"dot": "vpdpbusd"}, "uint8 by constant int8"), ({"widen_right": True}, "widen")],
)
def test_what_no_kernel_does_is_refused(changes: dict[str, Any], problem: str) -> None:
    graph = gemm()
    with pytest.raises(KernelError, match=problem):
        lower_group(graph, replace(cpu_group(graph), schedule=replace(DOT, **changes)))


def test_plans_say_what_they_need() -> None:
    graph = gemm()
    plan = make_plan(graph, PassContext(PAIRS))
    assert plan.target.half_dot == "vdpbf16ps" and TargetInfo.from_json(plan.target.to_json()) == plan.target
    other = TargetInfo(isa="avx512")
    assert "vdpbf16ps" in (plan.target.why_not_on(other) or "")
    with pytest.raises(PlanError, match="needs the instruction vdpbf16ps"):
        check_plan(replace(plan, target=other), graph)


def two_layers() -> bytes:
    stored = [numpy_helper.from_array(rounded(96, 96, seed=s).astype(np.float32), name) for s, name in enumerate("vw")]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]  # fmt: skip
    told = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (20, 96)) for name in "xy"]
    graph = helper.make_graph(nodes, "layers", told[:1], told[1:], stored)
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    )


@here
def test_a_model_in_bf16() -> None:
    """Operands are rounded as the pass says, once; sums are float32."""
    compiled = compile_model(two_layers(), ZEN, num_threads=1, precision="bf16")
    dots = [group for group in compiled.plan.groups if isinstance(group.schedule, CpuDotGemmSchedule)]
    assert len(dots) == 2
    x = rounded(20, 96, seed=7).astype(np.float32) * np.float32(1.001)
    v, w = (rounded(96, 96, seed=s).astype(np.float32) for s in range(2))
    hidden = np.maximum(x.astype(ml_dtypes.bfloat16).astype(np.float32) @ v, 0).astype(ml_dtypes.bfloat16)
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        actual = loaded.run({"x": x})["y"]
    expected = hidden.astype(np.float32) @ w
    assert np.abs(actual - expected).max() <= 2e-3 * np.abs(expected).max()


@pytest.mark.parametrize("half_dot", ["", "vdpbf16ps"])
def test_without_the_instruction_the_pass_says_so(half_dot: str) -> None:
    notes = NotesListener()
    context = PassContext(
        TargetInfo(isa="avx512", half_dot=half_dot), {"precision": "bf16"}, listeners=[notes]
    )  # fmt: skip
    run_pipeline(import_model(onnx.load_from_string(two_layers())).graph, context)
    assert any("widened to float32" in note for _, note in notes.notes) == (not half_dot)


def gated(kind: str, rows: int = 9, depth: int = 70, width: int = 40) -> onnx.ModelProto:
    """silu(x V) * (x W) of floats, or of integers that are made of floats row by row."""
    random = np.random.default_rng(5)
    matrices = {name: random.integers(-127, 128, (depth, width)) for name in "vw"}
    scale = np.float32(1 / 127 / depth**0.5)
    nodes = []
    if kind == "bf16":
        stored = {name: (data * scale).astype(np.float32) for name, data in matrices.items()}
        nodes += [helper.make_node("MatMul", ["x", name], [name * 2]) for name in "vw"]
    else:
        stored = {**{name: data.astype(np.int8) for name, data in matrices.items()}, "scale": scale}
        nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]))
        nodes.append(helper.make_node("Mul", ["s", "scale"], ["both"]))
        for name in "vw":
            nodes.append(helper.make_node("MatMulInteger", ["q", name, "z"], [f"{name}i"]))
            nodes.append(helper.make_node("Cast", [f"{name}i"], [f"{name}f"], to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Mul", [f"{name}f", "both"], [name * 2]))
    nodes.append(helper.make_node("Sigmoid", ["vv"], ["g"]))
    nodes += [helper.make_node("Mul", ["vv", "g"], ["h"]), helper.make_node("Mul", ["h", "ww"], ["y"])]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (rows, n)) for name, n in (("x", depth), ("y", width))
    )
    constants = [numpy_helper.from_array(np.asarray(data), name) for name, data in stored.items()]
    graph = helper.make_graph(nodes, "gated", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@here
@pytest.mark.parametrize(("kind", "dot", "tolerance"), [("bf16", "vdpbf16ps", 2e-2), ("int8", "vpdpbusd", 1e-5)])
def test_gates_are_multiplied_in_groups(kind: str, dot: str, tolerance: float) -> None:
    """Both GEMMs of a gated unit are one kernel, by the instruction."""
    model = gated(kind)
    compiled = compile_model(model, ZEN, num_threads=1, precision="bf16" if kind == "bf16" else "fp32")
    (group,) = (group for group in compiled.plan.groups if group.kind is GroupKind.CONTRACTION)
    assert isinstance(group.schedule, CpuDotGemmSchedule) and group.schedule.dot == dot and group.schedule.spill
    x = np.random.default_rng(6).standard_normal((9, 70)).astype(np.float32)
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        actual = loaded.run({"x": x})["y"]
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()
